"""Costs and failure rates from measurements: quantiles that follow, beliefs that start from published rates and learn."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.checkpoint.interval.estimate import (
    KEPT_SAMPLES,
    SCOPES,
    Belief,
    Samples,
    believe,
    divide,
    measured,
    observed,
    prior,
    quantile,
    resized,
)

DAY_S = 86_400.0


def samples(*values_s: float) -> Samples:
    now = Samples(assumed_s=99.0, assumption="80 GB at 0.8 GB/s")
    for value_s in values_s:
        now = measured(now, value_s)
    return now


def test_an_assumption_holds_until_the_first_measurement_and_says_so() -> None:
    assumed = quantile(samples(), 0.9)
    assert (assumed.value_s, assumed.samples, assumed.source) == (99.0, 0, "80 GB at 0.8 GB/s")
    figure = quantile(samples(4.0), 0.9)
    assert (figure.value_s, figure.samples, figure.source) == (4.0, 1, "90% quantile of the last 1 saves")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=100), st.floats(0.01, 0.99))
def test_a_quantile_is_one_of_the_recent_values_and_grows_with_its_share(values_s: list[float], share: float) -> None:
    seen = samples(*values_s)
    assert quantile(seen, share).value_s in values_s[-KEPT_SAMPLES:]
    assert quantile(seen, share / 2).value_s <= quantile(seen, share).value_s
    assert quantile(seen, share).samples == len(values_s)


def test_newer_saves_count_more() -> None:
    """A store became three times slower ten saves ago; plain quantiles of 60 would not have noticed yet."""
    assert quantile(samples(*[10.0] * 50, *[30.0] * 20), 0.5).value_s == 30.0
    assert quantile(samples(*[10.0] * 50, *[30.0] * 4), 0.5).value_s == 10.0
    assert quantile(samples(*[10.0] * 50, *[30.0] * 4), 0.9).value_s == 30.0


@pytest.mark.parametrize("wrong_s", [-1.0, math.inf, math.nan])
def test_a_duration_that_cannot_be_is_refused(wrong_s: float) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        samples(wrong_s)


def test_priors_agree_with_what_was_published_for_jobs_of_each_size() -> None:
    def hours_between(nodes: int) -> float:
        return 24 / sum(believe(scope, nodes).per_day for scope in SCOPES if scope != "power")

    assert hours_between(1) == pytest.approx(47.7 * 24, rel=0.25)
    assert hours_between(128) == pytest.approx(7.9, rel=0.25)
    assert hours_between(2048) == pytest.approx(3.09, rel=0.05)
    assert all(prior(scope, 16).source for scope in SCOPES)


def test_an_empty_job_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        prior("node", 0)


def test_evidence_outweighs_the_prior() -> None:
    """Ten days with two failures a day, on nodes believed to fail twenty times less often."""
    belief = believe("node", 32)
    assert belief.per_day < 0.11
    for _ in range(10):
        belief = observed(belief, 2, DAY_S)
    assert belief.per_day == pytest.approx(1.4, rel=0.1)
    assert belief.seen == 20
    low, high = belief.likely_per_day
    assert low < belief.per_day < high


def test_quiet_days_lower_the_rate_but_never_to_zero() -> None:
    rates = [believe("process", 64)]
    for _ in range(30):
        rates.append(observed(rates[-1], 0, DAY_S))
    assert all(later.rate_per_s < earlier.rate_per_s for earlier, later in itertools.pairwise(rates))
    assert 0 < rates[-1].per_day < rates[0].per_day / 10


def test_the_likely_range_narrows_with_evidence_and_has_known_quantiles() -> None:
    few, many = believe("power", 1), believe("power", 1)
    # Half a failure in 15 days: half a chi-squared variable of one degree.
    assert few.likely_per_day == pytest.approx((0.001966 / 15, 1.92073 / 15), rel=1e-3)
    for _ in range(60):
        many = observed(many, 1, DAY_S)
    assert many.likely_per_day[1] / many.likely_per_day[0] < 2 < few.likely_per_day[1] / few.likely_per_day[0]


def test_what_was_seen_long_ago_fades() -> None:
    bad = observed(believe("node", 8), 20, DAY_S)
    later = bad
    for _ in range(365):
        later = observed(later, 0, DAY_S)
    fresh = observed(believe("node", 8), 0, 40 * DAY_S)
    assert later.per_day == pytest.approx(fresh.per_day, rel=0.2)
    assert later.seen == 20


def test_a_resized_job_keeps_its_evidence_per_node() -> None:
    belief = believe("node", 16)
    for _ in range(20):
        belief = observed(belief, 4, DAY_S)
    assert resized(belief, 32).per_day == pytest.approx(2 * belief.per_day, rel=1e-9)
    assert resized(belief, 32).seen == belief.seen


def test_impossible_evidence_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        observed(believe("node", 1), -1, 1.0)


def test_each_scope_goes_to_the_first_tier_that_survives_it() -> None:
    rates = {"process": 4.0, "node": 3.0, "power": 2.0, "site": 1.0}
    memory, peer, disk, store = ("process",), ("process", "node"), ("process", "power"), SCOPES
    every = divide([memory, peer, disk, store], rates)
    assert every.scopes == (("process",), ("node",), ("power",), ("site",))
    assert every.rates_per_s == (4.0, 3.0, 2.0, 1.0)
    no_peer = divide([memory, disk, store], rates)
    assert no_peer.scopes == (("process",), ("power",), ("node", "site"))
    assert no_peer.rates_per_s == (4.0, 2.0, 4.0)
    assert divide([memory, disk], rates).uncovered == ("node", "site")


def test_beliefs_are_plain_data() -> None:
    import msgspec

    belief = observed(believe("process", 4), 1, 3600.0)
    assert msgspec.json.decode(msgspec.json.encode(belief), type=Belief) == belief
