"""When to act: a table of cases made by hand, and what always holds."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.core.health.forecast import Forecast, failing_by, useful_hours
from keepstep.core.health.timing import (
    JOB_END,
    MAINTENANCE,
    NEXT_CHECKPOINT,
    NOW,
    Candidate,
    Policy,
    Recommendation,
    Situation,
    marginal_cost,
    ordered,
    recommend,
)

HOUR_S = 3600.0
ORDINARY = Forecast(rates_per_h=(1.6e-4,) * 3, usual_per_h=(1.6e-4,) * 3)
JOB = Situation(
    gpus=1024,
    job_remaining_s=48 * HOUR_S,
    checkpoint_age_s=1800.0,
    checkpoint_interval_s=3600.0,
    next_checkpoint_s=1800.0,
    replaced=ORDINARY,
)


def rated(first: float, second: float | None = None, third: float | None = None) -> Forecast:
    second = first if second is None else second
    return Forecast(rates_per_h=(first, second, second if third is None else third), usual_per_h=ORDINARY.rates_per_h)


CASES = [
    ("an ordinary node stays until the end", rated(1.6e-4), {}, JOB_END),
    ("ten times the usual is not worth a restart in a short job", rated(1.6e-3), {"job_remaining_s": 2 * HOUR_S}, JOB_END),
    ("likely within hours: at the next checkpoint", rated(0.05), {}, NEXT_CHECKPOINT),
    ("all but certain within the hour, a checkpoint far away", rated(3.0),
     {"checkpoint_age_s": 60.0, "next_checkpoint_s": 3540.0}, NOW),
    ("all but certain, yet the checkpoint comes in a minute", rated(3.0),
     {"checkpoint_age_s": 3540.0, "next_checkpoint_s": 60.0}, NEXT_CHECKPOINT),
    ("a save can be asked for: little is at risk by moving now", rated(3.0), {"save_s": 5.0}, NOW),
    ("a window comes before it probably fails", rated(0.004), {"maintenance_in_s": 6 * HOUR_S}, MAINTENANCE),
    ("it will not hold until the window", rated(0.5), {"maintenance_in_s": 20 * HOUR_S}, NEXT_CHECKPOINT),
    ("a window after the job is none of its moments", rated(0.001), {"maintenance_in_s": 90 * HOUR_S,
     "job_remaining_s": 2 * HOUR_S}, JOB_END),
    ("no spare, middling risk: moving would cost hours for certain", rated(0.01), {"spares": 0}, JOB_END),
    ("the budget for interruptions is dear", rated(0.02), {"preemption_gpu_h": 5000.0}, JOB_END),
    ("the job ends before the next checkpoint", rated(0.05), {"job_remaining_s": 900.0}, JOB_END),
    ("a job of one GPU is not worth an interruption", rated(0.05), {"gpus": 1}, JOB_END),
    ("the job has ended", rated(3.0), {"job_remaining_s": 0.0}, JOB_END),
]  # fmt: skip


@pytest.mark.parametrize(("what", "of", "changes", "when"), CASES, ids=[case[0] for case in CASES])
def test_the_moment_follows_from_the_costs(what: str, of: Forecast, changes: dict[str, float], when: str) -> None:
    advice = recommend(of, msgspec.structs.replace(JOB, **changes))
    assert advice.when == when, advice.reason
    assert advice.reason.startswith(when.replace("_", " "))


def test_the_cost_of_waiting_can_be_checked_by_hand() -> None:
    """No risk but of the first hour: 1 GPU, one failure in 2 h; 30 s + 300 s + (1800 s at risk + half of 1800 s)."""
    quiet = Forecast(rates_per_h=(0.0, 0.0, 0.0), usual_per_h=(0.0, 0.0, 0.0))
    job = msgspec.structs.replace(JOB, gpus=1, job_remaining_s=2 * HOUR_S, replaced=quiet)
    costs = recommend(rated(0.5, 0.0), job).costs_gpu_h
    p_first, p_hour = 1 - math.exp(-0.25), 1 - math.exp(-0.5)
    expected = p_first * (330 + 1800 + 900) / 3600 + (p_hour - p_first) * (330 + 1800) / 3600
    assert math.isclose(costs[JOB_END], expected)
    assert math.isclose(costs[NOW], (300 + 1800) / 3600)


@given(
    rate=st.floats(0, 2),
    more=st.floats(1, 50),
    age=st.floats(0, 3600),
    remaining=st.floats(0, 200),
    spares=st.integers(0, 2),
)
@settings(max_examples=100)
def test_more_risk_never_makes_leaving_it_cheaper_and_advice_is_never_dearer_than_that(
    rate: float, more: float, age: float, remaining: float, spares: int
) -> None:
    job = msgspec.structs.replace(
        JOB, checkpoint_age_s=age, next_checkpoint_s=3600 - age, job_remaining_s=remaining * HOUR_S, spares=spares
    )
    calm, risky = recommend(rated(rate), job), recommend(rated(rate * more), job)
    assert risky.costs_gpu_h[JOB_END] >= calm.costs_gpu_h[JOB_END] - 1e-9
    assert all(cost >= 0 for cost in risky.costs_gpu_h.values())
    assert risky.costs_gpu_h[risky.when] <= risky.costs_gpu_h[JOB_END]


def test_a_small_gain_is_not_worth_an_interruption() -> None:
    of = rated(0.02)
    eager = recommend(of, JOB, Policy(worth_share=0.0, worth_gpu_h=0.0))
    calm = recommend(of, JOB, Policy(worth_share=0.99, worth_gpu_h=0.0))
    assert (eager.when, calm.when) == (NEXT_CHECKPOINT, JOB_END)


def advice(when: str, move: float, saves: float) -> Recommendation:
    return Recommendation(when=when, costs_gpu_h={}, saves_gpu_h=saves, move_gpu_h=move, p_before=0.0, reason="")


def test_the_cheapest_hour_saved_comes_first() -> None:
    given = [
        Candidate(node="dear", advice=advice(NOW, 100.0, 50.0)),
        Candidate(node="cheap", advice=advice(NEXT_CHECKPOINT, 85.0, 500.0)),
        Candidate(node="free", advice=advice(MAINTENANCE, 0.0, 10.0)),
        Candidate(node="stays", advice=advice(JOB_END, 0.0, 0.0)),
        Candidate(node="free and more", advice=advice(MAINTENANCE, 0.0, 20.0)),
    ]
    assert [one.node for one in ordered(given)] == ["free and more", "free", "cheap", "dear"]
    assert marginal_cost(given[3].advice) == math.inf


@given(rates=st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 2)), horizon=st.floats(0.1, 2000))
@settings(max_examples=60)
def test_useful_hours_are_between_none_and_all_and_match_the_survival(
    rates: tuple[float, float, float], horizon: float
) -> None:
    of = Forecast(rates_per_h=rates, usual_per_h=rates)
    hours = useful_hours(of, horizon)
    assert 0 < hours <= horizon * (1 + 1e-9)
    steps = 4000
    summed = sum(1 - failing_by(of, horizon * (k + 0.5) / steps) for k in range(steps)) * horizon / steps
    assert math.isclose(hours, summed, rel_tol=0.02, abs_tol=0.05)
