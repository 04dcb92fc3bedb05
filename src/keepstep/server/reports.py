"""The report: what faults cost and how long recovery took, over the incidents of jobs. Pure arithmetic on the World."""

from collections import Counter
from collections.abc import Iterable, Sequence

from keepstep.core.incident import Incident, IncidentState
from keepstep.core.job import Job
from keepstep.core.world import World
from keepstep.review.estimates import nearest
from keepstep.review.records import DRILL
from keepstep.server import views
from keepstep.server.records import job_record, led_by_drill


def report(world: World, jobs: Sequence[Job], now_s: float) -> views.Report:
    faults = {job.id: _faults(world, job) for job in jobs}
    return views.Report(
        jobs=tuple(_job_report(world, job, faults[job.id], now_s) for job in jobs),
        stages=_spreads(incident for found in faults.values() for incident in found),
    )


def _faults(world: World, job: Job) -> list[Incident]:
    return [incident for incident in world.incidents.values() if incident.job == job.id and incident.kind == "fault"]


def _job_report(world: World, job: Job, faults: list[Incident], now_s: float) -> views.JobReport:
    """Sums are over all its incidents; causes and stages over those that the World still has."""
    end_s = job.finished_s if job.finished_s is not None else now_s
    record = job_record(world, job, end_s)
    downtime_s, redone_s = record.downtime_s, record.redone_s
    goodput = None
    if job.running_since_s is not None and end_s > job.running_since_s:
        spent_s = end_s - job.running_since_s
        goodput = max(0.0, (spent_s - downtime_s - redone_s) / spent_s)
    return views.JobReport(
        job=job.id,
        state=job.state.value,
        elapsed_s=end_s - job.submitted_s,
        goodput=goodput,
        downtime_s=downtime_s,
        lost_steps=job.past.lost_steps + sum(incident.lost_steps for incident in faults),
        redone_s=redone_s,
        faults=record.faults,
        by_cause=dict(Counter(_cause(incident) for incident in faults)),
        by_verdict=dict(Counter(incident.state.value for incident in faults)),
        restored_from=dict(Counter(tier for incident in faults if (tier := _tier(incident)))),
        stages=_spreads(faults),
    )


def _cause(incident: Incident) -> str:
    if led_by_drill(incident):
        return DRILL
    diagnosed = [attempt.diagnosis for attempt in incident.attempts if attempt.diagnosis is not None]
    return diagnosed[-1].cause.value if diagnosed else "undiagnosed"


def _tier(incident: Incident) -> str:
    """Where the generation that lives was restored from; empty where none was started."""
    started = [attempt for attempt in incident.attempts if attempt.new_generation]
    if not started or incident.state is not IncidentState.RECOVERED:
        return ""
    restore = started[-1].restore
    return restore.tier if restore is not None else "nothing"


def _spreads(incidents: Iterable[Incident]) -> tuple[views.StageSpread, ...]:
    """Recovered incidents only: the others have no recovery time. Drills have figures of their own."""
    samples: dict[str, list[float]] = {}
    for incident in incidents:
        if incident.state is not IncidentState.RECOVERED or led_by_drill(incident):
            continue
        for stage, seconds in incident.stage_s.items():
            samples.setdefault(stage, []).append(seconds)
        samples.setdefault("all", []).append(incident.downtime_s)
    order = [state.value for state in IncidentState] + ["all"]
    return tuple(
        views.StageSpread(
            stage=stage,
            count=len(samples[stage]),
            p50_s=nearest(sorted(samples[stage]), 0.50),
            p95_s=nearest(sorted(samples[stage]), 0.95),
        )
        for stage in order
        if stage in samples
    )
