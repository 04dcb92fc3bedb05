"""Do the pieces of a foreign tensor cover it exactly? Puts the answer of ``state.boxes`` into words; knows no files."""

import math
from collections.abc import Sequence

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.state.boxes import Extent, first_fault

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Start and shape."""


def cover_fault(shape: tuple[int, ...], boxes: Sequence[Box]) -> str | None:
    """None if every element of ``shape`` is in exactly one box; else what is wrong, in words."""
    for start, size in boxes:
        if len(start) != len(shape) or len(size) != len(shape):
            return "a piece has another number of dimensions"
        if any(at < 0 or at + length > whole for at, length, whole in zip(start, size, shape, strict=True)):
            return f"the piece at {list(start)} reaches beyond the tensor"
    filled = [Extent(start, size) for start, size in boxes if 0 not in size]
    if len(set(filled)) < len(filled):
        return "two pieces are the same part of it, and overlap"
    try:
        fault = first_fault(shape, filled)
    except StateInvalid as error:
        return str(error)
    if fault is None:
        return None
    if fault.boxes:
        return f"pieces overlap at element {list(fault.element)}"
    missing = max(1, math.prod(shape) - sum(math.prod(box.shape) for box in filled))
    return f"at least {missing} of {math.prod(shape)} elements are in no piece, the first is {list(fault.element)}"
