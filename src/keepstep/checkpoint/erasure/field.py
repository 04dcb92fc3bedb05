"""Arithmetic in GF(256) with polynomial 0x11d, in numpy. Owns the matrices of the code, and the slow way to multiply by them.

The matrices are small and made here for every engine, so that shards never depend on which one wrote them. No I/O.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
"""A contiguous array of uint8."""

_POLYNOMIAL = 0x11D
_PIECE_BYTES = 64 * 1024  # stays in the first caches while every output takes it in


def _products() -> Bytes:
    """256 x 256: every product."""
    exponents, logarithms, value = np.zeros(510, np.uint8), np.zeros(256, np.int64), 1
    for power in range(255):
        exponents[power] = exponents[power + 255] = value
        logarithms[value] = power
        value = (value << 1) ^ (_POLYNOMIAL if value & 0x80 else 0)
    table: Bytes = exponents[logarithms[:, None] + logarithms[None, :]]
    table[0, :] = table[:, 0] = 0
    return table


PRODUCTS = _products()
INVERSES = np.argmax(PRODUCTS == 1, axis=1).astype(np.uint8)
"""INVERSES[0] is 0, and means nothing."""


@cache
def generator(data: int, parity: int) -> Bytes:
    """(data + parity) x data: identity over a Cauchy matrix, so that every choice of ``data`` rows can be inverted."""
    rows = np.arange(data, data + parity, dtype=np.uint8)[:, None]
    columns = np.arange(data, dtype=np.uint8)[None, :]
    made = np.concatenate([np.eye(data, dtype=np.uint8), INVERSES[rows ^ columns]])
    made.flags.writeable = False
    return made


def product(left: Bytes, right: Bytes) -> Bytes:
    """Of two small matrices."""
    return np.asarray(np.bitwise_xor.reduce(PRODUCTS[left[:, :, None], right[None, :, :]], axis=1))


def inverse(matrix: Bytes) -> Bytes:
    """By Gauss and Jordan. Raises ValueError if there is none."""
    size = len(matrix)
    work = np.concatenate([matrix, np.eye(size, dtype=np.uint8)], axis=1)
    for column in range(size):
        pivot = column + int(np.argmax(work[column:, column] != 0))
        if not work[pivot, column]:
            raise ValueError("the matrix is singular")
        work[[column, pivot]] = work[[pivot, column]]
        work[column] = PRODUCTS[INVERSES[work[column, column]], work[column]]
        factors = work[:, column].copy()
        factors[column] = 0
        work ^= PRODUCTS[factors[:, None], work[column][None, :]]
    return work[:, size:].copy()


class NumpyEngine:
    """Multiplies by a matrix at about 1 GB/s for each two parity blocks. Always available; holds the GIL."""

    name = "numpy"

    def prepare(self, matrix: Bytes) -> list[list[bytes]]:
        """One translation table for each coefficient."""
        return [[PRODUCTS[coefficient].tobytes() for coefficient in row] for row in matrix]

    def multiply(self, prepared: list[list[bytes]], sources: Sequence[Bytes], outs: Sequence[Bytes]) -> None:
        for begin in range(0, sources[0].nbytes, _PIECE_BYTES):
            piece = slice(begin, begin + _PIECE_BYTES)
            taken = [source[piece].tobytes() for source in sources]
            for tables, out in zip(prepared, outs, strict=True):
                target = out[piece]
                target[:] = np.frombuffer(taken[0].translate(tables[0]), np.uint8)
                for data, table in zip(taken[1:], tables[1:], strict=True):
                    target ^= np.frombuffer(data.translate(table), np.uint8)
