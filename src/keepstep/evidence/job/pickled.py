"""Reads a pickle of plain data without unpickling: an interpreter of the opcodes that build values. Owns its limits.

Whatever could run code (a global, a call, an extension, a persistent id) is refused before anything is done with it. It must
not learn what a dump means.
"""

import struct
from collections.abc import Callable
from typing import Any

MAX_OPERATIONS = 20_000_000
MAX_VALUES = 4_000_000
MAX_DEPTH = 100
_MAX_DIGITS = 64


class Refused(ValueError):
    """The bytes are no pickle of plain data, or a hostile one."""

    def __init__(self, why: str, *, hostile: bool = False) -> None:
        super().__init__(why)
        self.hostile = hostile


HOSTILE = {
    0x63: "GLOBAL", 0x93: "STACK_GLOBAL", 0x52: "REDUCE", 0x62: "BUILD", 0x69: "INST", 0x6F: "OBJ", 0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x50: "PERSID", 0x51: "BINPERSID", 0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}  # fmt: skip
"""Opcodes that call, import or refer outside."""

_MARK = object()


class _Machine:
    """Stack, memo and position. One method for each opcode that is more than a value."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise Refused("cut short")
        raw = self.data[self.at : end]
        self.at = end
        return raw

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise Refused("cut short")
        raw = self.data[self.at : end]
        self.at = end + 1
        return raw

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.last()
        self.stack.pop()
        return value

    def last(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise Refused("takes more than it has")
        return self.stack[-1]

    def to_mark(self) -> list[Any]:
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                items = self.stack[at + 1 :]
                del self.stack[at:]
                return items
        raise Refused("has no mark")

    def top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise Refused("fills what is not there")
        return self.stack[-1]


def loads(data: bytes) -> Any:
    """The value that a pickle of plain data describes. Raises Refused."""
    machine = _Machine(data)
    try:
        _run(machine)
    except (struct.error, UnicodeDecodeError, TypeError, OverflowError) as error:
        raise Refused(f"not plain data: {error}") from None
    value = machine.pop()
    _check_depth(value)
    return value


def _run(machine: _Machine) -> None:
    for _ in range(MAX_OPERATIONS):
        code = machine.take(1)[0]
        if code == 0x2E:  # STOP
            return
        step = _STEPS.get(code)
        if step is None:
            named = HOSTILE.get(code)
            raise Refused(f"opcode {named or hex(code)} is not plain data", hostile=named is not None)
        step(machine)
    raise Refused("endless")


def _check_depth(value: Any) -> None:
    """Nesting is bounded and nothing contains itself: who reads the value may walk it."""
    level, seen = [value], 0
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, (list, tuple)):
                below.extend(item)
        seen += len(below)
        if seen > MAX_VALUES:
            raise Refused("too large")
        level = [item for item in below if isinstance(item, (dict, list, tuple))]
        if not level:
            return
    raise Refused("nests too deeply")


def _length(layout: str, make: Callable[[bytes], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.push(make(m.take(m.number(layout))))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _latin(raw: bytes) -> str:
    return raw.decode("latin-1")


def _long(raw: bytes) -> int:
    if len(raw) > _MAX_DIGITS:
        raise Refused("a number of endless digits")
    return int.from_bytes(raw, "little", signed=True)


def _decimal(machine: _Machine) -> None:
    raw = machine.line()
    if raw in (b"00", b"01"):
        machine.push(raw == b"01")
        return
    if len(raw) > _MAX_DIGITS:
        raise Refused("a number of endless digits")
    try:
        machine.push(int(raw.removesuffix(b"L")))
    except ValueError:
        raise Refused("a number that is none") from None


def _decimal_float(machine: _Machine) -> None:
    try:
        machine.push(float(machine.line()[:_MAX_DIGITS]))
    except ValueError:
        raise Refused("a number that is none") from None


def _quoted(machine: _Machine) -> None:
    raw = machine.line()
    if len(raw) < 2 or raw[:1] not in b"'\"" or raw[-1:] != raw[:1]:
        raise Refused("text without quotes")
    machine.push(_latin(raw[1:-1]))


def _append(machine: _Machine) -> None:
    item = machine.pop()
    machine.top(list).append(item)


def _appends(machine: _Machine) -> None:
    items = machine.to_mark()
    machine.top(list).extend(items)


def _put_all(target: dict[Any, Any], items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=False):
        if not isinstance(key, (str, bytes, int, float, bool, tuple, type(None))):
            raise Refused("a key that is none")
        target[key] = value


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _put_all(machine.top(dict), [key, value])


def _set_items(machine: _Machine) -> None:
    items = machine.to_mark()
    _put_all(machine.top(dict), items)


def _dict(machine: _Machine) -> None:
    made: dict[Any, Any] = {}
    _put_all(made, machine.to_mark())
    machine.push(made)


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    def make(machine: _Machine) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.push(tuple(reversed(items)))

    return make


def _put(read: Callable[[_Machine], int]) -> Callable[[_Machine], None]:
    def store(machine: _Machine) -> None:
        at = read(machine)
        machine.memo[at] = machine.last()

    return store


def _get(read: Callable[[_Machine], int]) -> Callable[[_Machine], None]:
    def fetch(machine: _Machine) -> None:
        at = read(machine)
        if at not in machine.memo:
            raise Refused("asks for what was not kept")
        machine.push(machine.memo[at])

    return fetch


def _line_number(machine: _Machine) -> int:
    raw = machine.line()
    if not raw.isdigit() or len(raw) > 12:
        raise Refused("a memo key that is none")
    return int(raw)


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.last()


def _discard(machine: _Machine) -> None:
    if not machine.stack:
        raise Refused("takes more than it has")
    machine.stack.pop()


def _dup(machine: _Machine) -> None:
    value = machine.pop()
    machine.stack += [value, value]


_STEPS: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda m: m.take(1), 0x95: lambda m: m.take(8),
    0x28: lambda m: m.push(_MARK), 0x30: _discard, 0x31: _Machine.to_mark, 0x32: _dup,
    0x4E: lambda m: m.push(None), 0x88: lambda m: m.push(True), 0x89: lambda m: m.push(False),
    0x49: _decimal, 0x4C: _decimal, 0x46: _decimal_float,
    0x4A: lambda m: m.push(m.number("<i")), 0x4B: lambda m: m.push(m.number("<B")),
    0x4D: lambda m: m.push(m.number("<H")), 0x47: lambda m: m.push(m.number(">d")),
    0x8A: _length("<B", _long), 0x8B: _length("<i", _long),
    0x53: _quoted, 0x54: _length("<i", _latin), 0x55: _length("<B", _latin),
    0x42: _length("<I", bytes), 0x43: _length("<B", bytes), 0x8E: _length("<Q", bytes), 0x96: _length("<Q", bytes),
    0x56: lambda m: m.push(m.line().decode("raw-unicode-escape")), 0x58: _length("<I", _text), 0x8C: _length("<B", _text),
    0x8D: _length("<Q", _text),
    0x29: lambda m: m.push(()), 0x74: lambda m: m.push(tuple(m.to_mark())),
    0x85: _tuple_of(1), 0x86: _tuple_of(2), 0x87: _tuple_of(3),
    0x5D: lambda m: m.push([]), 0x6C: lambda m: m.push(m.to_mark()), 0x61: _append, 0x65: _appends,
    0x7D: lambda m: m.push({}), 0x64: _dict, 0x73: _set_item, 0x75: _set_items,
    0x70: _put(_line_number), 0x71: _put(lambda m: int(m.number("<B"))), 0x72: _put(lambda m: int(m.number("<I"))),
    0x67: _get(_line_number), 0x68: _get(lambda m: int(m.number("<B"))), 0x6A: _get(lambda m: int(m.number("<I"))),
    0x94: _memoize,
}  # fmt: skip
