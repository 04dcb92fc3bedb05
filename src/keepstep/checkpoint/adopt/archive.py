"""The zip container of ``torch.save``: where each record's bytes are, and its CRC-32. Reads no record.

Only stored records are accepted (torch writes no others), so nothing can grow when it is read; records must not overlap,
must lie between the start and the directory, and nothing may follow the end.
"""

import struct

from msgspec import Struct

from keepstep.checkpoint.adopt.reading import Reader
from keepstep.checkpoint.errors import StateInvalid

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX_DIRECTORY_BYTES = 256 * 1024 * 1024
_FULL = 0xFFFFFFFF


class Entry(Struct, frozen=True):
    """A record. ``offset`` counts from the start of the file, not of the archive."""

    offset: int
    size_bytes: int
    crc32: int


def read_archive(reader: Reader, begin: int, size: int) -> dict[str, Entry]:
    """The records of the archive that fills ``size`` bytes from ``begin`` on. Raises StateInvalid."""
    try:
        directory, count, bound = _directory(reader, begin, size)
        entries = _entries(directory, count)
    except struct.error as error:
        raise StateInvalid(f"{reader.path.name}: the directory of an archive is cut short") from error
    found: dict[str, Entry] = {}
    for name, header, length, crc32 in entries:
        if name in found:
            raise StateInvalid(f"{reader.path.name}: two records are named {name[:100]!r}")
        found[name] = Entry(_data_offset(reader, begin, bound, header, name), length, crc32)
    end = begin
    for entry in sorted(found.values(), key=lambda entry: entry.offset):
        if entry.offset < end or entry.offset + entry.size_bytes > begin + bound:
            raise StateInvalid(f"{reader.path.name}: records of an archive overlap or reach beyond its directory")
        end = entry.offset + entry.size_bytes
    return found


def _directory(reader: Reader, begin: int, size: int) -> tuple[bytes, int, int]:
    """The bytes of the central directory, its number of entries, and where it begins in the archive."""
    if size < _END.size:
        raise StateInvalid(f"{reader.path.name}: an archive of {size} bytes is cut short")
    end_at = size - _END.size
    magic, disk, disk2, here, count, length, offset, comment = _END.unpack(reader.read(begin + end_at, _END.size))
    if magic != b"PK\5\6" or comment or disk or disk2 or here != count:
        raise StateInvalid(f"{reader.path.name}: no archive ends where it should: it is cut short, or bytes follow it")
    stop = end_at
    if end_at >= _LOCATOR.size:
        magic, _, at, _ = _LOCATOR.unpack(reader.read(begin + end_at - _LOCATOR.size, _LOCATOR.size))
        if magic == b"PK\6\7":
            if at > end_at - _END64.size:
                raise StateInvalid(f"{reader.path.name}: the end of an archive points outside of it")
            fields = _END64.unpack(reader.read(begin + at, _END64.size))
            magic, count, length, offset = fields[0], *fields[7:10]
            if magic != b"PK\6\6":
                raise StateInvalid(f"{reader.path.name}: the end of an archive is damaged")
            stop = at
    if offset + length > stop or length > _MAX_DIRECTORY_BYTES or count > length // _ENTRY.size:
        raise StateInvalid(f"{reader.path.name}: the directory of an archive does not fit into it")
    return reader.read(begin + offset, length), count, offset


def _entries(directory: bytes, count: int) -> list[tuple[str, int, int, int]]:
    """Name, offset of the local header, size, CRC-32."""
    entries, at = [], 0
    for _ in range(count):
        fields = _ENTRY.unpack_from(directory, at)
        magic, flags, method, crc32, packed, length = fields[0], fields[3], fields[4], fields[7], fields[8], fields[9]
        name_bytes, extra_bytes, comment_bytes, header = fields[10], fields[11], fields[12], fields[16]
        at += _ENTRY.size
        raw, extra = directory[at : at + name_bytes], directory[at + name_bytes : at + name_bytes + extra_bytes]
        at += name_bytes + extra_bytes + comment_bytes
        if magic != b"PK\1\2" or at > len(directory):
            raise StateInvalid("the directory of an archive is damaged")
        if method or flags & 1:
            raise StateInvalid("a record of an archive is compressed or encrypted: torch.save writes no such thing")
        length, packed, header = _wide(extra, length, packed, header)
        if packed != length:
            raise StateInvalid("a record of an archive has two sizes")
        entries.append((_name(raw), header, length, crc32))
    return entries


def _wide(extra: bytes, length: int, packed: int, header: int) -> tuple[int, int, int]:
    """Sizes from the 64-bit field, for those that say that they are there."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            field, used = extra[at + 4 : at + 4 + size], 0
            values = [length, packed, header]
            for position, value in enumerate(values):
                if value == _FULL:
                    values[position] = struct.unpack_from("<Q", field, used)[0]
                    used += 8
            return values[0], values[1], values[2]
        at += 4 + size
    return length, packed, header


def _name(raw: bytes) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise StateInvalid("a record of an archive has a name that is not UTF-8") from error
    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise StateInvalid("a record of an archive is named as if it were outside of it")
    return name


def _data_offset(reader: Reader, begin: int, bound: int, header: int, name: str) -> int:
    raw = name.encode()
    if header + _LOCAL.size + len(raw) > bound:
        raise StateInvalid(f"{reader.path.name}: a record of an archive begins outside of it")
    local = reader.read(begin + header, _LOCAL.size + len(raw))
    fields = _LOCAL.unpack_from(local)
    if fields[0] != b"PK\3\4" or fields[9] != len(raw) or local[_LOCAL.size :] != raw:
        raise StateInvalid(f"{reader.path.name}: the record {name[:100]!r} of an archive is not where it should be")
    name_bytes, extra_bytes = struct.unpack("<2H", local[26:30])
    return begin + header + _LOCAL.size + int(name_bytes) + int(extra_bytes)
