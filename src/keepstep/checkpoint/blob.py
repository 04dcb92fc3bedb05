"""The group blob: one named part of a rank's state as one run of bytes with one digest.

    payload (leaves, each padded to 64 bytes) | index (JSON, see tree) | trailer (32 bytes)

The index comes last, because its length changes from step to step while the leaves must stay where they are. The digest
covers every byte. The same bytes stand in a memory slot, on the wire and in a file. Owns this layout; must not do I/O.
"""

import struct
from typing import Any

import numpy as np
import xxhash

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.leaves import LeafViews
from keepstep.checkpoint.tree import Flat, unflatten

MAGIC = b"KSGROUP1"
_TRAILER = struct.Struct("<QQQ8s")  # payload bytes, index bytes, reserved (0), magic
TRAILER_BYTES = _TRAILER.size


def digest_of(data: Any) -> str:
    """Digest of a buffer: ``xxh3-`` and 32 hex digits. The GIL is released meanwhile."""
    return "xxh3-" + xxhash.xxh3_128(data).hexdigest()


def blob_bytes(flat: Flat) -> int:
    return flat.payload_bytes + len(flat.index) + TRAILER_BYTES


def write_tail(buffer: Any, offset: int, flat: Flat) -> int:
    """Write index and trailer of the blob that begins at ``offset``; returns the blob's size in bytes."""
    begin = offset + flat.payload_bytes
    end = begin + len(flat.index)
    buffer[begin:end] = flat.index
    buffer[end : end + TRAILER_BYTES] = _TRAILER.pack(flat.payload_bytes, len(flat.index), 0, MAGIC)
    return end + TRAILER_BYTES - offset


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
    found = digest_of(blob)
    if found != digest:
        raise StateInvalid(f"a state group has digest {found} where {digest} was saved: its bytes are damaged")
    if blob.nbytes < TRAILER_BYTES:
        raise StateInvalid(f"a state group of {blob.nbytes} bytes is shorter than its trailer")
    payload, index, reserved, magic = _TRAILER.unpack(blob[-TRAILER_BYTES:].tobytes())
    if magic != MAGIC or reserved or payload + index + TRAILER_BYTES != blob.nbytes:
        raise StateInvalid("a state group has no valid trailer")
    return unflatten(blob[payload : payload + index].tobytes(), blob[:payload])
