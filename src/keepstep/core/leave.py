"""Applies Retire: what leaves the World, and what stays known of it. Beside ``apply``. Must not decide (see retire.py)."""

from keepstep.core.decision import Retire
from keepstep.core.ids import IncidentId, JobId
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.job import Job, RetiredJob
from keepstep.core.world import World

_RUNS_KEPT = 8


def leave(world: World, change: Retire, at_s: float) -> None:
    world.retired_s = at_s
    for incident in change.incidents:
        _incident(world, incident)
    for fault in change.faults:
        del world.faults[fault], world.closed_faults[fault]
    for job in change.jobs:
        _job(world, job)
    if change.jobs:
        # Whoever was to answer has had long enough; an answer that comes yet is stale.
        gone = dict.fromkeys(change.jobs)
        for number in [n for n, pending in world.orders.items() if getattr(pending.intent, "job", None) in gone]:
            del world.orders[number]


def _incident(world: World, incident: IncidentId) -> None:
    item = world.incidents.pop(incident)
    del world.closed_incidents[incident]
    world.approvals.pop(incident, None)
    job = world.jobs[item.job]
    job.incidents_kept -= 1
    _remember(job, item)


def _remember(job: Job, item: Incident) -> None:
    """What a job's own account needs of an incident."""
    if item.kind != "fault":
        return
    if item.drill is None:
        job.past.faults += 1  # what somebody ordered is none, but its time and its steps are the job's all the same
    if item.state is IncidentState.NO_FAULT:
        return
    closed_s = item.closed_s if item.closed_s is not None else item.entered_s
    recovered = item.state is IncidentState.RECOVERED
    job.past.downtime_s += item.downtime_s if recovered else max(0.0, closed_s - item.opened_s)
    job.past.lost_steps += item.lost_steps
    job.past.redone_s += item.lost_steps * (item.step_time_before_s or 0.0)


def _job(world: World, job: JobId) -> None:
    item = world.jobs.pop(job)
    del world.ended_jobs[job]
    world.retired_jobs[job] = RetiredJob(
        generation=item.generation,
        runs=tuple(item.runs[-_RUNS_KEPT:]),
        invalid=tuple(item.invalid),
        tainted=tuple(item.tainted),
        tenant=item.spec.tenant,
    )
