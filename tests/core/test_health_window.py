"""Histories of counters: what grew in which window, whatever the counter does."""

import math
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.core.health.features import strengths
from keepstep.core.health.level import COUNTERS, VENDOR_NAMES, Counter
from keepstep.core.health.window import (
    BUCKET_S,
    DAY_S,
    KEPT,
    Growth,
    Sample,
    amount,
    busy_share,
    extended,
    grown,
    history,
    per_day,
    points,
)

NOW_S = 1_000 * DAY_S
NAMES = sorted(COUNTERS)
READINGS = st.floats(allow_nan=True, allow_infinity=True, width=64) | st.integers(-5, 2**65).map(float)
SAMPLES = st.lists(
    st.builds(Sample, st.sampled_from([*NAMES, "unknown"]), st.floats(NOW_S - 2 * DAY_S, NOW_S + DAY_S), READINGS),
    max_size=40,
)


def steady(name: str, per_quarter: float, quarters: int = KEPT) -> list[Sample]:
    first = NOW_S - (quarters - 1) * BUCKET_S
    return [Sample(name, first + k * BUCKET_S, k * per_quarter) for k in range(quarters)]


@given(samples=SAMPLES, order=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_the_order_of_samples_does_not_matter(samples: list[Sample], order: object) -> None:
    shuffled = list(samples)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert history(samples) == history(shuffled)
    assert extended(history(samples[:7]), samples[7:]).series.keys() == history(samples).series.keys()


@given(samples=SAMPLES)
@settings(max_examples=100)
def test_no_reading_gives_a_negative_or_endless_strength(samples: list[Sample]) -> None:
    found = strengths(history(samples), NOW_S)
    assert all(value > 0 and math.isfinite(value) for value in found.values())


@given(values=st.lists(st.floats(0, 2**64), min_size=2, max_size=97))
@settings(max_examples=60)
def test_a_counter_that_goes_backwards_gives_no_negative_growth(values: list[float]) -> None:
    past = history(Sample("pcie_replays", NOW_S - k * BUCKET_S, value) for k, value in enumerate(values))
    assert all(one.amount > 0 for one in grown(COUNTERS["pcie_replays"], points(past, "pcie_replays", NOW_S)))


def test_a_reset_counts_from_zero_and_a_wrap_goes_on() -> None:
    counter = Counter(text="", unit="")
    assert grown(counter, [(0.0, 500.0), (900.0, 3.0)]) == [Growth(0.0, 900.0, 3.0)]
    assert grown(counter, [(0.0, 2.0**32 - 10), (900.0, 5.0)]) == [Growth(0.0, 900.0, 15.0)]
    assert grown(counter, [(0.0, 2.0**31), (900.0, 5.0)]) == [Growth(0.0, 900.0, 5.0)]


def test_a_history_is_bounded_whatever_comes() -> None:
    past = history(Sample("ecc_corrected", float(k), float(k)) for k in range(0, 40 * 86400, 600))
    assert len(past.series["ecc_corrected"]) == KEPT
    past = extended(past, [Sample("ecc_corrected", 41 * DAY_S, 9.0)])
    assert len(past.series["ecc_corrected"]) == KEPT
    assert len(history([], failed_at_s=range(1000)).failed_at_s) <= 64


def test_a_steady_rate_is_the_same_in_every_window() -> None:
    growths = grown(COUNTERS["pcie_replays"], points(history(steady("pcie_replays", 2.0)), "pcie_replays", NOW_S))
    for hours in (1.0, 6.0, 24.0):
        assert math.isclose(per_day(growths, NOW_S, hours), 2.0 * 96)
    assert busy_share(growths, NOW_S) == 1.0


def test_a_gap_does_not_look_like_a_burst() -> None:
    past = history([Sample("ecc_corrected", NOW_S - 20 * 3600, 0.0), Sample("ecc_corrected", NOW_S, 2000.0)])
    growths = grown(COUNTERS["ecc_corrected"], points(past, "ecc_corrected", NOW_S))
    assert math.isclose(amount(growths, NOW_S - 3600, NOW_S), 100.0)
    assert busy_share(growths, NOW_S) == 1 / 24


def test_one_burst_is_busy_in_one_hour_only() -> None:
    totals = accumulate(5000.0 if k == 40 else 0.0 for k in range(KEPT))
    first = NOW_S - (KEPT - 1) * BUCKET_S
    past = history(Sample("ecc_corrected", first + k * BUCKET_S, total) for k, total in enumerate(totals))
    found = strengths(past, NOW_S)
    assert found["ecc_corrected.sustained"] <= found["ecc_corrected.rate"] * 2 / 24
    assert found["ecc_corrected.rising"] == found["ecc_corrected.rate"]


def test_samples_with_a_clock_ahead_are_not_looked_at() -> None:
    past = history([*steady("pcie_resets", 0.0), Sample("pcie_resets", NOW_S + 3 * 3600, 900.0)])
    assert strengths(past, NOW_S) == {}


def test_a_stale_gauge_says_nothing_about_now() -> None:
    past = history(Sample("margin_c", NOW_S - 10 * 3600 + k, 1.0) for k in range(5))
    assert strengths(past, NOW_S) == {}


def test_vendors_names_lead_to_counters_that_exist() -> None:
    assert set(VENDOR_NAMES.values()) <= COUNTERS.keys()
