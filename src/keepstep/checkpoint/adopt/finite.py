"""Counts values that are not finite in raw bytes. Owns what the bits of each dtype say; numpy only, one pass."""

from typing import Any

import numpy as np

from keepstep.checkpoint.adopt.inventory import Piece
from keepstep.checkpoint.adopt.reading import Reader

BLOCK_BYTES = 4 * 1024 * 1024
"""Read at a time; a multiple of every element size."""

_NATIVE = {
    "float32": "<f4", "float64": "<f8", "complex64": "<f4", "complex128": "<f8", "float16": "<f2", "complex32": "<f2"
}  # fmt: skip
_EXPONENTS = {"bfloat16": ("<u2", 0x7F80), "float8_e4m3fn": ("u1", 0x7F), "float8_e5m2": ("u1", 0x7C)}
_SINGLE = {"float8_e4m3fnuz": 0x80, "float8_e5m2fnuz": 0x80, "float8_e8m0fnu": 0xFF}


def may_be_infinite(dtype: str) -> bool:
    """Whether the dtype has values that are not finite at all."""
    return dtype in _NATIVE or dtype in _EXPONENTS or dtype in _SINGLE


def count_not_finite(block: "np.ndarray[Any, Any]", dtype: str) -> int:
    """How many NaN and infinite values there are in a block of bytes (uint8, whole elements)."""
    if dtype in _NATIVE:
        finite = np.isfinite(block.view(_NATIVE[dtype]))
        return int(finite.size - np.count_nonzero(finite))
    if dtype in _EXPONENTS:
        kind, mask = _EXPONENTS[dtype]
        bits = block.view(kind)
        return int(np.count_nonzero((bits & bits.dtype.type(mask)) == mask))
    return int(np.count_nonzero(block == _SINGLE[dtype]))


def scan(reader: Reader, piece: Piece, dtype: str, buffer: "np.ndarray[Any, Any]") -> int:
    """Values that are not finite in one piece, read through ``buffer`` (uint8, BLOCK_BYTES)."""
    found = 0
    for at in range(0, piece.size_bytes, BLOCK_BYTES):
        block = buffer[: min(BLOCK_BYTES, piece.size_bytes - at)]
        reader.into(piece.offset + at, block.data)
        found += count_not_finite(block, dtype)
    return found
