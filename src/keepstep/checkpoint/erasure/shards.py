"""The bytes of a shard around its blocks: header, digest table, seal. Owns the format; no I/O.

    header   fields below, the object's key, zeros, BLAKE3 of all before it: 4096 bytes
    table    stripes x (k + m) digests (BLAKE3, 32 bytes): of every block of *every* shard, the same in each
    seal     magic, root digest, the first 8 bytes of BLAKE3 of both

Each shard carries the whole table (32 bytes for each block), so that one healthy shard is enough to judge every block of
all the others: a shard with a damaged header or table still gives its blocks, and a shard of another object gives none. The
root digest covers the key, the geometry and the table, and so every byte of the object; a manifest should keep it.
"""

import struct
from typing import Any

import numpy as np
from blake3 import blake3

from keepstep.checkpoint.erasure.field import Bytes
from keepstep.checkpoint.erasure.layout import DIGEST_BYTES, HEADER_BYTES, Geometry
from keepstep.checkpoint.errors import StateInvalid

MAGIC, SEAL_MAGIC = b"KSSHARD1", b"KSSHEND1"
MAX_KEY_BYTES = 1000  # a shard's name is longer, and a store takes 1024
VERSION = 1
_FIELDS = struct.Struct(
    "<8sHHBBBxIQH"
)  # magic, version, header bytes, k, m, shard, block bytes, object bytes, key bytes
_ROOT_OF = b"keepstep erasure table 1\0"


class Misplaced(StateInvalid):
    """A sound shard that is not the one its name says."""


def block_digest(block: Any) -> bytes:
    """Releases the GIL."""
    return blake3(block).digest()


def root_digest(key: str, geometry: Geometry, table: Any) -> bytes:
    """Of an object; see the module."""
    hasher = blake3(_ROOT_OF)
    hasher.update(_fields(key, geometry, 0xFF))
    hasher.update(table)
    return hasher.digest()


def root_text(root: bytes) -> str:
    return f"ec1-{root.hex()}"


def _fields(key: str, geometry: Geometry, shard: int) -> bytes:
    name = key.encode()
    if not 1 <= len(name) <= MAX_KEY_BYTES:
        raise ValueError(f"a key of {len(name)} bytes is not possible: 1 to {MAX_KEY_BYTES}")
    shape = (geometry.data, geometry.parity, shard, geometry.block_bytes, geometry.size_bytes)
    return _FIELDS.pack(MAGIC, VERSION, HEADER_BYTES, *shape, len(name)) + name


def header(key: str, geometry: Geometry, shard: int) -> bytes:
    body = _fields(key, geometry, shard).ljust(HEADER_BYTES - DIGEST_BYTES, b"\0")
    return body + block_digest(body)


def footer(table: Any, root: bytes) -> bytes:
    return bytes(table) + _seal(root)


def _seal(root: bytes) -> bytes:
    return SEAL_MAGIC + root + block_digest(SEAL_MAGIC + root)[:8]


def read_seal(data: Any) -> bytes:
    """The root digest that a shard claims. Raises StateInvalid if these bytes are damaged."""
    root = bytes(data)[len(SEAL_MAGIC) :][:DIGEST_BYTES]
    if bytes(data) != _seal(root):
        raise StateInvalid("its seal is damaged")
    return root


def read_header(data: Any, key: str, shard: int) -> Geometry:
    """The shape of shard ``shard`` of ``key``. Raises StateInvalid that says what is wrong with these bytes."""
    raw = bytes(data)
    if len(raw) != HEADER_BYTES or raw[:8] != MAGIC:
        raise StateInvalid("it does not begin as a shard does")
    if block_digest(raw[:-DIGEST_BYTES]) != raw[-DIGEST_BYTES:]:
        raise StateInvalid("its header is damaged")
    _, version, header_bytes, k, m, number, block_bytes, size_bytes, key_bytes = _FIELDS.unpack_from(raw)
    if version != VERSION or header_bytes != HEADER_BYTES:
        raise StateInvalid(f"it has format {version}: upgrade keepstep to read it")
    geometry = Geometry(data=k, parity=m, block_bytes=block_bytes, size_bytes=size_bytes).check()
    if key_bytes > MAX_KEY_BYTES:
        raise StateInvalid(f"its key has {key_bytes} bytes")
    name = raw[_FIELDS.size : _FIELDS.size + key_bytes].decode(errors="replace")
    if name != key or number != shard or number >= geometry.shards:
        raise Misplaced(f"it is shard {number} of {name!r}, put in place of shard {shard} of {key!r}")
    return geometry


def read_footer(data: Bytes, key: str, geometry: Geometry) -> tuple[Bytes, bytes]:
    """Table (stripes x shards x 32) and root digest. Raises StateInvalid if they are not those of this key and shape."""
    table, seal = data[: geometry.table_bytes], data[geometry.table_bytes :].tobytes()
    root = root_digest(key, geometry, table)
    if seal != _seal(root):
        raise StateInvalid("its digest table is damaged")
    return table.reshape(geometry.stripes, geometry.shards, DIGEST_BYTES), root


def good_blocks(row: Bytes, digests: Bytes) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Which blocks of ``row`` (blocks x bytes) have the ``digests`` (blocks x 32)."""
    return np.array(
        [block_digest(block) == expected.tobytes() for block, expected in zip(row, digests, strict=True)], bool
    )
