"""What a drill excuses and what it does not, and orders, links and deadlines of drills when something else happens too."""

import pytest

from keepstep.core import facts as f
from keepstep.core.drill import Drill, DrillKind, DrillState
from keepstep.core.intents import Inject
from keepstep.core.job import JobState

from .build import JOB, Plane, bug

SIGKILL = 9


def steady() -> Plane:
    return Plane().start(spares=1)


def begin(plane: Plane, kind: DrillKind = "kill-rank", rank: int = 2) -> Drill:
    plane.tell(f.DrillRequested(job=JOB, kind=kind, by="ann", rank=rank))
    drill = list(plane.world.drills.values())[-1]
    assert drill.state is DrillState.INJECTED, drill.state
    return drill


def test_the_same_rank_of_the_next_generation_is_charged() -> None:
    plane = steady()
    begin(plane)
    plane.answer(Inject, f.Done())
    plane.tell(plane.exited(2, signal=SIGKILL))
    assert plane.job.failures == []
    plane.fence_all()
    plane.verify_all()
    plane.launch_all()
    plane.tell(plane.exited(2, signal=SIGKILL))
    assert len(plane.job.failures) == 1


@pytest.mark.parametrize("error", [bug(), bug(kind="DeviceFault")])
def test_what_a_kill_cannot_look_like_is_charged(error: f.ErrorRecord) -> None:
    plane = steady()
    begin(plane)
    plane.tell(plane.exited(2, error=error))
    assert len(plane.job.failures) == 1


def test_a_rank_that_failed_first_is_charged_although_the_drill_hit_another_after_it() -> None:
    plane = steady()
    begin(plane)
    plane.fold(plane.exited(1, signal=SIGKILL))
    plane.tell(plane.exited(2, signal=SIGKILL))
    assert plane.incident.attempt.diagnosis is not None and plane.incident.attempt.diagnosis.culprits == (1, 2)
    assert len(plane.job.failures) == 1


def test_what_was_refused_excuses_nothing_and_is_called_off() -> None:
    plane = steady()
    drill = begin(plane)
    ((number, _),) = plane.pending(Inject)
    plane.fold(plane.exited(2, signal=SIGKILL))
    plane.tell(f.Answered(intent=number, outcome=f.Failed(reason="rank 2 does not run here")))
    assert len(plane.job.failures) == 1
    assert drill.state is DrillState.CALLED_OFF and "rank 2 does not run here" in drill.reason
    assert plane.incident.drill is None


def test_a_refusal_that_comes_after_an_incident_calls_off_and_lets_it_go() -> None:
    plane = steady()
    drill = begin(plane)
    plane.tell(plane.exited(1, signal=SIGKILL))
    assert drill.state is DrillState.RECOVERING
    plane.answer(Inject, f.Failed(reason="superseded"))
    assert drill.state is DrillState.CALLED_OFF
    assert drill.incident is None and plane.incident.drill is None


def test_an_incident_that_was_no_fault_is_not_the_drills() -> None:
    plane = steady()
    drill = begin(plane)
    plane.tell(plane.silent("n0", lost=True))
    silence = plane.incident
    assert drill.incident == silence.id
    plane.tell(plane.heard("n0"))
    assert drill.state is DrillState.INJECTED
    assert drill.incident is None and silence.drill is None
    plane.answer(Inject, f.Done())
    plane.tell(plane.exited(2, signal=SIGKILL))
    assert drill.incident == plane.incident.id != silence.id
    plane.recover()
    assert drill.state is DrillState.PASSED, drill.reason
    assert plane.job.failures == []


def test_the_order_does_not_outlive_its_drill() -> None:
    plane = steady()
    drill = begin(plane)
    assert plane.pending(Inject)
    plane.wait(4 * plane.policy.drills.detect_s)
    assert drill.state is DrillState.FAILED
    assert not plane.pending(Inject), "a node that comes back must not be told to do it now"


def test_a_server_that_was_down_gives_a_drill_its_time_again() -> None:
    plane = steady()
    drill = begin(plane)
    plane.now_s += 10 * plane.policy.drills.detect_s
    plane.tell(f.ServerStarted(server="next", version="test"))
    assert drill.state is DrillState.INJECTED
    plane.tell(plane.exited(2, signal=SIGKILL))
    assert drill.state is DrillState.RECOVERING and plane.job.failures == []


def test_a_job_of_which_a_rank_has_ended_well_is_not_hit() -> None:
    plane = steady()
    plane.tell(plane.exited(0, code=0))
    assert plane.job.state is JobState.RUNNING
    plane.tell(f.DrillRequested(job=JOB, kind="kill-rank", by="ann", rank=2))
    assert not plane.pending(Inject)


def test_the_only_rank_of_a_job_is_not_stopped() -> None:
    plane = Plane().start(nodes=1, nproc=1)
    plane.tell(f.DrillRequested(job=JOB, kind="stop-rank", by="ann", rank=0))
    plane.wait(plane.policy.drills.wait_s)
    (drill,) = plane.world.drills.values()
    assert drill.state is DrillState.CALLED_OFF and "has one rank" in drill.reason
