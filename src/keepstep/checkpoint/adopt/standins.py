"""What stands in for torch's and numpy's objects when their pickles are read. Owns the closed table of constructors.

None of them touches torch. A stand-in says where the bytes of a tensor are; ``rebuild`` makes tensors of them.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from keepstep.checkpoint.adopt.inventory import MAX_DIMENSIONS, box_bytes, dtype_bytes, printable
from keepstep.checkpoint.adopt.pickles import RESULT, Global, Record
from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.state.leaves import numpy_dtype_name

_MAX_INT = 1 << 62

_STORAGES = {
    "torch.DoubleStorage": "float64", "torch.FloatStorage": "float32", "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16", "torch.LongStorage": "int64", "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16", "torch.CharStorage": "int8", "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool", "torch.ComplexFloatStorage": "complex64", "torch.ComplexDoubleStorage": "complex128",
    "torch.storage.UntypedStorage": "uint8", "torch.UntypedStorage": "uint8",
}  # fmt: skip


class Storage:
    """A run of bytes that tensors are views of. ``key`` finds it in its file."""

    __slots__ = ("dtype", "key", "size_bytes")

    def __init__(self, key: str, dtype: str, elements: int) -> None:
        self.key, self.dtype = key, dtype
        self.size_bytes = elements * dtype_bytes(dtype)


class TensorRef:
    """A strided view of a storage, checked to lie inside it. ``offset`` in bytes, ``stride`` in elements."""

    __slots__ = ("dtype", "offset", "shape", "storage", "stride")

    def __init__(
        self, storage: Storage, dtype: str, offset: int, layout: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> None:
        self.storage, self.dtype, self.offset = storage, dtype, offset
        self.shape, self.stride = layout

    def span_bytes(self) -> int:
        """From the first element to the end of the last one."""
        return _span(self.shape, self.stride) * dtype_bytes(self.dtype)

    def is_dense(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return math.prod(self.shape) == 0
            expected *= size
        return True

    def build(self, state: Any) -> None:
        """Attributes that somebody hung on the tensor: not part of its value."""


class DtypeRef:
    """A numpy dtype without fields."""

    __slots__ = ("big_endian", "spec")

    def __init__(self, spec: Any, *_: Any) -> None:
        self.spec = spec
        self.big_endian = False

    def build(self, state: Any) -> None:
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise StateInvalid("a numpy dtype is described in an unknown way")
        self.big_endian = state[1] == ">"

    def resolve(self) -> "np.dtype[Any] | None":
        """None where its values are no plain bytes (objects, records)."""
        if type(self.spec) is not str or len(self.spec) > 16:
            return None
        try:
            dtype = np.dtype(self.spec)
        except (TypeError, ValueError, SyntaxError, OverflowError):
            return None
        if numpy_dtype_name(dtype) is None or not dtype.itemsize:
            return None
        return dtype.newbyteorder(">") if self.big_endian else dtype


class ArrayRef:
    """A numpy array or scalar, with its bytes."""

    __slots__ = ("data", "dtype", "fortran", "scalar", "shape")

    def __init__(self) -> None:
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] = ()
        self.data: bytes | bytearray = b""
        self.fortran = self.scalar = False

    def build(self, state: Any) -> None:
        if type(state) is not tuple or len(state) != 5:
            raise StateInvalid("a numpy array is described in an unknown way")
        self.fill(state[2], state[1], state[4], fortran=bool(state[3]))

    def fill(self, dtype: Any, shape: Any, data: Any, *, fortran: bool = False) -> None:
        if type(dtype) is not DtypeRef or type(shape) is not tuple:
            raise StateInvalid("a numpy array is described in an unknown way")
        self.dtype, self.fortran = dtype.resolve(), fortran
        self.shape = _ints(shape, "shape of an array")
        if self.dtype is None:
            return
        if type(data) not in (bytes, bytearray) or len(data) != math.prod(self.shape) * self.dtype.itemsize:
            raise StateInvalid("a numpy array has not the bytes that its shape needs")
        self.data = data

    def value(self) -> Any:
        """The array, writable and its own; None if its elements are objects."""
        if self.dtype is None or len(self.shape) > MAX_DIMENSIONS:
            return None
        array = np.frombuffer(bytearray(self.data), self.dtype) if self.data else np.empty(0, self.dtype)
        array = array.reshape(self.shape, order="F" if self.fortran else "C")
        return array[()] if self.scalar else array


def storage_of(pid: Any) -> Storage:
    """The storage that a persistent id of ``torch.save`` names."""
    if type(pid) is not tuple or len(pid) < 5 or pid[0] != "storage":
        raise StateInvalid("a tensor refers to its bytes in an unknown way")
    _, kind, key, _, elements = pid[:5]
    if type(kind) is not Global or type(key) is not str:
        raise StateInvalid("a tensor refers to its bytes in an unknown way")
    if kind.name not in _STORAGES:
        raise StateInvalid(f"tensors of {printable(kind.name[:100])} are not known to this keepstep")
    return Storage(key, _STORAGES[kind.name], _ints((elements,), "size of a storage")[0])


def _ints(values: Any, what: str) -> tuple[int, ...]:
    if type(values) not in (tuple, list) or any(
        type(value) is not int or not 0 <= value < _MAX_INT for value in values
    ):
        raise StateInvalid(f"the {what} is no list of sizes")
    return tuple(values)


def _span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, dtype: str) -> Any:
    if type(storage) is not Storage:
        raise StateInvalid("a tensor has no storage")
    shape, stride = _ints(shape, "shape of a tensor"), _ints(stride, "stride of a tensor")
    begin = _ints((offset,), "offset of a tensor")[0] * dtype_bytes(dtype)
    if len(shape) != len(stride):
        raise StateInvalid("a tensor has a stride for another number of dimensions")
    box_bytes(dtype, shape)
    ref = TensorRef(storage, dtype, begin, (shape, stride))
    if begin + ref.span_bytes() > storage.size_bytes and 0 not in shape:
        raise StateInvalid("a tensor reaches beyond its storage")
    return ref


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, stride: Any) -> Any:
    return _tensor(storage, offset, shape, stride, getattr(storage, "dtype", "uint8"))


def _rebuild_tensor_v2(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> Any:
    return _plain(_rebuild_tensor(storage, offset, shape, stride), rest[2:3])


def _rebuild_tensor_v3(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> Any:
    if len(rest) < 3 or (dtype := dtype_of(rest[2])) is None:
        return Record("a tensor of a dtype that this keepstep does not know")
    return _plain(_tensor(storage, offset, shape, stride, dtype), rest[3:4])


def _plain(ref: TensorRef, flags: tuple[Any, ...]) -> Any:
    """A lazily conjugated or negated view has other values than its bytes say."""
    if flags and type(flags[0]) is dict and any(value is True for value in flags[0].values()):
        return Record("a conjugated or negated view")
    return ref


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def _rebuild_from_type(function: Any, kind: Any, args: Any, *_: Any) -> Any:
    named = type(function) is Global and type(kind) is Global and type(args) is tuple
    if named and kind.name in ("torch.Tensor", "torch.nn.parameter.Parameter") and function.name in _REBUILDERS:
        return _REBUILDERS[function.name](*args)
    return Record(kind.name if type(kind) is Global else "a tensor subclass")


def dtype_of(value: Any) -> str | None:
    """The name of a ``torch.float32`` in a pickle; None for anything else, also for dtypes unknown here."""
    if type(value) is not Global or not value.name.startswith("torch."):
        return None
    name = value.name.removeprefix("torch.")
    try:
        dtype_bytes(name)
    except StateInvalid:
        return None
    return name


def _reconstruct(*_: Any) -> ArrayRef:
    return ArrayRef()


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any = "C") -> ArrayRef:
    array = ArrayRef()
    array.fill(dtype, shape, data, fortran=order == "F")
    return array


def _scalar(dtype: Any, data: Any = b"") -> ArrayRef:
    array = ArrayRef()
    array.fill(dtype, (), data)
    array.scalar = True
    return array


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise StateInvalid("a pickle encodes text in an unknown way")
    return text.encode("latin-1")


def _bytes(data: Any = b"", *encoding: Any) -> bytes:
    return bytes(data) if type(data) in (bytes, bytearray) else _encode(data, *encoding)


def _sequence(items: Any = ()) -> tuple[Any, ...]:
    if type(items) not in (tuple, list):
        raise StateInvalid("a pickle makes a size of something that is no list")
    return tuple(items)


def _complex(real: Any = 0.0, imag: Any = 0.0) -> complex:
    return complex(float(real), float(imag))


def _inert(name: str) -> Callable[..., Record]:
    return lambda *args: Record(name, args)


_INERT = (
    "torch.device", "torch.serialization._get_layout", "builtins.set", "numpy.ndarray", "pathlib.PosixPath",
    "pathlib._local.PosixPath",
)  # fmt: skip
_REBUILDERS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
}
CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    **_REBUILDERS,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    "torch.Size": _sequence,
    "collections.OrderedDict": lambda *_: OrderedDict(),
    "collections.defaultdict": lambda *_: {},
    "builtins.complex": _complex,
    "builtins.bytearray": _bytes,
    "builtins.bytes": _bytes,
    "_codecs.encode": _encode,
    "numpy.dtype": DtypeRef,
    **{f"numpy.{core}.multiarray._reconstruct": _reconstruct for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _frombuffer for core in ("core", "_core")},
    **{name: _inert(name) for name in _INERT},
}
"""The whole of what a pickle can make here. Nothing in it opens, imports or runs anything."""

_RUNNERS = frozenset(
    [
        "os",
        "posix",
        "nt",
        "subprocess",
        "sys",
        "shutil",
        "socket",
        "importlib",
        "runpy",
        "pty",
        "commands",
        "code",
        "codeop",
        "ctypes",
        "webbrowser",
        "pickle",
        "_pickle",
        "marshal",
        "types",
        "operator",
        "asyncio",
        "multiprocessing",
        "threading",
        "_thread",
        "signal",
        "urllib",
        "http",
        "ftplib",
        "requests",
        "pip",
        "pdb",
        "bdb",
        "timeit",
        "cProfile",
        "profile",
        "trace",
        "imp",
        "site",
        "gc",
        "inspect",
        "linecache",
        "tempfile",
        "pathlib",
        "io",
        "_io",
        "zipimport",
    ]
)
_RUNNING_BUILTINS = frozenset(
    [
        "eval",
        "exec",
        "compile",
        "__import__",
        "getattr",
        "setattr",
        "delattr",
        "open",
        "breakpoint",
        "input",
        "globals",
        "locals",
        "vars",
        "map",
        "filter",
    ]
)


def judge_names(names: tuple[str, ...], where: str) -> tuple[list[str], list[str]]:
    """Problems and warnings about what a pickle mentions. For people: nothing that is mentioned is run either way."""
    problems, warnings = [], []
    for name in names:
        if name in _STORAGES or dtype_of(Global(name)) is not None:
            continue
        module, _, rest = name.partition(".")
        shown = printable(name[:100])
        if name == RESULT or module in _RUNNERS or (module == "builtins" and rest in _RUNNING_BUILTINS):
            problems.append(
                f"{where} mentions {shown}, as a file that runs code when it is unpickled does: do not load it"
            )
        elif rest:
            warnings.append(
                f"{where} holds objects of {shown}, which only its own code can make: they are not imported"
            )
    return problems, warnings
