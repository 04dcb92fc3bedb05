"""Step times: one slow rank is found, a slow-down of all is not one, and real traces of healthy jobs raise no alarm."""

import csv
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.core.steps import Step, findings
from keepstep.core.stragglers import slowdown, stragglers

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"


def times(ranks: int, steps: int, noise: float, seed: int) -> dict[int, list[float]]:
    draw = random.Random(seed)
    return {rank: [draw.gauss(1.0, noise) for _ in range(steps)] for rank in range(ranks)}


@given(st.integers(4, 40), st.integers(0, 1000), st.floats(1.05, 3.0), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_one_slow_rank_is_found(ranks: int, slow: int, factor: float, seed: int) -> None:
    series = times(ranks, 30, 0.003, seed)
    series[slow % ranks] = [value * factor for value in series[slow % ranks]]
    assert [s.rank for s in stragglers(series)] == [slow % ranks]


@given(st.integers(4, 20), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_the_order_of_ranks_does_not_matter(ranks: int, seed: int) -> None:
    series = times(ranks, 20, 0.01, seed)
    series[0] = [value * 1.2 for value in series[0]]
    assert stragglers(dict(reversed(series.items()))) == stragglers(series)


@given(st.integers(1, 20), st.floats(1.0, 4.0), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_a_slow_down_of_all_is_no_straggler(ranks: int, factor: float, seed: int) -> None:
    series = times(ranks, 40, 0.01, seed)
    slower = {rank: [v * (factor if at >= 20 else 1) for at, v in enumerate(values)] for rank, values in series.items()}
    assert stragglers(slower) == []


def test_a_rank_that_becomes_slow_is_found_with_the_step() -> None:
    series = times(8, 60, 0.003, 5)
    series[6] = [v * (1.06 if at >= 40 else 1) for at, v in enumerate(series[6])]
    found = stragglers(series)
    assert [(s.rank, s.against) for s in found] == [(6, "self")]
    assert 36 <= found[0].since_step <= 44


@pytest.mark.parametrize(
    "series", [{}, {0: [1.0]}, {r: [float("nan")] * 20 for r in range(8)}, {r: [0.0] * 20 for r in range(8)}]
)
def test_too_little_evidence_names_nobody(series: dict[int, list[float]]) -> None:
    assert stragglers(series) == []


@pytest.mark.parametrize("job", [1, 2])
def test_the_real_step_times_of_a_healthy_job_raise_no_alarm(job: int) -> None:
    file = TRACES / f"alibaba_v2020_minibatch_job_{job}.csv"
    if not file.exists():
        pytest.skip("no shared data")
    series: dict[int, list[float]] = {}
    for row in csv.DictReader(file.read_text().splitlines()):
        series.setdefault(int(row["worker"]), []).append(float(row["batch_time_norm"]))
    assert stragglers(series) == []
    assert not any(slowdown(values) for values in series.values())


def test_a_series_that_rises_and_comes_back_is_no_slow_down() -> None:
    assert slowdown([1.0] * 20 + [1.5] * 5 + [1.0] * 20) is None


def test_one_slow_card_that_costs_five_percent_shows_in_the_steps_of_the_job() -> None:
    """Trap 18: the job lost 5.7 %, while a benchmark of the node differed by 2.5 %."""
    seconds = [105.2, 105.1, 106.2, 110.2, 111.1]
    found = findings([Step(step=at, seconds=value) for at, value in enumerate(seconds, 100)])
    assert [f.signal for f in found] == ["job.step_slower"]


def test_a_loss_spike_that_heals_is_no_fault() -> None:
    """Trap 17."""
    losses = [2.2, 2.22, 2.6, 2.24, 2.35, 5.1, 3.5, 3.2, 2.8, 2.2, 2.2]
    found = findings([Step(step=at, loss=value) for at, value in enumerate(losses, 10)])
    assert [f.signal for f in found] == ["job.loss_spike"]


def test_a_falling_loss_and_even_steps_are_nothing() -> None:
    steps = [Step(step=at, loss=10 / (at + 1), seconds=1 + at % 3 / 50, consumed=at * 8) for at in range(200)]
    assert findings(steps) == []


def test_a_position_in_the_data_that_goes_back_is_found_unless_the_steps_go_back_too() -> None:
    """Trap 20."""
    steps = [Step(step=5, consumed=900), Step(step=6, consumed=15)]
    assert [f.signal for f in findings(steps)] == ["job.data_regression"]
    assert findings([Step(step=5, consumed=900), Step(step=3, consumed=600)]) == []


def test_a_loss_that_stays_no_number_is_a_fault_and_one_that_returns_is_not() -> None:
    nan = float("nan")
    stays = [Step(step=at, loss=nan if at > 5 else 2.0) for at in range(12)]
    returns = [Step(step=at, loss=nan if at == 5 else 2.0) for at in range(12)]
    assert [f.signal for f in findings(stays)] == ["job.loss_nan"]
    assert [f.signal for f in findings(returns)] == ["job.loss_spike"]
