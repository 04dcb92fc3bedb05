"""One kind of save against one kind of failure: published figures, and the properties of an optimum."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.checkpoint.interval.optimal import (
    Risk,
    Save,
    best_interval_s,
    daly_work_s,
    efficiency,
    exact_work_s,
    loss_s,
    lost,
    lost_slope,
    waste,
    young_work_s,
)

STALLS_S = st.floats(1e-3, 1e3)
MTBFS_S = st.floats(10.0, 1e8)


@pytest.mark.parametrize(("mtbf_min", "published_min"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_dalys_published_intervals_come_out(mtbf_min: float, published_min: float) -> None:
    assert daly_work_s(5, mtbf_min) == pytest.approx(published_min, rel=0.006)
    assert exact_work_s(5, mtbf_min) == pytest.approx(published_min, rel=0.01)


def test_a_stall_beyond_twice_the_mtbf_gives_the_mtbf() -> None:
    assert daly_work_s(50, 20) == 20
    assert exact_work_s(1000, 1) == pytest.approx(1.0)


@pytest.mark.parametrize(("interval_min", "effective"), [(5, 0.933), (60, 0.714)])
def test_a_cluster_of_2048_nodes_is_as_effective_as_published(interval_min: float, effective: float) -> None:
    risk = Risk(rate_per_s=2048 * 6.5e-3 / 86_400, restart_s=300)
    free = Save(stall_s=0, durable_s=1e-3)
    assert efficiency(interval_min * 60, free, risk) == pytest.approx(effective, abs=5e-4)


def test_with_a_save_that_blocks_it_is_the_exact_exponential_formula() -> None:
    work_s, stall_s, restart_s, mtbf_s = 500.0, 30.0, 200.0, 3000.0
    formula = work_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((work_s + stall_s) / mtbf_s))
    save, risk = Save(stall_s=stall_s, durable_s=stall_s), Risk(rate_per_s=1 / mtbf_s, restart_s=restart_s)
    assert efficiency(work_s + stall_s, save, risk) == pytest.approx(formula, rel=1e-12)


@given(STALLS_S, MTBFS_S)
def test_the_exact_optimum_solves_its_equation(stall_s: float, mtbf_s: float) -> None:
    share = exact_work_s(stall_s, mtbf_s) / mtbf_s
    assert 0 < share <= 1
    assert share + math.expm1(-(share + stall_s / mtbf_s)) == pytest.approx(0, abs=1e-14)


@given(STALLS_S, MTBFS_S, st.floats(1.001, 100))
def test_the_interval_grows_with_the_stall_and_with_the_mtbf(stall_s: float, mtbf_s: float, factor: float) -> None:
    here = exact_work_s(stall_s, mtbf_s)
    assert exact_work_s(stall_s, mtbf_s * factor) > here * (1 - 1e-9)
    assert exact_work_s(stall_s * factor, mtbf_s) >= here * (1 - 1e-9)


@given(STALLS_S, st.floats(1.0, 50), MTBFS_S, st.floats(0.3, 3.0))
def test_the_optimum_beats_its_neighbours(stall_s: float, latency: float, mtbf_s: float, factor: float) -> None:
    save, risk = Save(stall_s=stall_s, durable_s=stall_s * latency), Risk(rate_per_s=1 / mtbf_s, restart_s=60)
    best_s = best_interval_s(save, risk, most_s=math.inf)
    other_s = max(best_s * factor, save.durable_s * 1.0001)
    assert efficiency(best_s * 1.0000001, save, risk) >= efficiency(other_s, save, risk) - 1e-6


@given(st.floats(-6, 1.4).map(lambda exponent: 10**exponent))
def test_the_slope_of_lost_work_is_its_derivative(expected: float) -> None:
    step = 1e-4 * expected
    measured = (lost(expected + step) - lost(expected - step)) / (2 * step)
    assert lost_slope(expected) == pytest.approx(measured, rel=1e-5)


def test_young_is_the_limit_for_rare_failures() -> None:
    assert exact_work_s(1, 1e9) == pytest.approx(young_work_s(1, 1e9), rel=1e-4)


def test_a_latency_does_not_move_the_optimum_but_bounds_it() -> None:
    risk = Risk(rate_per_s=1e-4, restart_s=0)
    quick, slow = Save(stall_s=1, durable_s=1), Save(stall_s=1, durable_s=100)
    assert best_interval_s(quick, risk) == best_interval_s(slow, risk)
    assert best_interval_s(Save(stall_s=1, durable_s=900), risk) == 900
    assert waste(200, slow, risk) > waste(200, quick, risk)


def test_without_failures_or_beyond_the_bounds_the_declared_bounds_hold() -> None:
    save = Save(stall_s=1, durable_s=2)
    assert best_interval_s(save, Risk(rate_per_s=0, restart_s=0), most_s=7200) == 7200
    assert best_interval_s(save, Risk(rate_per_s=1e-9, restart_s=0), most_s=7200) == 7200
    assert best_interval_s(save, Risk(rate_per_s=1.0, restart_s=0), least_s=40) == 40


def test_a_failure_costs_half_an_interval_the_latency_and_the_restart() -> None:
    save, risk = Save(stall_s=1, durable_s=20), Risk(rate_per_s=1e-4, restart_s=90)
    assert loss_s(600, save, risk) == 300 + 20 + 90


def test_two_saves_in_flight_are_refused() -> None:
    with pytest.raises(ValueError, match="two would be in flight; use at least 60 s"):
        efficiency(59, Save(stall_s=1, durable_s=60), Risk(rate_per_s=1e-4, restart_s=0))


def test_impossible_costs_are_refused() -> None:
    with pytest.raises(ValueError, match="0 <= stall <= durable"):
        Save(stall_s=3, durable_s=2)
    with pytest.raises(ValueError, match="failure rate"):
        Risk(rate_per_s=math.nan, restart_s=0)
