"""Splits the bytes of a pickle into its operations. Owns how arguments are written; gives them no meaning.

``pickletools`` has the table of opcodes. Its own reader is not used: it warns about odd text where this must refuse, and
the index of a large checkpoint has tens of millions of operations.
"""

import pickletools
import struct
from collections.abc import Callable, Iterator
from typing import Any

from keepstep.checkpoint.errors import StateInvalid

_Reader = Callable[[bytes, int], tuple[Any, int]]
_MAX_DIGITS = 4000


class Source:
    """The bytes, and where the next operation begins."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.count = 0


def operations(source: Source) -> Iterator[tuple[str, Any]]:
    """Name and argument of each operation up to and with STOP. Raises StateInvalid for bytes that are no pickle."""
    data, at, size = source.data, source.at, len(source.data)
    name = ""
    while name != "STOP":
        if at >= size or (entry := _TABLE[data[at]]) is None:
            raise StateInvalid("a pickle is cut short, or is none")
        name, reader = entry
        at += 1
        arg = None
        if reader is not None:
            arg, at = reader(data, at)
        source.count += 1
        yield name, arg
    source.at = at


def _take(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    end = at + count
    if end > len(data):
        raise StateInvalid("a pickle is cut short")
    return data[at:end], end


def _line(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\n", at)
    if end < 0:
        raise StateInvalid("a pickle is cut short")
    return data[at:end].decode(), end + 1


def _number(layout: str) -> _Reader:
    packed = struct.Struct(layout)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return packed.unpack_from(data, at)[0], at + packed.size

    return read


def _run(layout: str, make: Callable[[bytes], Any]) -> _Reader:
    """A length, and so many bytes."""
    packed = struct.Struct(layout)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        count = packed.unpack_from(data, at)[0]
        if count < 0:
            raise StateInvalid("a pickle has a length below zero")
        raw, end = _take(data, at + packed.size, count)
        return make(raw), end

    return read


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _latin(raw: bytes) -> str:
    return raw.decode("latin-1")


def _long(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _decimal(data: bytes, at: int) -> tuple[Any, int]:
    text, at = _line(data, at)
    if len(text) > _MAX_DIGITS:
        raise StateInvalid("a pickle has a number of endless digits")
    if text in ("00", "01"):
        return text == "01", at
    return int(text.removesuffix("L")), at


def _float(data: bytes, at: int) -> tuple[Any, int]:
    text, at = _line(data, at)
    return float(text), at


def _quoted(data: bytes, at: int) -> tuple[Any, int]:
    """Text of the oldest protocol. Escapes in it are refused: nothing that is read here writes any."""
    text, at = _line(data, at)
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0] or "\\" in text:
        raise StateInvalid("a pickle has quoted text that is not read here")
    return text[1:-1], at


def _raw_text(data: bytes, at: int) -> tuple[Any, int]:
    end = data.find(b"\n", at)
    if end < 0:
        raise StateInvalid("a pickle is cut short")
    return data[at:end].decode("raw-unicode-escape"), end + 1


def _pair(data: bytes, at: int) -> tuple[Any, int]:
    module, at = _line(data, at)
    name, at = _line(data, at)
    return (module, name), at


_READERS: dict[str, _Reader] = {
    "uint1": _number("<B"), "uint2": _number("<H"), "int4": _number("<i"), "uint4": _number("<I"), "uint8": _number("<Q"),
    "float8": _number(">d"), "floatnl": _float, "decimalnl_short": _decimal, "decimalnl_long": _decimal,
    "long1": _run("<B", _long), "long4": _run("<i", _long),
    "string1": _run("<B", _latin), "string4": _run("<i", _latin), "stringnl": _quoted, "stringnl_noescape": _line,
    "stringnl_noescape_pair": _pair, "bytes1": _run("<B", bytes), "bytes4": _run("<I", bytes),
    "bytes8": _run("<Q", bytes), "bytearray8": _run("<Q", bytes), "unicodestringnl": _raw_text,
    "unicodestring1": _run("<B", _text), "unicodestring4": _run("<I", _text), "unicodestring8": _run("<Q", _text),
}  # fmt: skip


def _entry(code: int) -> tuple[str, _Reader | None] | None:
    known: Any = pickletools.code2op.get(chr(code))  # type: ignore[attr-defined]
    if known is None:
        return None
    return known.name, None if known.arg is None else _READERS[known.arg.name]


_TABLE = tuple(map(_entry, range(256)))
