"""Counters over time: what grew within a window, whatever they do."""

from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.adapters.sysfs.deltas import Growth, Standing, Watched
from keepstep.evidence.network.counters import Limit, saturated, wrapped_increase

STEPS = st.lists(st.tuples(st.integers(0, 50), st.floats(0.1, 500)), max_size=40)


@settings(max_examples=60)
@given(start=st.integers(0, 10_000), steps=STEPS, window_s=st.floats(10, 1000))
def test_growth_is_the_sum_of_the_steps_within_the_window(
    start: int, steps: list[tuple[int, float]], window_s: float
) -> None:
    growth, value, now_s, history = Growth(window_s), start, 0.0, []
    assert growth.feed(value, now_s) == 0
    for step, gap_s in steps:
        value, now_s = value + step, now_s + gap_s
        history.append((now_s, step))
        assert growth.feed(value, now_s) == sum(x for at_s, x in history if at_s > now_s - window_s)


@settings(max_examples=60)
@given(before=st.integers(0, 100), step=st.integers(0, 100), bits=st.sampled_from([8, 16, 32, 64]))
def test_a_wrap_is_counted_through(before: int, step: int, bits: int) -> None:
    start = (1 << bits) - 1 - before
    assert wrapped_increase(start, (start + step) % (1 << bits), bits) == step


@settings(max_examples=60)
@given(values=st.lists(st.integers(0, 255), min_size=2, max_size=30))
def test_growth_is_never_negative_and_never_more_than_was_seen(values: list[int]) -> None:
    growth = Growth(1e9, saturates_bits=8)
    grown = [growth.feed(value, float(at_s)) for at_s, value in enumerate(values)]
    assert grown == sorted(grown)
    assert grown[-1] <= sum(values)


def test_what_was_before_the_first_look_says_nothing() -> None:
    watched = Watched(Limit(signal="x", count=3, window_s=60))
    assert watched.feed(200, 0.0) == 0


def test_a_counter_that_was_cleared_counts_what_came_since() -> None:
    growth = Growth(1000.0, saturates_bits=8)
    growth.feed(200, 0.0)
    assert growth.feed(2, 1.0) == 2
    assert growth.resets == 1


def test_a_saturated_counter_is_blind_and_tells_nothing_more() -> None:
    growth = Growth(1000.0, saturates_bits=8)
    growth.feed(255, 0.0)
    assert growth.blind
    assert growth.feed(255, 1.0) == 0
    assert saturated("link_downed", 255)
    assert not saturated("link_downed", 300), "a wider counter than usual"


def test_a_limit_is_told_once_for_what_passed_it() -> None:
    watched = Watched(Limit(signal="x", count=3, window_s=60))
    assert [watched.feed(value, float(at_s)) for at_s, value in enumerate([0, 1, 2, 3, 3, 4, 6])] == [
        0,
        0,
        0,
        3,
        0,
        0,
        3,
    ]


def test_a_gap_between_looks_does_not_hide_what_grew() -> None:
    watched = Watched(Limit(signal="x", count=3, window_s=60))
    watched.feed(0, 0.0)
    assert watched.feed(9, 5000.0) == 9


def test_a_condition_is_told_when_it_is_sure_and_once() -> None:
    standing = Standing(3)
    assert [standing.begins("x", holds) for holds in (True, True, False, True, True, True, True)] == [
        False, False, False, False, False, True, False,
    ]  # fmt: skip
