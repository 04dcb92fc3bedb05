"""Parts of saved groups: their index, single leaves, and boxes out of leaves. Owns which chunks are read for that.

Only chunks that a box touches are read, each once as long as boxes are asked for in the order of their leaves. What lies
together in both places is read straight to where it belongs; anything else is staged, at most SLAB_BYTES of a leaf at a time.
Chunks that another box may want are remembered.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.format.pack import Chunk
from keepstep.checkpoint.repository.repository import staging
from keepstep.checkpoint.state.blob import chunk_digest, index_in, tail_begin
from keepstep.checkpoint.state.boxes import Extent, within
from keepstep.checkpoint.state.index import decode_index
from keepstep.checkpoint.state.leaves import (
    CHUNK_BYTES,
    LARGE_BYTES,
    PAGE_BYTES,
    item_bytes,
    leaf_bytes,
    offsets_of,
    round_up,
)
from keepstep.checkpoint.state.shards import shard_nodes

SLAB_BYTES = 32 * 1024 * 1024
EDGE_CHUNKS = 4
"""Chunks that are remembered: 32 MiB."""
_UNITS = (8, 4, 2, 1)


class Reader(Protocol):
    """What is needed of a ``PackReader``."""

    def chunks(self, digest: str) -> tuple[Chunk, ...]: ...

    def read_chunks(self, wanted: Sequence[tuple[Chunk, memoryview]]) -> None: ...


class SavedGroup:
    """One rank's group: what its tree and its leaves are, without the leaves. Raises StateInvalid if that is damaged."""

    def __init__(self, reader: Reader, digest: str) -> None:
        self.digest = digest
        self.chunks = reader.chunks(digest)
        self.begins = np.cumsum([0, *(chunk.plain_bytes for chunk in self.chunks)])
        self.index_bytes = self._read_index(reader)
        self.index = decode_index(self.index_bytes)
        self.offsets, payload_bytes = offsets_of(self.index.leaves)
        if payload_bytes != self._payload_bytes:
            raise StateInvalid(
                f"group {digest} has {self._payload_bytes} payload bytes; its index says {payload_bytes}"
            )
        self.shards: dict[str, dict[Extent, int]] = {}
        """Path -> box of a part of that tensor -> leaf."""
        for path, _, parts in shard_nodes(self.index):
            self.shards[path] = {
                Extent(tuple(offset), tuple(self.index.leaves[leaf][2])): leaf for _, leaf, _, offset in parts
            }

    def is_alone(self, leaf: int, number: int) -> bool:
        """Whether a chunk that has some of a leaf has nothing of another one."""
        end = self.offsets[leaf] + round_up(leaf_bytes(self.index.leaves[leaf]), PAGE_BYTES)
        return bool(self.begins[number] >= self.offsets[leaf] and self.begins[number + 1] <= end)

    def _read_index(self, reader: Reader) -> bytes:
        last = staging(self.chunks[-1].plain_bytes)
        reader.read_chunks([(self.chunks[-1], memoryview(last.data))])
        self._payload_bytes = tail_begin(last, int(self.begins[-1]))
        first = int(np.searchsorted(self.begins, self._payload_bytes))
        if self.begins[first] != self._payload_bytes or first >= len(self.chunks):
            raise StateInvalid(f"group {self.digest} is not cut into chunks the way keepstep cuts: it is damaged")
        tail = staging(int(self.begins[-1]) - self._payload_bytes)
        tail[-len(last) :] = last
        at, wanted = 0, []
        for chunk in self.chunks[first:-1]:
            wanted.append((chunk, memoryview(tail.data)[at : at + chunk.plain_bytes]))
            at += chunk.plain_bytes
        reader.read_chunks(wanted)
        return index_in(tail)


class SavedGroups:
    """The groups of one checkpoint, read piece by piece. One thread only."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._groups: dict[str, SavedGroup] = {}
        self._edges: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._stage = staging(0)

    def group(self, digest: str) -> SavedGroup:
        if digest not in self._groups:
            self._groups[digest] = SavedGroup(self._reader, digest)
        return self._groups[digest]

    def read_leaf(self, saved: SavedGroup, leaf: int, target: "np.ndarray[Any, Any]") -> None:
        """Fill ``target`` (uint8, the leaf's size) with a whole leaf."""
        if len(target):
            self._read_run(saved, saved.offsets[leaf], target)

    def read_box(self, saved: SavedGroup, leaf: int, box: Extent, target: "np.ndarray[Any, Any]") -> None:
        """Fill ``target`` (see :func:`elements`, of the box's shape) with a box of a leaf, in the leaf's own coordinates."""
        spec = saved.index.leaves[leaf]
        item = item_bytes(spec)
        strides = _strides(spec[2], item)
        if target.flags.c_contiguous and _is_run(box.shape, spec[2]):
            self._read_run(saved, _begin(saved, leaf, box, strides), target.reshape(-1).view(np.uint8))
            return
        slabs = list(_slabs(box, strides, item))
        for slab in slabs:
            begin = _begin(saved, leaf, slab, strides)
            numbers = _touched(saved, begin, slab.shape, strides, item)
            alone = saved.is_alone(leaf, numbers[0]), saved.is_alone(leaf, numbers[-1])
            staged = self._staged(saved, numbers, (alone[0] and slab is slabs[0], alone[1] and slab is slabs[-1]))
            unit = target.dtype.itemsize
            source = np.ndarray(
                (*slab.shape, item // unit), target.dtype, staged.data, begin - int(saved.begins[numbers[0]]),
                (*strides, unit),
            )  # fmt: skip
            target[within(slab, box)] = source

    def _read_run(self, saved: SavedGroup, begin: int, target: "np.ndarray[Any, Any]") -> None:
        """Fill ``target`` (uint8, not empty) with what the blob has from ``begin`` on: whole chunks go straight there."""
        end, view = begin + len(target), memoryview(target.data)
        whole = []
        for number in range(_chunk_at(saved, begin), _chunk_at(saved, end - 1) + 1):
            first, last = int(saved.begins[number]), int(saved.begins[number + 1])
            if first >= begin and last <= end:
                whole.append((saved.chunks[number], view[first - begin : last - begin]))
                continue
            low, high = max(first, begin), min(last, end)
            view[low - begin : high - begin] = self._edge(saved, number)[low - first : high - first]
        self._reader.read_chunks(whole)

    def leaf_mark(self, saved: SavedGroup, leaf: int) -> bytes:
        """Equal for two leaves of one spec only if their bytes are. Large leaves are not read for it."""
        size = leaf_bytes(saved.index.leaves[leaf])
        if size >= LARGE_BYTES:
            first, last = _chunk_at(saved, saved.offsets[leaf]), _chunk_at(saved, saved.offsets[leaf] + size - 1)
            return b"".join(bytes.fromhex(chunk.plain) for chunk in saved.chunks[first : last + 1])
        data = np.empty(size, np.uint8)
        self.read_leaf(saved, leaf, data)
        return chunk_digest(data)

    def _staged(self, saved: SavedGroup, numbers: list[int], alone: tuple[bool, bool]) -> "np.ndarray[Any, Any]":
        """Memory in which these chunks (ascending) stand where the blob has them; it begins with the first one. ``alone``:
        nobody else will ask for the first, or the last, of them."""
        origin = int(saved.begins[numbers[0]])
        size = int(saved.begins[numbers[-1] + 1]) - origin
        if size > len(self._stage):
            self._stage = staging(size)
        view = memoryview(self._stage.data)

        def place(number: int) -> memoryview:
            return view[int(saved.begins[number]) - origin : int(saved.begins[number + 1]) - origin]

        edges = {number for number, by_itself in zip((numbers[0], numbers[-1]), alone, strict=True) if not by_itself}
        self._reader.read_chunks([(saved.chunks[number], place(number)) for number in numbers if number not in edges])
        for number in edges:
            place(number)[:] = self._edge(saved, number)
        return self._stage

    def _edge(self, saved: SavedGroup, number: int) -> memoryview:
        chunk = saved.chunks[number]
        key = (chunk.pack, chunk.number)
        room = self._edges.pop(key, None)
        if room is None:
            # The memory of the one that was not asked for the longest time.
            room = self._edges.popitem(last=False)[1] if len(self._edges) == EDGE_CHUNKS else staging(CHUNK_BYTES)
            self._reader.read_chunks([(chunk, memoryview(room.data)[: chunk.plain_bytes])])
        self._edges[key] = room
        return memoryview(room.data)[: chunk.plain_bytes]


def elements(payload: "np.ndarray[Any, Any]", shape: tuple[int, ...], item: int) -> "np.ndarray[Any, Any]":
    """Bytes as an array of items of ``item`` bytes that copies fast: one more axis, of the units of an item."""
    unit = next(size for size in _UNITS if item % size == 0)
    return payload.view(f"u{unit}").reshape(*shape, item // unit)


def _strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    strides = [item]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))[: len(shape)]


def _begin(saved: SavedGroup, leaf: int, box: Extent, strides: tuple[int, ...]) -> int:
    """Where in the blob the first element of a box of a leaf is."""
    return saved.offsets[leaf] + sum(at * stride for at, stride in zip(box.offset, strides, strict=True))


def _is_run(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether the elements of a box of this shape follow one another in its leaf."""
    cut = next((axis for axis, size in enumerate(shape) if size > 1), len(shape))
    return shape[cut + 1 :] == whole[cut + 1 :]


def _slabs(box: Extent, strides: tuple[int, ...], item: int) -> Iterator[Extent]:
    """The box in pieces of which none spans more than SLAB_BYTES of its leaf, in the leaf's order."""
    pending = [box]
    while pending:
        slab = pending.pop()
        span = item + sum((size - 1) * stride for size, stride in zip(slab.shape, strides, strict=True))
        axis = next((axis for axis, size in enumerate(slab.shape) if size > 1), None)
        if span <= SLAB_BYTES or axis is None:
            yield slab
            continue
        half = slab.shape[axis] // 2
        for begin, size in ((half, slab.shape[axis] - half), (0, half)):
            offset = (*slab.offset[:axis], slab.offset[axis] + begin, *slab.offset[axis + 1 :])
            pending.append(Extent(offset, (*slab.shape[:axis], size, *slab.shape[axis + 1 :])))


def _touched(saved: SavedGroup, begin: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> list[int]:
    """Numbers of the chunks that have a byte of a box, which begins at ``begin`` in the blob."""
    run, starts = item, np.array([begin])
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if len(starts) == 1 and stride - run < PAGE_BYTES:
            # No chunk but the last is smaller than a page, so none lies in the gap alone.
            run += (size - 1) * stride
        else:
            starts = (starts[:, np.newaxis] + np.arange(size) * stride).reshape(-1)
    first = np.searchsorted(saved.begins, starts, "right") - 1
    last = np.searchsorted(saved.begins, starts + run - 1, "right") - 1
    touched = np.zeros(len(saved.chunks) + 1, np.int64)
    np.add.at(touched, first, 1)
    np.add.at(touched, last + 1, -1)
    return [int(number) for number in np.flatnonzero(np.cumsum(touched))]


def _chunk_at(saved: SavedGroup, offset: int) -> int:
    return int(np.searchsorted(saved.begins, offset, "right")) - 1
