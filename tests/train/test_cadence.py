"""Intervals: cheap snapshots at every step, dear ones rarely, and always at steps that all ranks have in common."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.train.cadence import LEAST_S, SLOW_SAVE_COST, Cadence


def cadence(*, steps: int | None = None, snapshot: int | None = None, alone: bool = False) -> Cadence:
    return Cadence(checkpoint_s=None, checkpoint_steps=steps, snapshot_steps=snapshot, alone=alone)


def interval(cost_s: float, step_s: float) -> int:
    measured = cadence()
    for _ in range(10):
        measured.snapshot_cost(cost_s)
    return measured._snapshot_interval(step_s)


@pytest.mark.parametrize(
    ("share", "every"), [(0.0001, 1), (0.019, 1), (0.021, 4), (0.039, 4), (0.05, 8), (0.3, 32), (2.0, 256)]
)
def test_every_step_up_to_two_percent_then_at_most_one(share: float, every: int) -> None:
    assert interval(share * 0.05, 0.05) == every
    assert every == 1 or share / every <= 0.01


@given(st.floats(1e-6, 10.0), st.floats(1e-6, 10.0))
def test_measured_intervals_always_have_steps_in_common(cost_s: float, step_s: float) -> None:
    assert interval(cost_s, step_s).bit_count() == 1


def test_one_slow_snapshot_does_not_thin_them_out() -> None:
    measured = cadence()
    for cost_s in [0.0001] * 20 + [0.5] * 5:
        measured.snapshot_cost(cost_s)
    assert measured._snapshot_interval(0.05) == 1


def chosen_s(*, stall_s: float, written_s: float, nodes: int = 1, in_memory: bool = True) -> float:
    measured = Cadence(
        checkpoint_s=None, checkpoint_steps=None, snapshot_steps=None, alone=True, nodes=nodes, in_memory=in_memory
    )
    measured.snapshot_cost(stall_s)
    if not in_memory:
        measured.checkpoint_taken(stall_s)
    measured.checkpoint_written(written_s)
    return measured._interval_s()


def test_the_interval_follows_what_a_save_costs_and_how_often_failures_come() -> None:
    assert chosen_s(stall_s=0.002, written_s=0.05) == LEAST_S, "cheap saves are taken often"
    assert chosen_s(stall_s=0.5, written_s=20.0) == 200.0, "the store is not kept busy"
    slow = chosen_s(stall_s=3.0, written_s=3.0, in_memory=False)
    assert slow >= 3.0 / SLOW_SAVE_COST
    assert chosen_s(stall_s=3.0, written_s=3.0, nodes=2048, in_memory=False) < slow, "more machines fail more often"


@given(st.floats(1e-4, 10.0), st.floats(1e-3, 300.0), st.integers(1, 4096))
def test_no_chosen_interval_is_shorter_than_a_save_takes(stall_s: float, written_s: float, nodes: int) -> None:
    assert chosen_s(stall_s=stall_s, written_s=written_s, nodes=nodes) >= max(LEAST_S, written_s)


def test_declared_intervals_are_kept() -> None:
    declared = cadence(steps=6, snapshot=3)
    declared.snapshot_cost(10.0)
    declared.adopt(*declared.proposal())
    assert [step for step in range(1, 13) if declared.snapshot_due(step)] == [3, 6, 9, 12]
    assert [step for step in range(1, 13) if declared.checkpoint_due(step)] == [6, 12]


def test_reviews_are_at_the_same_steps_on_all_ranks() -> None:
    measured = cadence()
    due = []
    for step in range(1, 3000):
        measured.step_done()
        if measured.review_due():
            due.append(step)
    assert due == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]


def test_by_time_several_ranks_save_at_agreed_steps_only() -> None:
    measured = cadence()
    assert not any(measured.checkpoint_due(step) for step in range(1, 100))
    measured.step_done()
    _, every = measured.proposal()
    assert every.bit_count() == 1
    measured.adopt(1, 16)
    assert [step for step in range(1, 40) if measured.checkpoint_due(step)] == [16, 32]
