"""Reads pickles without running them. Owns a machine for pickle opcodes in which nothing is ever imported or called.

``opcodes`` splits the bytes; the machine below builds plain containers. A name (``os.system``) becomes a
:class:`Global`, a call of it a :class:`Record`, which only say what stood there. The few constructors that are needed to
know what a file holds are functions of this package, in a table that the caller passes: names outside it mean nothing.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keepstep.checkpoint.adopt.opcodes import Source, operations
from keepstep.checkpoint.errors import StateInvalid

MAX_PICKLE_BYTES = 512 * 1024 * 1024
MAX_OPERATIONS = 50_000_000
"""At worst one takes some 150 bytes. The index of a DCP save has about a hundred for each shard of a tensor."""
_MAX_KEY_ITEMS = 64
RESULT = "the result of another call"
"""The name of a :class:`Record` that calls what a call returned. Nothing that is read here does that."""


class Global:
    """A dotted name that a pickle mentions. Nothing of that name was looked up."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Record:
    """An object that only a call would make: what would have been called, with what. Compared by identity."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.args = args
        self.state: Any = None

    def build(self, state: Any) -> None:
        self.state = state


Constructors = Mapping[str, Callable[..., Any]]


class Unpickled(NamedTuple):
    value: Any
    end: int
    """Where in the bytes the pickle ends."""
    operations: int
    """How many it took: a value that is not made of shared parts has no more parts than that."""
    names: tuple[str, ...]
    """Every dotted name that it mentions outside the table, in order: what a real unpickler would have imported."""


def _no_persistent_id(_: Any) -> Any:
    raise StateInvalid("a pickle refers to data outside of itself where its format has none")


def read_pickle(
    data: bytes, constructors: Constructors, persistent: Callable[[Any], Any] = _no_persistent_id
) -> Unpickled:
    """The value that ``data`` begins with. Raises StateInvalid for anything malformed; never another exception.

    ``persistent``: what stands for a persistent id.
    """
    if len(data) > MAX_PICKLE_BYTES:
        raise StateInvalid(f"a pickle of {len(data)} bytes is larger than any that is read here")
    source = Source(data)
    machine = _Machine(constructors, persistent)
    try:
        for name, arg in operations(source):
            machine.step(name, arg)
            if source.count > MAX_OPERATIONS:
                raise StateInvalid("a pickle has more operations than any that is read here")
        value = machine.stack.pop()
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, RecursionError) as error:
        raise StateInvalid(f"a pickle is malformed: {str(error)[:200]}") from error
    except struct.error as error:
        raise StateInvalid("a pickle is malformed: a number is cut short") from error
    return Unpickled(value, source.at, source.count, tuple(sorted(machine.names)))


class _Machine:
    def __init__(self, constructors: Constructors, persistent: Callable[[Any], Any]) -> None:
        self.stack: list[Any] = []
        self.names: set[str] = set()
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._constructors = constructors
        self._persistent = persistent

    def step(self, name: str, arg: Any) -> None:
        if name in _PUSHED:
            self.stack.append(arg)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif (handler := _HANDLERS.get(name)) is not None:
            handler(self, arg)
        else:
            raise StateInvalid(f"a pickle uses {name}, which no checkpoint format does")

    def pop_mark(self) -> list[Any]:
        at = self._marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def mark(self, _: Any) -> None:
        self._marks.append(len(self.stack))

    def pop(self, _: Any) -> None:
        if self._marks and self._marks[-1] == len(self.stack):
            self._marks.pop()
        else:
            self.stack.pop()

    def put(self, arg: Any) -> None:
        self._memo[len(self._memo) if arg is None else arg] = self.stack[-1]

    def get(self, arg: Any) -> None:
        self.stack.append(self._memo[arg])

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise StateInvalid("a pickle takes more than is there")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(items)

    def append_all(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) is not Record:
            raise StateInvalid("a pickle appends to something that is no list")

    def set_all(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is dict or type(target) is OrderedDict:
            for key, value in zip(items[::2], items[1::2], strict=True):
                target[_key(key)] = value
        elif type(target) is not Record:
            raise StateInvalid("a pickle sets items of something that is no dict")

    def call(self, what: Any, args: Any) -> None:
        if type(what) is not Global or type(args) is not tuple:
            self.names.add(RESULT)
            self.stack.append(Record(RESULT, args if type(args) is tuple else ()))
            return
        constructor = self._constructors.get(what.name)
        if constructor is None:
            self.stack.append(Record(what.name, args))
        else:
            self.stack.append(constructor(*args))

    def reduce(self, _: Any) -> None:
        args, what = self.stack.pop(), self.stack.pop()
        self.call(what, args)

    def new_with_keywords(self, _: Any) -> None:
        self.stack.pop()
        self.reduce(None)

    def inst(self, arg: tuple[str, str]) -> None:
        args = tuple(self.pop_mark())
        self.call(self.named(*arg), args)

    def obj(self, _: Any) -> None:
        what, *args = self.pop_mark()
        self.call(what, tuple(args))

    def build(self, _: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is OrderedDict:
            if type(state) is dict and set(state) == {"_metadata"}:
                target._metadata = state["_metadata"]  # type: ignore[attr-defined]
        elif callable(build := getattr(target, "build", None)):
            build(state)
        else:
            raise StateInvalid("a pickle sets the state of something that has none")

    def stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise StateInvalid("a pickle names a global by something that is no text")
        self.stack.append(self.named(module, name))

    def named(self, module: str, name: str) -> Global:
        dotted = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if dotted not in self._constructors:
            self.names.add(dotted)
        return Global(dotted)

    def persistent(self, arg: Any) -> None:
        self.stack.append(self._persistent(arg))

    def nothing(self, _: Any) -> None:
        pass


def _key(key: Any) -> Any:
    """Keys are hashed by us: only what hashes in constant time and without recursion."""
    if type(key) is tuple:
        if len(key) > _MAX_KEY_ITEMS or any(type(item) is tuple for item in key):
            raise StateInvalid("a pickle has a nested tuple as a key")
        return tuple(map(_key, key))
    if key is None or type(key) in (str, int, float, bool, bytes, Global, Record):
        return key
    raise StateInvalid("a pickle has a key of a type that no checkpoint format uses")


_PUSHED = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "FLOAT",
        "BINFLOAT",
    ]
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple,
    "EMPTY_SET": lambda: Record("builtins.set"),
}  # fmt: skip
_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.nothing, "FRAME": _Machine.nothing, "STOP": _Machine.nothing,
    "MARK": _Machine.mark, "POP": _Machine.pop, "POP_MARK": lambda m, _: m.pop_mark().clear(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "PUT": _Machine.put, "BINPUT": _Machine.put, "LONG_BINPUT": _Machine.put, "MEMOIZE": _Machine.put,
    "GET": _Machine.get, "BINGET": _Machine.get, "LONG_BINGET": _Machine.get,
    "TUPLE": lambda m, _: m.stack.append(tuple(m.pop_mark())), "LIST": lambda m, _: m.stack.append(m.pop_mark()),
    "TUPLE1": lambda m, _: m.tuple_of(1), "TUPLE2": lambda m, _: m.tuple_of(2), "TUPLE3": lambda m, _: m.tuple_of(3),
    "DICT": lambda m, _: _dict(m, m.pop_mark()),
    "APPEND": lambda m, _: m.append_all([m.stack.pop()]), "APPENDS": lambda m, _: m.append_all(m.pop_mark()),
    "SETITEM": lambda m, _: m.set_all([m.stack.pop(-2), m.stack.pop()]),
    "SETITEMS": lambda m, _: m.set_all(m.pop_mark()),
    "ADDITEMS": lambda m, _: m.append_all(m.pop_mark()), "FROZENSET": lambda m, _: _frozen(m, m.pop_mark()),
    "REDUCE": _Machine.reduce, "NEWOBJ": _Machine.reduce, "NEWOBJ_EX": _Machine.new_with_keywords,
    "INST": _Machine.inst, "OBJ": _Machine.obj, "BUILD": _Machine.build,
    "GLOBAL": lambda m, arg: m.stack.append(m.named(*arg)), "STACK_GLOBAL": _Machine.stack_global,
    "PERSID": _Machine.persistent, "BINPERSID": lambda m, _: m.persistent(m.stack.pop()),
}  # fmt: skip


def _dict(machine: _Machine, items: list[Any]) -> None:
    machine.stack.append({})
    machine.set_all(items)


def _frozen(machine: _Machine, items: list[Any]) -> None:
    machine.stack.append(Record("builtins.frozenset", tuple(items)))
