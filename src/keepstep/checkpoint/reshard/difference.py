"""In what two checkpoints differ, tensor by tensor. Owns the comparison; judges nothing, in bounded memory.

Digests are compared first: what is equal is not read. Large tensors have chunks of their own, so only those chunks are read
that differ.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.pack import Chunk
from keepstep.checkpoint.format.records import Manifest
from keepstep.checkpoint.repository.repository import staging
from keepstep.checkpoint.reshard.saved import Reader, SavedGroup, SavedGroups
from keepstep.checkpoint.state.leaves import LARGE_BYTES, Spec, item_bytes, leaf_bytes
from keepstep.checkpoint.state.shards import walk

Kind = Literal["only in the first", "only in the second", "type", "values", "box"]
_SHOWN = 80


class Numbers(Struct, frozen=True, kw_only=True):
    """How far two tensors of one type are apart."""

    elements: int
    differing: int
    """Elements of which the bytes differ."""
    not_finite: int
    """Of those, where either is infinite or not a number."""
    max_abs: float | None
    """Of the others, the greatest difference; None where there is none, or the type has no numbers."""


class Difference(Struct, frozen=True, kw_only=True):
    """One place that is not the same. ``place``: path in the group."""

    group: str
    rank: int
    place: str
    kind: Kind
    first: str
    second: str
    """In words: dtype and shape of a tensor, or the value."""
    numbers: Numbers | None = None


class Side(Struct, frozen=True):
    """One of the checkpoints."""

    manifest: Manifest
    reader: Reader


def differences(first: Side, second: Side, ranks: tuple[int, ...]) -> Iterator[Difference]:
    """Every place in which these ranks' states differ. Two ranks that have the same two contents are told once, as the first.

    Raises StateInvalid, a key error, or OSError.
    """
    saved = SavedGroups(first.reader), SavedGroups(second.reader)
    done: set[tuple[str, str, str]] = set()
    for rank in ranks:
        left, right = first.manifest.ranks[rank].groups, second.manifest.ranks[rank].groups
        for name in dict.fromkeys((*left, *right)):
            pair = (name, left.get(name, ""), right.get(name, ""))
            if pair[1] == pair[2] or pair in done:
                continue
            done.add(pair)
            if not pair[1] or not pair[2]:
                kind: Kind = "only in the second" if pair[2] else "only in the first"
                yield Difference(group=name, rank=rank, place="", kind=kind, first="", second="")
                continue
            ours = _Leaves(first.reader, saved[0], saved[0].group(pair[1]))
            theirs = _Leaves(second.reader, saved[1], saved[1].group(pair[2]))
            yield from _in_group(ours, theirs, name, rank)


class _Leaves:
    """A group, and where its bytes come from."""

    def __init__(self, reader: Reader, saved: SavedGroups, group: SavedGroup) -> None:
        self._reader, self._saved, self.group = reader, saved, group
        self.nodes = _nodes(group)
        self.holders = {path.rpartition(".")[0] for path in self.nodes if path}
        """Paths of containers that have something in them."""

    def leaf(self, place: str) -> int | None:
        """None where something else stands."""
        node = self.nodes[place]
        if type(node) is not list or not node or node[0] not in ("a", "h"):
            return None
        leaf = node[1]
        if type(leaf) is not int or not 0 <= leaf < len(self.group.index.leaves):
            raise StateInvalid(f"an index names leaf {leaf!r}")
        return leaf

    def words(self, place: str) -> str:
        """What stands there; empty for nothing."""
        if place not in self.nodes:
            return ""
        node, leaf = self.nodes[place], self.leaf(place)
        if leaf is None:
            return msgspec.json.encode(node).decode()[:_SHOWN]
        kind, dtype, shape = self.spec(leaf)
        whole = f"{dtype} {tuple(shape)}" if kind != "s" else f"{dtype} scalar"
        return whole if node[0] == "a" else f"{whole} at {tuple(node[3])} of {tuple(node[2])}"

    def spec(self, leaf: int) -> Spec:
        return self.group.index.leaves[leaf]

    def chunks(self, leaf: int) -> tuple[Chunk, ...]:
        """Of a large leaf: they hold nothing else."""
        begin = self.group.offsets[leaf]
        end = begin + leaf_bytes(self.spec(leaf))
        at, last = (int(np.searchsorted(self.group.begins, place, "right")) - 1 for place in (begin, end - 1))
        return self.group.chunks[at : last + 1]

    def read_chunk(self, chunk: Chunk) -> "np.ndarray[Any, Any]":
        data = staging(chunk.plain_bytes)
        self._reader.read_chunks([(chunk, memoryview(data.data))])
        return data

    def read(self, leaf: int) -> "np.ndarray[Any, Any]":
        data = np.empty(leaf_bytes(self.spec(leaf)), np.uint8)
        self._saved.read_leaf(self.group, leaf, data)
        return data


def _nodes(group: SavedGroup) -> dict[str, Any]:
    """Path -> node. A path that two nodes have gets a number behind it."""
    nodes: dict[str, Any] = {}
    for path, node in walk(group.index.tree):
        number, unique = 1, path
        while unique in nodes:
            number += 1
            unique = f"{path}~{number}"
        nodes[unique] = node
    return nodes


def _in_group(first: _Leaves, second: _Leaves, name: str, rank: int) -> Iterator[Difference]:
    told: dict[tuple[int, int], Numbers | None] = {}
    for place in dict.fromkeys((*first.nodes, *second.nodes)):
        words = first.words(place), second.words(place)
        kind: Kind | None
        numbers = None
        if place not in first.nodes or place not in second.nodes:
            one, kind = (second, "only in the second") if place in second.nodes else (first, "only in the first")
            if place in one.holders:
                # What is in it is told.
                continue
        else:
            leaves = first.leaf(place), second.leaf(place)
            kind = _kind(first, second, place)
            if kind is None and leaves[0] is not None and leaves[1] is not None:
                pair = (leaves[0], leaves[1])
                if pair not in told:
                    told[pair] = _numbers(first, second, pair)
                numbers = told[pair]
                kind = None if numbers is None else "values"
        if kind is not None:
            yield Difference(
                group=name, rank=rank, place=place, kind=kind, first=words[0], second=words[1], numbers=numbers
            )


def _kind(first: _Leaves, second: _Leaves, place: str) -> Kind | None:
    """In what two nodes differ, apart from the bytes of their leaves."""
    left, right = first.nodes[place], second.nodes[place]
    ours, theirs = first.leaf(place), second.leaf(place)
    if ours is None or theirs is None:
        same_sort = ours is theirs and type(left) is type(right) and (type(left) is not list or left[0] == right[0])
        return None if left == right and same_sort else "values" if same_sort else "type"
    specs = first.spec(ours), second.spec(theirs)
    if left[0] == right[0] and left[2:] == right[2:] and specs[0] == specs[1]:
        return None
    parts_of_one = left[0] == right[0] == "h" and left[2] == right[2] and specs[0][:2] == specs[1][:2]
    return "box" if parts_of_one else "type"


def _numbers(first: _Leaves, second: _Leaves, pair: tuple[int, int]) -> Numbers | None:
    """None if all bytes are the same."""
    spec = first.spec(pair[0])
    size, item = leaf_bytes(spec), item_bytes(spec)
    if not size:
        return None
    if size < LARGE_BYTES:
        blocks = iter([(0, first.read(pair[0]), second.read(pair[1]))])
    else:
        blocks = _differing_blocks(first, second, pair, size)
    differing = not_finite = 0
    greatest: float | None = None
    for at, left, right in blocks:
        if at % item or len(left) % item:
            # Text, of which one goes over the edge of a chunk: there are no numbers to compare.
            differing += len(np.unique((at + np.flatnonzero(left != right)) // item))
            continue
        found = (left.reshape(-1, item) != right.reshape(-1, item)).any(axis=1)
        differing += int(found.sum())
        with np.errstate(all="ignore"):
            ours, theirs = (_values(block.reshape(-1, item)[found], spec) for block in (left, right))
            if ours is None or theirs is None or not found.any():
                continue
            finite = np.isfinite(ours) & np.isfinite(theirs)
            not_finite += int((~finite).sum())
            if finite.any():
                apart = float(np.abs(ours[finite] - theirs[finite]).max())
                greatest = apart if greatest is None else max(greatest, apart)
    if not differing:
        return None
    return Numbers(elements=size // item, differing=differing, not_finite=not_finite, max_abs=greatest)


def _differing_blocks(
    first: _Leaves, second: _Leaves, pair: tuple[int, int], size: int
) -> Iterator[tuple[int, Any, Any]]:
    """Where they begin, and the bytes of two large leaves of one type, chunk by chunk, without the zeros behind them."""
    end = 0
    for left, right in zip(first.chunks(pair[0]), second.chunks(pair[1]), strict=True):
        begin, end = end, end + left.plain_bytes
        if left.plain_bytes != right.plain_bytes:
            raise StateInvalid("two tensors of one type are cut differently: one of the checkpoints is damaged")
        if left.plain != right.plain:
            used = min(end, size) - begin
            yield begin, first.read_chunk(left)[:used], second.read_chunk(right)[:used]


def _values(raw: "np.ndarray[Any, Any]", spec: Spec) -> Any:
    """Elements, given as rows of bytes, as numbers that can be subtracted; None for a type that has none."""
    kind, dtype, _ = spec
    data = np.ascontiguousarray(raw).reshape(-1)
    if kind == "t" and dtype == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind == "t" and (dtype.startswith("float8") or dtype == "complex32"):
        import torch

        values = torch.from_numpy(data.copy()).view(getattr(torch, dtype))
        return values.to(torch.complex128 if dtype == "complex32" else torch.float64).numpy()
    plain = np.dtype(dtype)
    if plain.kind not in "biufc":
        return None
    return data.view(plain).astype(np.complex128 if plain.kind == "c" else np.float64)
