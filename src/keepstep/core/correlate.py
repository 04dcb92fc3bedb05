"""Stage 2, correlate: joins symptoms to the one incident of their job. Must not judge them.

A job has at most one open incident: whatever shows up while it is open is evidence for it, or a new fault during its
recovery, and both belong to one story. So a fault that arrives on two paths opens one incident (case B1).
"""

from keepstep.core.decision import Decision, Dismiss, Join, Open
from keepstep.core.ids import IncidentId
from keepstep.core.incident import Seen
from keepstep.core.job import Job, JobState
from keepstep.core.world import World


def correlate(world: World) -> Decision | None:
    """What to do with the oldest symptom that no incident has taken; None when there is none."""
    if not world.inbox:
        return None
    seen = world.inbox[0]
    job = world.jobs[seen.job] if seen.job is not None else None
    if job is None or job.state not in (JobState.STARTING, JobState.RUNNING, JobState.RECOVERING):
        dismissed = Dismiss(entry=seen.entry, queue="inbox")
        return Decision(stage="correlate", subject="inbox", reason="concerns no running job", changes=(dismissed,))
    symptoms = _run_of(world, job)
    leading = world.leading(job)
    if leading is None:
        return _open(world, job, symptoms)
    if not leading.open:
        return None  # it is being reviewed in this very turn; the symptom opens the next one
    joined = Join(incident=leading.id, symptoms=tuple(s.entry for s in symptoms))
    return Decision(
        stage="correlate",
        subject=leading.id,
        reason=f"{_names(symptoms)} while {leading.id} is open: the same story",
        changes=(joined,),
    )


def _run_of(world: World, job: Job) -> list[Seen]:
    """The symptoms of one job that stand at the head of the inbox together."""
    run = []
    for seen in world.inbox:
        if seen.job != job.id:
            break
        run.append(seen)
    return run


def _open(world: World, job: Job, symptoms: list[Seen]) -> Decision:
    incident = IncidentId(f"inc-{world.next_incident:04d}")
    entries = tuple(s.entry for s in symptoms)
    return Decision(
        stage="correlate",
        subject=incident,
        reason=f"{_names(symptoms)} in job {job.id}",
        changes=(Open(incident=incident, job=job.id, kind="fault", symptoms=entries),),
    )


def _names(symptoms: list[Seen]) -> str:
    return ", ".join(type(seen.fact).__name__ for seen in symptoms)
