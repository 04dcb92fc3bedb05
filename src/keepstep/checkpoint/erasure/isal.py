"""ISA-L by ctypes, without copies: the library that the wheel of pyeclib carries. Owns finding it, and believing it.

It is believed only after it gave the same bytes as ``field`` here, on this processor: its tables have another shape for each
instruction set. pyeclib itself is not imported: its own calls copy everything twice.
"""

import ctypes
import importlib.util
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from keepstep.checkpoint.erasure.field import Bytes, NumpyEngine, generator

_TABLE_BYTES = 32  # for each coefficient, whatever the instruction set
_MOST_BYTES = 1 << 30  # its lengths are C ints
_TESTED_LENGTHS = (1, 15, 31, 33, 64, 127, 1000, 4096 + 7)


class IsalEngine:
    """Multiplies by a matrix at some 10 to 30 GB/s a core. Releases the GIL; may be called from several threads."""

    name = "isa-l"

    def __init__(self, library: Path) -> None:
        """Raises OSError or AttributeError if this is not the library."""
        loaded = ctypes.CDLL(str(library))
        self._init, self._encode = loaded.ec_init_tables, loaded.ec_encode_data
        self._init.restype = self._encode.restype = None
        self._init.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._encode.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int] + [ctypes.c_void_p] * 3

    def prepare(self, matrix: Bytes) -> Bytes:
        matrix = np.ascontiguousarray(matrix)
        rows, columns = matrix.shape
        tables = np.zeros(_TABLE_BYTES * rows * columns, np.uint8)
        self._init(columns, rows, matrix.ctypes.data, tables.ctypes.data)
        return tables

    def multiply(self, prepared: Bytes, sources: Sequence[Bytes], outs: Sequence[Bytes]) -> None:
        length, tables = sources[0].nbytes, prepared.ctypes.data
        for begin in range(0, length, _MOST_BYTES):
            inputs, outputs = _pointers(sources, begin), _pointers(outs, begin)
            count = min(_MOST_BYTES, length - begin)
            self._encode(count, len(sources), len(outs), tables, ctypes.byref(inputs), ctypes.byref(outputs))


def _pointers(arrays: Sequence[Bytes], offset: int) -> Any:
    return (ctypes.c_void_p * len(arrays))(*[array.__array_interface__["data"][0] + offset for array in arrays])


@cache
def load() -> IsalEngine | str:
    """The engine, or in words why there is none."""
    spec = importlib.util.find_spec("pyeclib")
    if spec is None or spec.origin is None:
        return "pyeclib, which carries ISA-L, is not installed"
    libraries = sorted((Path(spec.origin).parent.parent / "pyeclib.libs").glob("libisal*"))
    if not libraries:
        return "this build of pyeclib carries no ISA-L"
    try:
        engine = IsalEngine(libraries[0])
    except (OSError, AttributeError) as error:
        return f"{libraries[0].name} cannot be used: {error}"
    return engine if is_right(engine) else f"{libraries[0].name} gives wrong products on this processor"


def is_right(engine: Any) -> bool:
    """Whether an engine gives the bytes that ``field`` gives, in codes and lengths of many kinds."""
    reference, draw = NumpyEngine(), random.Random(20)
    for (data, parity), length in zip([(4, 2), (8, 3), (1, 1), (10, 7)] * 2, _TESTED_LENGTHS, strict=True):
        matrix = generator(data, parity)[data:]
        sources = [np.frombuffer(draw.randbytes(length), np.uint8) for _ in range(data)]
        got = [np.zeros(length, np.uint8) for _ in range(parity)]
        expected = [np.zeros(length, np.uint8) for _ in range(parity)]
        engine.multiply(engine.prepare(matrix), sources, got)
        reference.multiply(reference.prepare(matrix), sources, expected)
        if not all(map(np.array_equal, got, expected)):
            return False
    return True
