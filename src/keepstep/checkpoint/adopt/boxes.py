"""Do boxes cover a tensor exactly? Owns that question, in about n log n steps; knows no files.

Boxes are cut apart along every axis where a gap between intervals allows it, as shards of a mesh always can be, until
each stands alone. Only what cannot be cut is compared pair by pair, and only up to a limit.
"""

import math
from collections.abc import Sequence

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Start and shape."""

_MAX_PAIRWISE = 2000


def cover_fault(shape: tuple[int, ...], boxes: Sequence[Box]) -> str | None:
    """None if every element of ``shape`` is in exactly one box; else what is wrong, in words."""
    for start, size in boxes:
        if len(start) != len(shape) or len(size) != len(shape):
            return "a piece has another number of dimensions"
        if any(at < 0 or at + length > whole for at, length, whole in zip(start, size, shape, strict=True)):
            return f"the piece at {list(start)} reaches beyond the tensor"
    filled = [box for box in boxes if 0 not in box[1]]
    if (fault := _overlap(filled)) is not None:
        return fault
    covered, whole = sum(math.prod(size) for _, size in filled), math.prod(shape)
    return None if covered == whole else f"{whole - covered} of {whole} elements are in no piece"


def _overlap(boxes: list[Box]) -> str | None:
    pending = [boxes]
    while pending:
        group = pending.pop()
        if len(group) < 2:
            continue
        for axis in range(len(group[0][0])):
            parts = _cut(group, axis)
            if len(parts) > 1:
                pending += parts
                break
        else:
            if (fault := _compare(group)) is not None:
                return fault
    return None


def _cut(boxes: list[Box], axis: int) -> list[list[Box]]:
    ordered = sorted(boxes, key=lambda box: box[0][axis])
    parts = [[ordered[0]]]
    end = ordered[0][0][axis] + ordered[0][1][axis]
    for box in ordered[1:]:
        if box[0][axis] >= end:
            parts.append([])
        parts[-1].append(box)
        end = max(end, box[0][axis] + box[1][axis])
    return parts


def _compare(boxes: list[Box]) -> str | None:
    if len(boxes) > _MAX_PAIRWISE:
        return f"{len(boxes)} pieces lie too irregularly to be checked"
    for number, (start, size) in enumerate(boxes):
        for other, extent in boxes[:number]:
            if all(a < b + m and b < a + n for a, n, b, m in zip(start, size, other, extent, strict=True)):
                return f"the pieces at {list(other)} and {list(start)} overlap"
    return None
