"""Archive files of the journal: entries that were moved out, to the byte, so that the whole chain can still be proven.

``journal-<from>-<to>.ksj`` is gzip over frames: four bytes of length, then msgpack. The first frame is the Header, then one
StoredEntry each, then the Trailer. Owns this format; must not decide what is moved.
"""

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from keepstep.adapters.memory.chain import digest
from keepstep.ports import JournalCorrupt, StoredEntry
from keepstep.wire.messages import MAX_FRAME_BYTES

FORMAT = 1
COMPRESSION = 6
_NAME = re.compile(r"journal-(\d+)-(\d+)\.ksj")


class Header(Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    format: int
    first: int
    prev: bytes
    """Hash of the entry before ``first``."""


class Trailer(Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Without it the file was cut off."""

    last: int
    hash: bytes


class _Row(Struct, frozen=True, array_like=True, tag=True):
    seq: int
    at_s: float
    body: bytes
    hash: bytes


class Archived(Struct, frozen=True, kw_only=True):
    """What one file holds."""

    path: str
    first: int
    last: int
    prev: str
    """Hex, of the entry before the first."""
    hash: str
    """Hex, of the last entry."""
    digest: str
    """BLAKE2b-256 of the file, hex."""


_decoder = msgspec.msgpack.Decoder(Header | _Row | Trailer)
_encode = msgspec.msgpack.Encoder().encode


def name_of(first: int, last: int) -> str:
    return f"journal-{first:012d}-{last:012d}.ksj"


def write(directory: Path, first: int, last: int, entries: Iterable[StoredEntry]) -> Archived:
    """Durable when it returns. ``entries``: from ``first`` on; more than to ``last`` may come. Raises OSError, ValueError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / name_of(first, last)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as raw:
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=COMPRESSION, mtime=0) as file:
                prev, hashed = _write_rows(file, first, last, entries)
            raw.flush()
            os.fsync(raw.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _sync(directory)
    return Archived(
        path=str(path), first=first, last=last, prev=prev.hex(), hash=hashed.hex(), digest=digest_of(path)
    )  # fmt: skip


def _write_rows(file: gzip.GzipFile, first: int, last: int, entries: Iterable[StoredEntry]) -> tuple[bytes, bytes]:
    prev: bytes | None = None
    hashed, seq = b"", first - 1
    for entry in entries:
        if entry.seq > last:
            break
        if prev is None:
            prev = entry.prev
            _put(file, Header(format=FORMAT, first=first, prev=prev))
        _put(file, _Row(entry.seq, entry.at_s, entry.body, entry.hash))
        hashed, seq = entry.hash, entry.seq
    if prev is None or seq != last:
        raise ValueError(f"the journal has no entries {first} to {last}; it ends with {seq}")
    _put(file, Trailer(last=last, hash=hashed))
    return prev, hashed


def _put(file: gzip.GzipFile, frame: Header | _Row | Trailer) -> None:
    body = _encode(frame)
    file.write(len(body).to_bytes(4, "big") + body)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def files(directory: Path) -> list[Path]:
    """Archive files, in the order of their entries."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))


def read(path: Path) -> Iterator[Header | StoredEntry]:
    """The header, then the entries, each checked against the chain. Raises JournalCorrupt at the first bad one."""
    where, seq, prev = str(path), 0, b""
    try:
        with gzip.GzipFile(path, "rb") as file:
            for frame in _frames(file):
                match frame:
                    case Header():
                        seq, prev = frame.first - 1, frame.prev
                        yield frame
                    case _Row():
                        if frame.seq != seq + 1 or digest(prev, frame.seq, frame.at_s, frame.body) != frame.hash:
                            raise JournalCorrupt(seq + 1, "does not match its hash: it was edited or damaged", where)
                        yield StoredEntry(seq=frame.seq, at_s=frame.at_s, body=frame.body, prev=prev, hash=frame.hash)
                        seq, prev = frame.seq, frame.hash
                    case Trailer():
                        if (frame.last, frame.hash) != (seq, prev):
                            raise JournalCorrupt(seq + 1, "is missing", where)
                        return
    except (OSError, EOFError, ValueError, zlib.error, msgspec.DecodeError) as error:
        raise JournalCorrupt(seq + 1, f"cannot be read ({error})", where) from error
    raise JournalCorrupt(seq + 1, "is missing: the file was cut off", where)


def _frames(file: gzip.GzipFile) -> Iterator[Header | _Row | Trailer]:
    while head := file.read(4):
        size = int.from_bytes(head, "big")
        if len(head) < 4 or size > 2 * MAX_FRAME_BYTES:
            raise ValueError("a frame is cut off, or far too long")
        body = file.read(size)
        if len(body) < size:
            raise EOFError("a frame is cut off")
        yield _decoder.decode(body)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
