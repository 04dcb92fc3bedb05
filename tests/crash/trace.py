"""What a program did to its files, as the fault layer wrote it down. Owns the reading of a trace."""

import struct
from enum import IntFlag
from pathlib import Path
from typing import NamedTuple

from tests.crash.layer import Op

_HEAD = struct.Struct("<BBiqQqqIHHI")


class Flag(IntFlag):
    """What else there is to say of a call."""

    CREATED = 1
    TRUNCATED = 2
    DURABLE = 4
    """The write was synced by itself (O_DSYNC)."""
    EXCHANGE = 8
    KEEP_SIZE = 16
    PUNCH = 32


class Call(NamedTuple):
    """One call. ``number`` is its boundary, of those that look or of those that change something."""

    op: Op
    looks: bool
    error: int
    number: int
    inode: int
    offset: int
    length: int
    flags: int
    path: str
    path2: str
    data: bytes

    def __str__(self) -> str:
        where = f"{self.path} -> {self.path2}" if self.path2 else self.path
        return f"{'look' if self.looks else 'change'} {self.number}: {self.op.name.lower()} {where}"


def read_trace(path: Path) -> list[Call]:
    """All calls in order. A record that the end of the process cut off is left out."""
    data, at, calls = path.read_bytes(), 0, []
    while at + _HEAD.size <= len(data):
        op, looks, error, number, inode, offset, length, flags, *lengths = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        parts = []
        for size in lengths:
            parts.append(data[at : at + size])
            at += size
        if at > len(data):
            break
        call = Call(
            Op(op),
            bool(looks),
            error,
            number,
            inode,
            offset,
            length,
            flags,
            parts[0].decode(),
            parts[1].decode(),
            parts[2],
        )
        calls.append(call)
    return calls
