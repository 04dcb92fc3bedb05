"""The last stage: what is over leaves the World after its time, and nothing that is still looked at does."""

import msgspec
import pytest

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.errors import InvariantBroken
from keepstep.core.intents import EndJob
from keepstep.core.invariants import check
from keepstep.core.policy import Policy, Retention
from keepstep.core.retire import AT_ONCE, EVERY_S

from .build import JOB, Plane, device, replayed

DAY_S = 86_400.0
KEPT = Policy().retention


def ended() -> Plane:
    """A job that failed once, recovered, and ended well."""
    plane = Plane().start()
    plane.tell(plane.exited(0, signal=9))
    plane.recover()
    for rank in range(4):
        plane.tell(plane.exited(rank, code=0))
    plane.answer(EndJob, f.Done())
    for node in ("n0", "n1"):
        plane.fold(plane.left(node))
    assert plane.job.finished_s is not None
    return plane


def later(plane: Plane, seconds: float) -> None:
    """Until the orders that nobody answers are overdue, and then some."""
    plane.wait(seconds)
    plane.wait(EVERY_S)


def test_closed_incidents_leave_after_their_time_and_the_job_keeps_their_sum() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(0, signal=9))
    plane.recover()
    incident = plane.incident
    later(plane, KEPT.incidents_s - 100.0)
    assert incident.id in plane.world.incidents
    later(plane, 200.0)
    assert not plane.world.incidents and not plane.world.closed_incidents
    assert plane.job.past.faults == 1
    assert plane.job.past.downtime_s == pytest.approx(incident.downtime_s)
    assert plane.job.incidents_kept == 0
    assert plane.world == replayed(plane)


def test_an_open_incident_stays_however_old_it_is() -> None:
    plane = Plane(Policy(retention=Retention(incidents_s=1.0, faults_s=1.0, jobs_s=1.0))).start()
    plane.tell(plane.exited(0, signal=9))
    later(plane, 100.0)
    assert plane.world.open_incidents and plane.world.live_jobs


def test_a_job_leaves_after_its_incidents_and_only_when_nothing_of_it_may_live() -> None:
    plane = ended()
    assert plane.world.ended_jobs
    later(plane, KEPT.jobs_s + 100.0)
    later(plane, EVERY_S)
    assert JOB not in plane.world.jobs and not plane.world.incidents
    assert plane.world.retired_jobs[JOB].generation == 2
    assert plane.world == replayed(plane)


def test_a_job_whose_ranks_are_not_proven_dead_stays() -> None:
    plane = Plane(Policy(retention=Retention(incidents_s=1.0, faults_s=1.0, jobs_s=1.0))).start()
    plane.tell(plane.silent("n1"))
    plane.tell(f.JobStopRequested(job=JOB, by="alice"))
    plane.answer(EndJob, f.Done(), node="n0")
    plane.tell(*(f.Overdue(intent=number, waited_s=30.0) for number, _ in plane.pending(EndJob)))
    later(plane, 10 * DAY_S)
    assert plane.job.finished_s is not None and plane.job.launchers["n1"].running
    assert JOB in plane.world.jobs


def test_a_job_that_comes_back_goes_on_with_its_generations_and_a_late_launcher_does_not_bring_it_back() -> None:
    plane = ended()
    runs = list(plane.job.runs)
    later(plane, KEPT.jobs_s + 100.0)
    later(plane, EVERY_S)
    spec = f.JobSpec(argv=("train.py",), nproc_per_node=2, elasticity=f.Elasticity(min_nodes=2, max_nodes=2))
    plane.tell(f.JobSubmitted(job=JOB, spec=spec, run=runs[-1]))
    assert JOB not in plane.world.jobs, "a launcher of the run that has ended"
    plane.tell(f.JobSubmitted(job=JOB, spec=spec, run="another"))
    assert plane.job.generation == 2 and plane.job.runs == [*runs, "another"]
    assert JOB not in plane.world.retired_jobs
    assert plane.world == replayed(plane)


def test_faults_leave_only_with_all_that_belong_to_them() -> None:
    plane = Plane().start()
    plane.tell(f.SignalSeen(resource=device("n0", 0), signal="xid.79"))
    fault = next(iter(plane.world.faults.values()))
    wide = msgspec.structs.replace(fault, id="flt-wide", group=None, members=[fault.id])
    plane.world.faults[wide.id] = wide
    plane.world.closed_faults[wide.id] = plane.now_s
    wide.state = type(wide.state).CLOSED
    plane.now_s += KEPT.faults_s + 1.0
    retired = [c for x in plane.turn() for c in x.changes if isinstance(c, d.Retire)]
    assert fault.id in plane.world.faults
    assert all(wide.id not in change.faults for change in retired), "its member is open"


def test_a_backlog_leaves_in_bounded_portions() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(0, signal=9))
    plane.recover()
    one = plane.incident
    for number in range(2 * AT_ONCE):
        copy = msgspec.structs.replace(one, id=f"inc-x{number:04}")
        plane.world.incidents[copy.id] = copy
        plane.world.closed_incidents[copy.id] = plane.now_s
        plane.job.incidents_kept += 1
    before = len(plane.world.incidents)
    plane.wait(KEPT.incidents_s + 1.0)
    assert before - len(plane.world.incidents) == AT_ONCE
    plane.wait(EVERY_S / 2)
    assert before - len(plane.world.incidents) == AT_ONCE
    plane.wait(EVERY_S / 2)
    assert before - len(plane.world.incidents) == 2 * AT_ONCE


def test_what_is_not_over_cannot_be_retired() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(0, signal=9))
    for change in (d.Retire(incidents=(plane.incident.id,)), d.Retire(jobs=(JOB,))):
        with pytest.raises(InvariantBroken, match="only what is over"):
            check(
                plane.world, d.Decision(stage="retire", subject="archive", reason="", changes=(change,)), plane.policy
            )
