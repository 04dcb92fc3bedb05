"""How a fleet comes back, in virtual time: by the rule that agents follow, without sockets and without a clock."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.adapters.server_link.backoff import AGENT, FRONT, LAUNCHER, Backoff

COUNT = 5_000
SLICE_S = 0.25


def back_after(outage_s: float, rule: Backoff = AGENT) -> tuple[list[float], int]:
    """When each of a fleet that lost its server at 0 finds it again, in seconds; and how often all of them knocked."""
    rng = random.Random(5)
    arrivals_s, knocks = [], 0
    for _ in range(COUNT):
        now_s, vain = rule.pause_s(0, rng.random()), 0
        while now_s < outage_s:
            vain += 1
            now_s += rule.pause_s(vain, rng.random())
        arrivals_s.append(now_s)
        knocks += vain + 1
    return arrivals_s, knocks


def most_in_a_slice(times_s: list[float]) -> int:
    slices: dict[int, int] = {}
    for at_s in times_s:
        slices[int(at_s / SLICE_S)] = slices.get(int(at_s / SLICE_S), 0) + 1
    return max(slices.values())


@pytest.mark.parametrize("outage_s", [0.0, 0.3, 1.0, 2.2, 5.0, 30.0, 120.0])
def test_five_thousand_agents_come_back_spread_out(outage_s: float) -> None:
    """A server that is back at once meets the even share of the first window; the longer it was away, the fewer at a time."""
    arrivals_s, knocks = back_after(outage_s)
    even = COUNT * SLICE_S / AGENT.first_s
    assert most_in_a_slice(arrivals_s) <= 1.2 * even
    if outage_s >= 5.0:
        assert most_in_a_slice(arrivals_s) <= 2.5 * COUNT * SLICE_S / AGENT.last_s
    assert max(arrivals_s) - outage_s <= AGENT.last_s
    assert knocks <= COUNT * (4 + outage_s / 2.0), "knocking at a closed door is rare, too"


def test_without_jitter_they_would_all_come_at_once() -> None:
    """The measure sees what it is there for."""
    assert most_in_a_slice([AGENT.pause_s(0, 0.999)] * COUNT) == COUNT


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True), st.sampled_from([AGENT, LAUNCHER, FRONT]))
def test_pauses_stay_in_their_window_and_windows_grow(attempt: int, drawn: float, backoff: Backoff) -> None:
    assert 0 <= backoff.pause_s(attempt, drawn) < backoff.window_s(attempt) <= backoff.last_s
    assert backoff.window_s(attempt) <= backoff.window_s(attempt + 1)
    assert backoff.pause_s(attempt, drawn, refused=True) >= backoff.refused_s


@given(st.integers(0, 12), st.integers(1, 20))
def test_a_fleet_is_spread_evenly_over_the_window(attempt: int, slices: int) -> None:
    """With evenly drawn numbers, equal slices of the window get equal shares: nobody is bunched at an end."""
    fleet = 2_000
    arrivals = [AGENT.pause_s(attempt, (number + 0.5) / fleet) for number in range(fleet)]
    width_s = AGENT.window_s(attempt) / slices
    counts = [0] * slices
    for at_s in arrivals:
        counts[int(at_s / width_s)] += 1
    assert max(counts) - min(counts) <= 2


def test_windows_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="first <= last"):
        Backoff(first_s=2.0, last_s=1.0, refused_s=1.0)
