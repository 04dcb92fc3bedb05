"""The group blob: one named part of a rank's state as one run of bytes with one digest.

    payload (leaves; whole pages) | index (JSON, see tree) | chunk ends (8 bytes each) | trailer (32 bytes)

The index comes after the payload, because its length changes from step to step while the leaves must stay where they are.
A blob is digested in chunks, and its own digest is taken over theirs: a part of it can be verified alone, and a chunk that
has not changed since the last checkpoint is recognised. The same bytes stand in a memory slot and on the wire; in a pack
they are cut at the same places. Owns this layout; must not do I/O.
"""

import bisect
import functools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.state.index import decode_index
from keepstep.checkpoint.state.leaves import (
    CHUNK_BYTES,
    LARGE_BYTES,
    PAGE_BYTES,
    LeafViews,
    Spec,
    chunk_ends,
    item_bytes,
    leaf_bytes,
    offsets_of,
)
from keepstep.checkpoint.state.tree import Flat, unflatten

MAGIC = b"KSGROUP2"
_TRAILER = struct.Struct("<QQQ8s")  # payload bytes, index bytes, number of chunk ends, magic
TRAILER_BYTES = _TRAILER.size


class Chunks(Struct, frozen=True):
    """How a blob is cut, and the digest of each piece."""

    ends: tuple[int, ...]
    digests: tuple[bytes, ...]
    """XXH3-128, 16 bytes each."""
    root: str
    """The digest of the blob: ``xxh3-`` and 32 hex digits."""

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip((0, *self.ends[:-1]), self.ends, strict=True))


def digest_of(data: Any) -> str:
    """Digest of a run of bytes: ``xxh3-`` and 32 hex digits. The GIL is released meanwhile."""
    return "xxh3-" + xxhash.xxh3_128(data).hexdigest()


def chunk_digest(data: Any) -> bytes:
    return xxhash.xxh3_128(data).digest()


def root_of(ends: Sequence[int], digests: Sequence[bytes]) -> str:
    """The digest of a blob that is cut at ``ends`` into chunks with these digests."""
    return digest_of(struct.pack(f"<{len(ends)}Q", *ends) + b"".join(digests))


def ends_of(blob: Any) -> tuple[int, ...]:
    """Where the chunks of a blob end: only what follows the payload is looked at. Raises StateInvalid."""
    view = memoryview(blob).cast("B")
    _, _, payload_ends = _frame(view)
    tail = range(view.nbytes - _tail_bytes(view) + CHUNK_BYTES, view.nbytes, CHUNK_BYTES)
    return (*payload_ends, *tail, view.nbytes)


def check_root(found: str, digest: str) -> None:
    """Raises StateInvalid unless the digest that was found is the one that was saved."""
    if found != digest:
        raise StateInvalid(f"a state group has digest {found} where {digest} was saved: its bytes are damaged")


def digest_chunks(blob: Any) -> Chunks:
    """Digest a blob. Raises StateInvalid if it is not cut as a blob is."""
    view = memoryview(blob).cast("B")
    ends = ends_of(view)
    digests = tuple(chunk_digest(view[begin:end]) for begin, end in zip((0, *ends[:-1]), ends, strict=True))
    return Chunks(ends, digests, root_of(ends, digests))


def matches(blob: Any, digest: str) -> bool:
    """Whether these are the bytes that ``digest`` stands for."""
    try:
        return digest_chunks(blob).root == digest
    except StateInvalid:
        return False


def blob_bytes(flat: Flat) -> int:
    return flat.payload_bytes + tail_bytes(flat, len(flat.index))


def tail_bytes(flat: Flat, index_bytes: int) -> int:
    """What follows the payload where the index has ``index_bytes``."""
    return index_bytes + len(_packed_ends(flat.specs)) + TRAILER_BYTES


@functools.lru_cache(maxsize=256)
def _packed_ends(specs: tuple[Spec, ...]) -> bytes:
    ends = chunk_ends(specs)
    return struct.pack(f"<{len(ends)}Q", *ends)


def write_tail(buffer: Any, offset: int, flat: Flat) -> int:
    """Write what follows the payload of the blob that begins at ``offset``; returns the blob's size in bytes."""
    ends = _packed_ends(flat.specs)
    trailer = _TRAILER.pack(flat.payload_bytes, len(flat.index), len(ends) // 8, MAGIC)
    tail = b"".join((flat.index, ends, trailer))
    begin = offset + flat.payload_bytes
    buffer[begin : begin + len(tail)] = tail
    return flat.payload_bytes + len(tail)


def pack(flat: Flat) -> bytearray:
    """The blob in memory of its own."""
    buffer = bytearray(blob_bytes(flat))
    if flat.payload_bytes:
        LeafViews(flat.specs, buffer, 0).fill(flat.leaves)
    write_tail(buffer, 0, flat)
    return buffer


def unpack(blob: "np.ndarray[Any, Any]", digest: str) -> Any:
    """The tree in ``blob`` (uint8, writable, owned by the caller, who must not reuse it: arrays are views of it).

    Raises StateInvalid unless the bytes have ``digest``.
    """
    check_root(digest_chunks(blob).root, digest)
    return unpack_verified(blob)


def unpack_verified(blob: "np.ndarray[Any, Any]") -> Any:
    """The tree in a blob whose chunks were verified one by one."""
    payload, index, _ = _frame(memoryview(blob.data).cast("B"))
    return unflatten(blob[payload : payload + index].tobytes(), blob[:payload])


def item_sizes(blob: Any, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Bytes of one element in each piece of a blob, as far as the piece is of one large leaf; 1 elsewhere."""
    specs = decode_index(index_of(blob)).leaves
    offsets, _ = offsets_of(specs)
    large = [
        (at, at + leaf_bytes(s), item_bytes(s))
        for at, s in zip(offsets, specs, strict=True)
        if leaf_bytes(s) >= LARGE_BYTES
    ]
    begins = [begin for begin, _, _ in large]
    sizes = []
    for begin, _ in ranges:
        at = bisect.bisect_right(begins, begin) - 1
        sizes.append(large[at][2] if at >= 0 and begin < large[at][1] else 1)
    return sizes


def index_of(blob: Any) -> bytes:
    """The index of a blob."""
    view = memoryview(blob).cast("B")
    payload, index, _ = _frame(view)
    return bytes(view[payload : payload + index])


def _tail_bytes(view: memoryview) -> int:
    payload, *_ = _TRAILER.unpack(view[-TRAILER_BYTES:])
    return view.nbytes - int(payload)


def tail_begin(end: Any, size_bytes: int) -> int:
    """Where the payload of a blob of ``size_bytes`` ends, by its last bytes (TRAILER_BYTES at least). Raises StateInvalid."""
    return _trailer(memoryview(end).cast("B"), size_bytes)[0]


def index_in(tail: Any) -> bytes:
    """The index, out of all that follows the payload of a blob that was found sound."""
    view = memoryview(tail).cast("B")
    return bytes(view[: _TRAILER.unpack(view[-TRAILER_BYTES:])[1]])


def _trailer(end: memoryview, size_bytes: int) -> tuple[int, int, int]:
    """Bytes of the payload, bytes of the index, and the number of chunk ends."""
    if end.nbytes < TRAILER_BYTES:
        raise StateInvalid(f"a state group of {size_bytes} bytes is shorter than its trailer")
    payload, index, count, magic = _TRAILER.unpack(end[-TRAILER_BYTES:])
    if magic != MAGIC or payload % PAGE_BYTES or payload + index + 8 * count + TRAILER_BYTES != size_bytes:
        raise StateInvalid("a state group has no valid trailer: its bytes are damaged, or it is cut short")
    return payload, index, count


def _frame(view: memoryview) -> tuple[int, int, tuple[int, ...]]:
    """Bytes of the payload, bytes of the index, and where the payload's chunks end."""
    payload, index, count = _trailer(view, view.nbytes)
    ends = struct.unpack_from(f"<{count}Q", view, payload + index)
    begins = (0, *ends[:-1])
    sound = all(
        begin < end <= begin + CHUNK_BYTES and end % PAGE_BYTES == 0 for begin, end in zip(begins, ends, strict=False)
    )
    if not sound or (ends[-1] if ends else 0) != payload:
        raise StateInvalid("a state group is not cut into chunks the way keepstep cuts: its bytes are damaged")
    return payload, index, ends
