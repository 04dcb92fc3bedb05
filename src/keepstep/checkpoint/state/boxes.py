"""Axis-parallel boxes of elements: whether some of them make a whole tensor, and what two have in common. Pure.

Whether boxes fill a shape exactly is asked of their corners alone. Let f(x) be the number of boxes that have element x. Its
mixed difference (along every axis) is +1 or -1 at each corner of each box and 0 elsewhere, and f follows from it. So f is 1
everywhere exactly if the corners, summed with their signs, are those of the whole; and where they are not, the first corner
in index order that is left over is the first element of which f is wrong, by just that amount. This sorts n 2^axes corners,
whatever the boxes look like: grids, pinwheels, one row per rank.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid

MAX_CUT_AXES = 8
"""A box has 2^axes corners. No layout in use cuts a tensor along more than four."""
MAX_ELEMENTS = 2**62


class Extent(Struct, frozen=True, array_like=True):
    """The part of a sharded tensor that one rank has: an axis-parallel box."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]


class Fault(Struct, frozen=True):
    """The first element, in index order, that is not in exactly one box."""

    element: tuple[int, ...]
    boxes: tuple[int, ...]
    """Numbers of two boxes that have it; empty if none has."""


def check_box(whole: Sequence[int], box: Extent) -> None:
    """Raises ValueError unless ``box`` lies inside a tensor of shape ``whole`` that can exist."""
    elements = 1
    for sizes in (whole, box.shape, box.offset):
        if len(sizes) != len(whole) or not all(type(size) is int and 0 <= size <= MAX_ELEMENTS for size in sizes):
            raise ValueError(f"a box of {box.shape} at {box.offset} cannot be part of a tensor of {tuple(whole)}")
    for size in whole:
        elements *= max(size, 1)
    if elements > MAX_ELEMENTS:
        raise ValueError(f"a tensor of {tuple(whole)} has more elements than there can be")
    if any(at + size > end for at, size, end in zip(box.offset, box.shape, whole, strict=True)):
        raise ValueError(f"a box of {box.shape} at {box.offset} reaches beyond a tensor of {tuple(whole)}")


def intersect(left: Extent, right: Extent) -> Extent | None:
    """What two boxes have in common; None if that is nothing."""
    begins = tuple(map(max, left.offset, right.offset))
    sizes = tuple(
        min(a + m, b + n) - begin
        for a, m, b, n, begin in zip(left.offset, left.shape, right.offset, right.shape, begins, strict=True)
    )
    return Extent(begins, sizes) if all(size > 0 for size in sizes) else None


def within(box: Extent, outer: Extent) -> tuple[slice, ...]:
    """``box`` as an index into the elements of ``outer``, which has it."""
    starts = [at - begin for at, begin in zip(box.offset, outer.offset, strict=True)]
    return tuple(slice(start, start + size) for start, size in zip(starts, box.shape, strict=True))


def first_fault(whole: Sequence[int], boxes: Sequence[Extent]) -> Fault | None:
    """None if every element of ``whole`` is in one box; identical boxes count once, empty ones not at all.

    About n log n steps. Raises StateInvalid for boxes that are not inside, or are cut along more than MAX_CUT_AXES axes.
    """
    begins, ends, numbers = _distinct(whole, boxes)
    if 0 in whole:
        return None
    if not len(numbers):
        return Fault((0,) * len(whole), ())
    size = np.array(whole, np.int64)
    cut = np.flatnonzero((begins != 0).any(axis=0) | (ends != size).any(axis=0))
    if len(cut) > MAX_CUT_AXES:
        raise StateInvalid(f"a tensor is cut along {len(cut)} axes where {MAX_CUT_AXES} are supported")
    corners = [_corners(begins[:, cut], ends[:, cut], 1)]
    corners.append(_corners(np.zeros((1, len(cut)), np.int64), size[cut][np.newaxis], -1))
    points, signs = np.concatenate([point for point, _ in corners]), np.concatenate([sign for _, sign in corners])
    at = _first_left_over(points, signs)
    if at is None:
        return None
    element = np.zeros(len(whole), np.int64)
    element[cut] = at
    having = numbers[((begins <= element) & (element < ends)).all(axis=1)]
    return Fault(tuple(map(int, element)), tuple(map(int, having[:2])))


def _distinct(whole: Sequence[int], boxes: Sequence[Extent]) -> tuple[Any, Any, Any]:
    """Begins and ends of the boxes that have elements, each once, and the number of the first box that is it."""
    shape = (len(boxes), len(whole))
    try:
        size = np.array(whole, np.int64).reshape(len(whole))
        begins = np.array([box.offset for box in boxes], np.int64).reshape(shape)
        sizes = np.array([box.shape for box in boxes], np.int64).reshape(shape)
    except (OverflowError, ValueError, TypeError) as error:
        raise StateInvalid(f"the boxes of a tensor of {tuple(whole)} are none: {error}") from error
    outside = ((begins < 0) | (sizes < 0) | (sizes > size) | (begins > size - sizes)).any(axis=1)
    if outside.any():
        wrong = boxes[int(outside.argmax())]
        raise StateInvalid(f"a box of {wrong.shape} at {wrong.offset} is not inside a tensor of {tuple(whole)}")
    numbers = np.flatnonzero((sizes > 0).all(axis=1))
    both = np.concatenate([begins, sizes], axis=1)[numbers]
    # lexsort keeps the order of equals, so the first of each run is the box of the lowest number.
    order = np.lexsort(both.T) if both.shape[1] else np.arange(len(both))
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(both[order], axis=0) != 0).any(axis=1)
    numbers = np.sort(numbers[order[first]])
    return begins[numbers], begins[numbers] + sizes[numbers], numbers


def _corners(begins: Any, ends: Any, sign: int) -> tuple[Any, Any]:
    points, signs = [], []
    for at_end in itertools.product((False, True), repeat=begins.shape[1]):
        points.append(np.where(np.array(at_end, bool), ends, begins))
        signs.append(np.full(len(begins), -sign if sum(at_end) % 2 else sign, np.int64))
    return np.concatenate(points), np.concatenate(signs)


def _first_left_over(points: Any, signs: Any) -> Any:
    """The first point in index order whose signs do not cancel; None if they all do."""
    order = np.lexsort(points.T[::-1]) if points.shape[1] else np.arange(len(points))
    points, signs = points[order], signs[order]
    first = np.ones(len(points), bool)
    first[1:] = (np.diff(points, axis=0) != 0).any(axis=1)
    begins = np.flatnonzero(first)
    left_over = np.flatnonzero(np.add.reduceat(signs, begins))
    return points[begins[left_over[0]]] if len(left_over) else None
