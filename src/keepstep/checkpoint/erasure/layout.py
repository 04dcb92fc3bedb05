"""How an object of any length becomes k + m shards: which byte stands in which block. Owns the arithmetic; no bytes, no I/O.

    object  =  stripe 0 | stripe 1 | … | tail          a stripe is k blocks of ``block_bytes``, shard 0's block first
    shard n =  header (4096) | block n of each full stripe | block n of the tail | digest table | seal

The tail (what is left over) is cut into k blocks of its own length, zero-padded to a multiple of 64, so that a small object is
not blown up. Blocks of full stripes begin at multiples of 4096 in a shard: direct I/O, and any run of stripes is one read.
"""

from typing import NamedTuple

from msgspec import Struct

from keepstep.checkpoint.erasure.coder import MAX_SHARDS
from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.stores.port import BLOCK_BYTES

HEADER_BYTES = BLOCK_BYTES
DIGEST_BYTES = 32
SEAL_BYTES = 8 + DIGEST_BYTES + 8
TAIL_ALIGN_BYTES = 64
DEFAULT_BLOCK_BYTES = 512 * 1024
"""Measured on whole puts: 256 KiB (more calls) and 1 MiB (stripes leave the cache) take 10 to 15 % more of a core."""
MAX_BLOCK_BYTES = 4 * 1024 * 1024
MAX_STRIPE_BYTES = 128 * 1024 * 1024
"""Of all k + m blocks: what a shard's header can make a reader allocate for a stripe."""
MAX_TABLE_BYTES = 64 * 1024 * 1024


class Window(NamedTuple):
    """A run of stripes whose blocks have one length, so that each shard's part of it is one run of bytes."""

    first: int
    stripes: int
    block_bytes: int
    shard_offset: int
    """Where its blocks begin in every shard."""
    object_offset: int
    """Of the first byte of its first block."""


class Geometry(Struct, frozen=True, kw_only=True):
    """The shape of one object's shards. Raises StateInvalid (from :meth:`check`) where no such shape is written."""

    data: int
    parity: int
    block_bytes: int
    size_bytes: int
    """Of the object."""

    def check(self) -> "Geometry":
        """Itself. Nothing may be allocated after an unchecked geometry."""
        if self.data < 1 or self.parity < 1 or self.shards > MAX_SHARDS:
            raise StateInvalid(f"no {self.data}+{self.parity} code exists")
        if not BLOCK_BYTES <= self.block_bytes <= MAX_BLOCK_BYTES or self.block_bytes % BLOCK_BYTES:
            raise StateInvalid(
                f"blocks of {self.block_bytes} bytes are not possible: a multiple of {BLOCK_BYTES}, at most {MAX_BLOCK_BYTES}"
            )
        if self.block_bytes * self.shards > MAX_STRIPE_BYTES:
            raise StateInvalid(
                f"a stripe of {self.shards} blocks of {self.block_bytes} bytes is over the limit of {MAX_STRIPE_BYTES} bytes"
            )
        if self.size_bytes < 0 or self.table_bytes > MAX_TABLE_BYTES:
            raise StateInvalid(
                f"an object of {self.size_bytes} bytes is too large for blocks of {self.block_bytes} bytes"
            )
        return self

    @property
    def shards(self) -> int:
        return self.data + self.parity

    @property
    def full_stripes(self) -> int:
        return self.size_bytes // (self.data * self.block_bytes)

    @property
    def tail_bytes(self) -> int:
        """Of one block of the tail: 0 if there is none."""
        rest = self.size_bytes - self.full_stripes * self.data * self.block_bytes
        return -(-rest // (self.data * TAIL_ALIGN_BYTES)) * TAIL_ALIGN_BYTES

    @property
    def stripes(self) -> int:
        return self.full_stripes + (self.tail_bytes > 0)

    @property
    def table_bytes(self) -> int:
        return self.stripes * self.shards * DIGEST_BYTES

    @property
    def table_offset(self) -> int:
        return HEADER_BYTES + self.full_stripes * self.block_bytes + self.tail_bytes

    @property
    def shard_bytes(self) -> int:
        return self.table_offset + self.table_bytes + SEAL_BYTES

    def window(self, first: int, stripes: int) -> Window:
        """Of full stripes, or of the tail alone."""
        tail = first == self.full_stripes
        return Window(
            first=first,
            stripes=stripes,
            block_bytes=self.tail_bytes if tail else self.block_bytes,
            shard_offset=HEADER_BYTES + first * self.block_bytes,
            object_offset=first * self.data * self.block_bytes,
        )

    def windows(self, begin: int, end: int, most_bytes: int) -> list[Window]:
        """Windows over bytes ``begin`` to ``end`` of the object, each with at most ``most_bytes`` of data, or one stripe."""
        if begin >= end:
            return []
        stripe_bytes = self.data * self.block_bytes
        first, past = begin // stripe_bytes, -(-end // stripe_bytes)
        step = max(1, most_bytes // stripe_bytes)
        full = min(past, self.full_stripes)
        made = [self.window(n, min(step, full - n)) for n in range(first, full, step)]
        return made if past <= self.full_stripes else [*made, self.window(self.full_stripes, 1)]
