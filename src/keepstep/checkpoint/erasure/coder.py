"""The erasure code: k data blocks, m parity blocks, any k of them give the others. Owns shapes and survivors; no I/O.

Systematic Reed-Solomon with a Cauchy matrix over GF(256) (a Vandermonde matrix of the usual sort has survivor sets that cannot
be inverted: 10 of 3,003 for 10+5). The code works byte by byte, so blocks of any equal length will do.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from keepstep.checkpoint.erasure import isal
from keepstep.checkpoint.erasure.field import Bytes, NumpyEngine, generator, inverse, product

MAX_SHARDS = 64
_REMEMBERED_LOSSES = 256


class Engine(Protocol):
    """Something that multiplies runs of bytes by a matrix. Thread-safe."""

    name: str

    def prepare(self, matrix: Bytes) -> Any:
        """Whatever :meth:`multiply` wants of a (rows x columns) matrix."""
        ...

    def multiply(self, prepared: Any, sources: Sequence[Bytes], outs: Sequence[Bytes]) -> None:
        """Fill ``outs`` (one for each row) from ``sources`` (one for each column), all of one length."""
        ...


def fastest_engine() -> Engine:
    """ISA-L where it is installed and gives the right bytes, numpy otherwise. Both give the same bytes."""
    found = isal.load()
    return NumpyEngine() if isinstance(found, str) else found


class Coder:
    """``data``+``parity``. Buffers are anything contiguous (memoryview, numpy, bytes); none is copied. Thread-safe."""

    def __init__(self, data: int, parity: int, engine: Engine | None = None) -> None:
        if data < 1 or parity < 1 or data + parity > MAX_SHARDS:
            raise ValueError(
                f"a {data}+{parity} code is not possible: at least 1 data and 1 parity shard, at most {MAX_SHARDS} together"
            )
        self.data, self.parity = data, parity
        self._engine = engine if engine is not None else fastest_engine()
        self._matrix = generator(data, parity)
        self._encode = self._engine.prepare(self._matrix[data:])
        self._decoding = lru_cache(_REMEMBERED_LOSSES)(self._prepare_decoding)

    @property
    def implementation(self) -> str:
        """``isa-l``, or ``numpy``: some 15 times slower. ``isal.load()`` says why."""
        return self._engine.name

    def encode(self, blocks: Sequence[Any], parity: Sequence[Any]) -> None:
        """Fill the ``parity`` buffers from the data blocks. Raises ValueError where numbers or lengths do not fit."""
        if len(blocks) != self.data or len(parity) != self.parity:
            raise ValueError(
                f"{len(blocks)} data and {len(parity)} parity blocks given to a {self.data}+{self.parity} code"
            )
        sources, outs = _arrays(blocks, parity)
        self._engine.multiply(self._encode, sources, outs)

    def reconstruct(self, present: Mapping[int, Any], missing: Sequence[int], out: Sequence[Any]) -> None:
        """Fill ``out`` with the blocks numbered ``missing`` (parity counts on from data), from any k of ``present``.

        Raises ValueError if fewer are present, or where numbers or lengths do not fit.
        """
        if not missing:
            return
        chosen = tuple(sorted(present)[: self.data])
        if len(chosen) < self.data:
            raise ValueError(
                f"{len(chosen)} blocks are present where a {self.data}+{self.parity} code needs {self.data}"
            )
        if not all(0 <= number < self.data + self.parity for number in (*present, *missing)):
            raise ValueError(f"a {self.data}+{self.parity} code has blocks 0 to {self.data + self.parity - 1}")
        if len(out) != len(missing):
            raise ValueError(f"{len(out)} buffers given for {len(missing)} missing blocks")
        sources, outs = _arrays([present[number] for number in chosen], out)
        self._engine.multiply(self._decoding(chosen, tuple(missing)), sources, outs)

    def _prepare_decoding(self, chosen: tuple[int, ...], missing: tuple[int, ...]) -> Any:
        back = inverse(self._matrix[list(chosen)])
        return self._engine.prepare(product(self._matrix[list(missing)], back))


def _arrays(sources: Sequence[Any], outs: Sequence[Any]) -> tuple[list[Bytes], list[Bytes]]:
    """As uint8 without copying. Raises ValueError unless all have one length and ``outs`` can be written to."""
    made = [
        np.frombuffer(buffer, np.uint8) if _nbytes(buffer) else np.empty(0, np.uint8) for buffer in (*sources, *outs)
    ]
    if len({array.nbytes for array in made}) != 1:
        raise ValueError(f"the blocks of a stripe have different lengths: {sorted({array.nbytes for array in made})}")
    if not all(array.flags.writeable for array in made[len(sources) :]):
        raise ValueError("the blocks to fill are read-only")
    return made[: len(sources)], made[len(sources) :]


def _nbytes(buffer: Any) -> int:
    return memoryview(buffer).nbytes
