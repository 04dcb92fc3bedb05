"""Whether shards make whole tensors: against counting every element, for any layout, and at the size of a large job."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.checkpoint import StateInvalid
from keepstep.checkpoint.format.records import Extent, Part, Sharded
from keepstep.checkpoint.repository.coverage import check_coverage
from keepstep.checkpoint.state.boxes import Fault, first_fault, intersect

from .layouts import grid


def parts(shape: Sequence[int], boxes: Sequence[Extent], dtype: str = "float32") -> list[Part]:
    return [
        Part(groups={"model": f"g{rank}"}, sharded={"model": (Sharded("w", dtype, tuple(shape), box),)})
        for rank, box in enumerate(boxes)
    ]


def counted(shape: Sequence[int], boxes: Sequence[Extent]) -> "np.ndarray":
    found = np.zeros(shape, int)
    for box in set(boxes):
        found[tuple(slice(at, at + size) for at, size in zip(box.offset, box.shape, strict=True))] += 1
    return found


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Extent]]:
    """Cut a shape at random into boxes, then drop some, repeat some and add some."""
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=0, max_size=3)))
    boxes = [Extent((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6)) if shape else 0):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, box.shape[axis]))
        boxes.append(Extent(box.offset, (*box.shape[:axis], at, *box.shape[axis + 1 :])))
        offset = (*box.offset[:axis], box.offset[axis] + at, *box.offset[axis + 1 :])
        boxes.append(Extent(offset, (*box.shape[:axis], box.shape[axis] - at, *box.shape[axis + 1 :])))
    boxes = [box for box in boxes if draw(st.integers(0, 9)) < 9]
    boxes += [box for box in boxes if draw(st.integers(0, 9)) == 0]
    if draw(st.integers(0, 3)) == 0:
        begins = [draw(st.integers(0, size)) for size in shape]
        sizes = [draw(st.integers(0, size - begin)) for size, begin in zip(shape, begins, strict=True)]
        boxes.append(Extent(tuple(begins), tuple(sizes)))
    return shape, draw(st.permutations(boxes))


@given(layouts())
@settings(max_examples=400, deadline=None)
def test_the_first_wrong_element_is_found_as_by_counting_all(layout: tuple[tuple[int, ...], list[Extent]]) -> None:
    shape, boxes = layout
    count = counted(shape, boxes)
    wrong = np.argwhere(count != 1)
    fault = first_fault(shape, boxes)
    if not len(wrong):
        assert fault is None
        return
    assert fault is not None and fault.element == tuple(wrong[0])
    assert len({boxes[number] for number in fault.boxes}) == min(count[fault.element], 2)
    for number in fault.boxes:
        assert intersect(boxes[number], Extent(fault.element, (1,) * len(shape))) is not None


@pytest.mark.parametrize(
    ("shape", "counts"), [((7,), (3,)), ((10, 6), (4, 2)), ((3, 5), (4, 1)), ((2, 3, 4), (2, 2, 2))]
)
def test_meshes_cover_even_where_they_are_uneven(shape: tuple[int, ...], counts: tuple[int, ...]) -> None:
    boxes = grid(shape, counts)
    check_coverage(parts(shape, boxes))
    check_coverage(parts(shape, boxes * 3))  # replicas


def test_a_pinwheel_which_no_cut_takes_apart_covers() -> None:
    pinwheel = [Extent((0, 0), (1, 2)), Extent((0, 2), (2, 1)), Extent((2, 1), (1, 2)), Extent((1, 0), (2, 1))]
    check_coverage(parts((3, 3), [*pinwheel, Extent((1, 1), (1, 1))]))
    with pytest.raises(StateInvalid, match=r"no rank saved element \(1, 1\)"):
        check_coverage(parts((3, 3), pinwheel))


def test_the_error_names_tensor_element_and_ranks() -> None:
    with pytest.raises(StateInvalid, match=r"w of group model.*no rank saved element \(4, 0\)"):
        check_coverage(parts((8, 2), [Extent((0, 0), (4, 2)), Extent((5, 0), (3, 2))]))
    with pytest.raises(StateInvalid, match=r"element \(3, 0\).*ranks 0 and 2 overlap"):
        check_coverage(parts((8, 2), [Extent((0, 0), (4, 2)), Extent((0, 0), (4, 2)), Extent((3, 0), (5, 2))]))


def test_ranks_must_agree_on_what_the_tensor_is() -> None:
    boxes = grid((8,), (2,))
    left, right = parts((8,), boxes)[0], parts((8,), boxes, "bfloat16")[1]
    with pytest.raises(StateInvalid, match="bfloat16 of"):
        check_coverage([left, right])
    with pytest.raises(StateInvalid, match=r"float32 of \(9,\)"):
        check_coverage([left, parts((9,), boxes)[1]])


def test_shards_of_a_group_that_was_not_saved_are_refused() -> None:
    with pytest.raises(StateInvalid, match="which it has not saved"):
        check_coverage([Part(groups={}, sharded=parts((1,), grid((1,), (1,)))[0].sharded)])


@pytest.mark.parametrize(
    "box",
    [
        Extent((-1,), (9,)),
        Extent((0,), (-8,)),
        Extent((4,), (8,)),
        Extent((2**63,), (8,)),
        Extent((8,), (2**63 - 8,)),
        Extent((0, 0), (8, 1)),
    ],
)
def test_impossible_boxes_are_refused(box: Extent) -> None:
    with pytest.raises(StateInvalid):
        check_coverage(parts((8,), [Extent((0,), (8,)), box]))


def test_a_scalar_and_an_empty_tensor() -> None:
    check_coverage(parts((), [Extent((), ())] * 2))
    check_coverage(parts((0, 4), [Extent((0, 0), (0, 4))]))
    assert first_fault((), []) == Fault((), ())
    assert first_fault((0, 3), []) is None


def test_more_cut_axes_than_any_layout_has_are_refused_not_expanded() -> None:
    shape = (2,) * 60
    with pytest.raises(StateInvalid, match="60 axes"):
        first_fault(shape, [Extent((0,) * 60, (1,) * 60)])
    whole = Extent((0,) * 60, shape)
    assert first_fault(shape, [whole, whole]) is None


def test_a_thousand_ranks_one_of_which_is_absent() -> None:
    """Reported of torch: a plan of 1024 x 1024 took minutes to check."""
    boxes = grid((4096, 4096), (64, 64))
    del boxes[777]
    with pytest.raises(StateInvalid, match=r"element \(768, 576\)"):
        check_coverage(parts((4096, 4096), boxes))
