"""The JSON file that makes an export exact: the index of each group's tree, and where each of its leaves went.

safetensors and DCP know tensors by name and little else. The sidecar keeps the rest (numbers, tuples, key types, numpy
dtypes, ties) and a digest of every leaf. Owns its shape, the dotted names, and the way back; writes no tensor.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from keepstep._version import __version__
from keepstep.checkpoint.adopt.inventory import Piece
from keepstep.checkpoint.adopt.reading import MAX_JSON_BYTES, Reader, opened
from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.state.blob import digest_of
from keepstep.checkpoint.state.leaves import Spec, leaf_bytes, offsets_of
from keepstep.checkpoint.state.tree import Flat, unflatten

SIDECAR = "keepstep-tree.json"
_FORMAT = 1
_MAX_DEPTH = 200


class GroupIndex(Struct, frozen=True, kw_only=True):
    """One group. ``names`` and ``digests`` are by leaf."""

    index: msgspec.Raw
    names: tuple[str, ...]
    digests: tuple[str, ...]


class Sidecar(Struct, frozen=True, kw_only=True):
    groups: dict[str, GroupIndex]
    keepstep: str = __version__
    format: int = _FORMAT


class _Envelope(Struct, forbid_unknown_fields=True):
    body: msgspec.Raw
    digest: str


class _Leaves(Struct):
    leaves: list[Spec]


class Named(Struct, kw_only=True):
    """Dotted names of what a group's tree holds."""

    leaves: dict[int, list[str]]
    """Leaf -> its names: more than one where tensors are tied."""
    scalars: dict[str, Any]
    """Plain values under string keys, for readers that know no sidecar."""


def names_of(flat: Flat, prefix: str, taken: set[str]) -> Named:
    """``taken``: names that are in use already; grows. A name that is, gets a number behind it."""
    named = Named(leaves={}, scalars={})
    tree = msgspec.json.decode(flat.index)["tree"]
    pending: list[tuple[str, Any]] = [(prefix, tree)]
    while pending:
        name, node = pending.pop()
        children = _children(node)
        if children is not None:
            pending.extend((f"{name}.{key}" if name else key, child) for key, child in reversed(children))
            continue
        name = name or "value"
        number, unique = 1, name
        while unique in taken:
            number += 1
            unique = f"{name}~{number}"
        if type(node) is list and node[0] in ("a", "h"):
            taken.add(unique)
            named.leaves.setdefault(node[1], []).append(unique)
        elif type(node) is not list:
            taken.add(unique)
            named.scalars[unique] = node
    return named


def _children(node: Any) -> list[tuple[str, Any]] | None:
    """Name and node of each child, in order; None for a leaf."""
    if type(node) is dict:
        return list(node.items())
    if type(node) is not list:
        return None
    match node[0]:
        case "l" | "t":
            return [(str(at), child) for at, child in enumerate(node[1])]
        case "k":
            keys = [key if type(key) in (str, int) else at for at, key in enumerate(node[1])]
            return [(str(key), child) for key, child in zip(keys, node[2], strict=True)]
        case "o":
            return _children(node[1])
        case "m":
            return [
                *(_children(node[1]) or []),
                *[(f"_metadata.{key}", child) for key, child in _children(node[2]) or []],
            ]
        case _:
            return None


def seal(sidecar: Sidecar) -> bytes:
    body = msgspec.json.encode(sidecar)
    return msgspec.json.encode(_Envelope(msgspec.Raw(body), digest_of(body)))


def read_sidecar(root: Path) -> Sidecar | None:
    """None if there is none. Raises StateInvalid for one that is damaged."""
    if not (root / SIDECAR).exists():
        return None
    with opened(root / SIDECAR) as reader:
        if reader.size_bytes > MAX_JSON_BYTES:
            raise StateInvalid(f"{SIDECAR} has {reader.size_bytes} bytes: it is too large")
        data = reader.read(0, reader.size_bytes)
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if digest_of(bytes(envelope.body)) != envelope.digest:
            raise StateInvalid(f"{SIDECAR} does not match its own digest: its bytes are damaged")
        sidecar = msgspec.json.decode(envelope.body, type=Sidecar)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateInvalid(f"{SIDECAR} is not valid: {error}") from error
    if sidecar.format != _FORMAT:
        raise StateInvalid(f"{SIDECAR} has format {sidecar.format}: upgrade keepstep to read it")
    return sidecar


def restore(group: GroupIndex, pieces: dict[str, Piece], readers: dict[str, Reader]) -> Any:
    """The tree of a group, bit for bit. ``pieces``: where each name's bytes are. Raises StateInvalid.

    Nothing is allocated for a leaf whose bytes are not in the file.
    """
    specs = _specs(group, pieces)
    offsets, size = offsets_of(specs)
    payload = np.zeros(size, np.uint8)
    for offset, name, digest in zip(offsets, group.names, group.digests, strict=True):
        _fill(payload[offset : offset + pieces[name].size_bytes], name, digest, pieces[name], readers)
    return unflatten(bytes(group.index), payload)


def check(group: GroupIndex, pieces: dict[str, Piece], readers: dict[str, Reader]) -> None:
    """What :func:`restore` checks, with one leaf in memory at a time."""
    for spec, name, digest in zip(_specs(group, pieces), group.names, group.digests, strict=True):
        _fill(np.empty(leaf_bytes(spec), np.uint8), name, digest, pieces[name], readers)


def _specs(group: GroupIndex, pieces: dict[str, Piece]) -> list[Spec]:
    try:
        specs = msgspec.json.decode(group.index, type=_Leaves).leaves
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateInvalid(f"{SIDECAR} has a malformed index: {error}") from error
    if not len(specs) == len(group.names) == len(group.digests):
        raise StateInvalid(f"{SIDECAR} does not name every leaf")
    for spec, name in zip(specs, group.names, strict=True):
        if any(size < 0 for size in spec[2]) or name not in pieces or pieces[name].size_bytes != leaf_bytes(spec):
            raise StateInvalid(f"{name} is not there as {SIDECAR} describes it")
    return specs


def _fill(view: "np.ndarray[Any, Any]", name: str, digest: str, piece: Piece, readers: dict[str, Reader]) -> None:
    readers[piece.file].into(piece.offset, view.data)
    if digest_of(view) != digest:
        raise StateInvalid(f"{name} does not match the digest that was exported: its bytes are damaged")
