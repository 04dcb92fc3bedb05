"""Leaves of a state tree: their types, their place in a payload, and copies in and out.

Owns the dtype names and the alignment rule. Must not know trees, slots or files. torch is touched only where a leaf is a
torch tensor, so that numpy-only programs never load it.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from keepstep.checkpoint.errors import StateInvalid

LEAF_ALIGN = 64
"""Bytes. A cache line: vectorised copies start aligned, and every dtype is aligned."""
PAGE_BYTES = 4096
LARGE_BYTES = 1024 * 1024
"""A leaf of this size has chunks of its own: then a frozen tensor's chunks stay equal whatever stands beside it."""
CHUNK_BYTES = 8 * 1024 * 1024
"""The most that is digested, sealed and read as one piece."""

Spec = tuple[str, str, tuple[int, ...]]
"""Kind (``t`` torch tensor, ``n`` numpy array, ``s`` numpy scalar), dtype name, shape."""

_TORCH_SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
_NUMPY_KINDS = frozenset("biufcmMSU")
_torch_names: dict[Any, str] = {}


def torch_dtype_names() -> dict[Any, str]:
    """torch dtype -> name; empty while torch is not loaded."""
    if not _torch_names and (torch := sys.modules.get("torch")) is not None:
        _torch_names.update({getattr(torch, name): name for name in _TORCH_SIZES if hasattr(torch, name)})
    return _torch_names


def is_torch_dtype(name: str) -> bool:
    """Whether a dtype name is one of torch: numpy's have a byte order."""
    return name in _TORCH_SIZES


def numpy_dtype_name(dtype: np.dtype[Any]) -> str | None:
    """The portable name of a dtype (with byte order), or None if its values cannot be written as plain bytes."""
    return dtype.str if dtype.kind in _NUMPY_KINDS and not dtype.hasobject else None


def item_bytes(spec: Spec) -> int:
    """Bytes of one element. Raises StateInvalid for an unknown dtype."""
    kind, name, _ = spec
    if kind == "t":
        if name not in _TORCH_SIZES:
            raise StateInvalid(f"unknown tensor dtype {name!r}: it was written by a newer keepstep")
        return _TORCH_SIZES[name]
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise StateInvalid(f"unknown array dtype {name!r}") from error
    if numpy_dtype_name(dtype) != name:
        raise StateInvalid(f"array dtype {name!r} is not one that keepstep writes")
    return dtype.itemsize


def leaf_bytes(spec: Spec) -> int:
    return item_bytes(spec) * math.prod(spec[2])


def offsets_of(specs: Sequence[Spec]) -> tuple[list[int], int]:
    """Byte offset of each leaf in a payload, and the size of the whole payload, which is whole pages."""
    offsets, end = [], 0
    for spec in specs:
        size = leaf_bytes(spec)
        align = PAGE_BYTES if size >= LARGE_BYTES else LEAF_ALIGN
        begin = round_up(end, align)
        offsets.append(begin)
        end = begin + round_up(size, align)
    return offsets, round_up(end, PAGE_BYTES)


def chunk_ends(specs: Sequence[Spec]) -> list[int]:
    """Where the chunks of a payload end: at the edges of large leaves, and after CHUNK_BYTES at the latest. Whole pages."""
    offsets, size = offsets_of(specs)
    ends: list[int] = []
    for spec, offset in zip(specs, offsets, strict=True):
        if leaf_bytes(spec) >= LARGE_BYTES:
            _cut(ends, offset)
            _cut(ends, offset + round_up(leaf_bytes(spec), PAGE_BYTES))
    _cut(ends, size)
    return ends


def _cut(ends: list[int], end: int) -> None:
    begin = ends[-1] if ends else 0
    ends.extend(range(begin + CHUNK_BYTES, end, CHUNK_BYTES))
    if end > begin:
        ends.append(end)


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def load_leaves(specs: Sequence[Spec], payload: "np.ndarray[Any, Any]") -> list[Any]:
    """Leaves as views of ``payload`` (uint8, writable, owned by the caller, exactly the payload's size)."""
    offsets, size = offsets_of(specs)
    if size != payload.nbytes:
        raise StateInvalid(f"payload has {payload.nbytes} bytes where its index describes {size}")
    base = _torch_bytes(payload) if any(spec[0] == "t" for spec in specs) and payload.nbytes else None
    return [_view(spec, payload, base, offset) for spec, offset in zip(specs, offsets, strict=True)]


def _torch_bytes(buffer: Any) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=torch.uint8)


def _view(spec: Spec, payload: Any, base: Any, offset: int) -> Any:
    kind, name, shape = spec
    size = leaf_bytes(spec)
    if kind == "t":
        import torch

        dtype = getattr(torch, name)
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        return base[offset : offset + size].view(dtype).view(shape)
    dtype = np.dtype(name)
    if size == 0:
        array = np.empty(shape, dtype)
    else:
        array = np.frombuffer(payload, dtype, math.prod(shape), offset).reshape(shape)
    return array[()] if kind == "s" else array


class LeafViews:
    """Destinations for the leaves of one layout inside one buffer; made once, filled at every snapshot.

    ``buffer`` is writable; the payload begins at ``offset``. Padding is zeroed here, because digests cover it and a
    reused slot has old bytes there.
    """

    def __init__(self, specs: Sequence[Spec], buffer: Any, offset: int) -> None:
        offsets, size = offsets_of(specs)
        raw = np.frombuffer(buffer, np.uint8, size, offset)
        self._torch_at: list[int] = []
        self._torch_to: list[Any] = []
        self._numpy_to: list[tuple[int, Any]] = []
        base = _torch_bytes(raw) if size and any(spec[0] == "t" for spec in specs) else None
        ends = [*offsets[1:], size]
        for position, spec in enumerate(specs):
            begin, used = offsets[position], leaf_bytes(spec)
            raw[begin + used : ends[position]] = 0
            if used == 0:
                continue
            if spec[0] == "t":
                self._torch_at.append(position)
                self._torch_to.append(_view(spec, raw, base, begin))
            else:
                self._numpy_to.append((position, _view(("n", *spec[1:]), raw, None, begin)))

    def fill(self, leaves: Sequence[Any]) -> None:
        """Copy the live values in. Returns when the last byte is copied: the caller may mutate its state at once."""
        if self._torch_to:
            import torch

            with torch.no_grad():
                torch._foreach_copy_(self._torch_to, [leaves[position] for position in self._torch_at])
        for position, target in self._numpy_to:
            np.copyto(target, leaves[position], casting="no")
