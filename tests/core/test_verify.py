"""Stages 8 and 9: recovered means progressing. And what an incident has cost when it is closed."""

import math

import pytest

from keepstep.core import facts as f
from keepstep.core.incident import Cause, IncidentState
from keepstep.core.intents import Fence
from keepstep.core.job import JobState

from .build import Plane, disk


def relaunched(*, step: int = 20, loss: float = 2.0, saved: int = 18) -> Plane:
    """A job that was at ``step`` and now runs again from ``saved``; its new generation has not shown a step yet."""
    plane = Plane().start(step=step, loss=loss)
    plane.inventories = {"n0": f.Inventory(disk=(disk(saved),)), "n1": f.Inventory(disk=(disk(saved),))}
    plane.tell(plane.exited(1, signal=9, step=step))
    plane.fence_all()
    plane.verify_all()
    plane.launch_all()
    plane.now_s += 0.5
    assert plane.incident.state is IncidentState.VERIFYING
    return plane


def test_all_ranks_alive_is_not_recovered() -> None:
    plane = relaunched()
    plane.wait(300.0)
    assert plane.incident.state is IncidentState.VERIFYING
    assert plane.job.state is JobState.RECOVERING


def test_enough_new_steps_are_recovered() -> None:
    plane = relaunched()
    plane.tell(plane.steps(19, loss=2.0))
    assert plane.incident.state is IncidentState.VERIFYING
    plane.tell(plane.steps(20, loss=1.9))
    assert plane.incident.state is IncidentState.RECOVERED
    assert plane.job.state is JobState.RUNNING
    assert plane.job.incident is None


def test_steps_of_the_older_generation_verify_nothing() -> None:
    plane = relaunched()
    plane.tell(plane.steps(99, generation=1))
    assert plane.incident.state is IncidentState.VERIFYING
    assert plane.world.stale == 1


def test_e9_a_program_that_ignores_the_restored_state_is_no_recovery() -> None:
    plane = relaunched()
    plane.tell(plane.steps(1, loss=9.0))
    assert plane.incident.state is not IncidentState.RECOVERED
    assert "did not continue: it reports step 1 after a restore of step 18" in plane.reasons()
    assert plane.pending(Fence)


def test_an_implausible_loss_refuses_the_state_and_goes_back() -> None:
    plane = relaunched()
    plane.tell(plane.steps(20, loss=50.0))
    assert plane.job.invalid == ["disk-18"]
    assert len(plane.incident.attempts) == 2
    assert plane.pending(Fence)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_refuses_the_state(loss: float) -> None:
    plane = relaunched()
    plane.tell(plane.steps(20, loss=loss))
    assert plane.job.invalid == ["disk-18"]


def test_a_loss_that_was_no_number_before_the_fault_is_no_reason() -> None:
    plane = relaunched(loss=math.nan)
    plane.tell(plane.steps(20, loss=math.nan))
    assert plane.incident.state is IncidentState.RECOVERED


def test_a_somewhat_higher_loss_is_plausible_just_after_a_restore() -> None:
    plane = relaunched(loss=2.0)
    plane.tell(plane.steps(20, loss=4.0))
    assert plane.incident.state is IncidentState.RECOVERED


def test_a_program_that_reports_no_loss_is_judged_by_its_steps() -> None:
    plane = relaunched()
    plane.tell(plane.steps(20))
    assert plane.incident.state is IncidentState.RECOVERED


def test_no_progress_goes_back_with_the_next_rung() -> None:
    plane = relaunched()
    plane.wait(plane.policy.incident_deadline_s["verifying"])
    found = plane.incident.attempt.diagnosis
    assert found is not None
    assert (found.cause, found.key) == (Cause.UNKNOWN, "no_progress")
    assert plane.incident.state is IncidentState.ISOLATING


def test_no_progress_again_and_again_ends() -> None:
    plane = relaunched()
    for _ in range(plane.policy.budget.per_cause["unknown"]):
        plane.wait(plane.policy.incident_deadline_s["verifying"])
        plane.fence_all()
        plane.verify_all()
        plane.launch_all()
    plane.wait(plane.policy.incident_deadline_s["verifying"])
    assert plane.incident.state is IncidentState.ESCALATED
    assert plane.job.exit_code is not None


def test_a_program_that_reports_no_steps_is_only_seen_to_live_and_the_verdict_says_so() -> None:
    plane = Plane()
    plane.submit()
    plane.launch_all()
    plane.wait(plane.policy.verify.blind_s)
    assert plane.incident.state is IncidentState.RECOVERED
    assert "progress was not seen" in plane.reasons()


def test_a_program_that_ends_well_while_it_is_verified_has_recovered() -> None:
    plane = relaunched()
    plane.tell(*(plane.exited(rank, code=0) for rank in range(4)))
    assert plane.incident.state is IncidentState.RECOVERED
    assert (plane.job.state, plane.job.exit_code) == (JobState.ENDING, 0)


def test_a_fault_during_the_verification_belongs_to_the_same_incident() -> None:
    plane = relaunched()
    plane.tell(plane.exited(2, signal=11, step=18))
    assert len(plane.world.incidents) == 2
    assert len(plane.incident.attempts) == 2


# ---- review


def test_the_review_counts_lost_steps_and_the_time_without_progress() -> None:
    plane = relaunched(step=20, saved=18)
    plane.tell(plane.steps(19))
    plane.now_s += 1.0
    plane.tell(plane.steps(20))
    incident = plane.incident
    assert incident.verdict == "recovered"
    assert incident.lost_steps == 2
    assert incident.downtime_s == 0.5
    assert set(incident.stage_s) >= {"open", "isolating", "selecting", "placing", "restarting", "verifying"}
    assert sum(incident.stage_s.values()) == incident.closed_s - incident.opened_s  # type: ignore[operator]


def test_what_was_not_recovered_was_without_progress_to_its_end() -> None:
    """Also where its last generation had made a step before it failed as well."""
    plane = relaunched()
    opened_s = plane.incident.opened_s
    for _ in range(plane.policy.budget.per_cause["unknown"]):
        plane.wait(plane.policy.incident_deadline_s["verifying"])
        plane.fence_all()
        plane.verify_all()
        plane.launch_all()
    plane.now_s += 1.0
    plane.tell(plane.steps(19))
    plane.wait(plane.policy.incident_deadline_s["verifying"])
    incident = plane.incident
    assert incident.state is IncidentState.ESCALATED
    assert incident.downtime_s == plane.now_s - opened_s
    assert f"{plane.now_s - opened_s:.2f} s without progress" in plane.reasons()


def test_a_closed_incident_keeps_no_evidence_in_memory_but_its_entries() -> None:
    plane = relaunched()
    plane.tell(plane.steps(20))
    assert plane.incident.evidence == {}
    assert plane.incident.symptoms
    assert plane.world.open_incidents == {}


def test_no_fault_costs_nothing() -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1"))
    plane.tell(plane.heard("n1"))
    assert (plane.incident.verdict, plane.incident.lost_steps, plane.incident.downtime_s) == ("no fault", 0, 0.0)
