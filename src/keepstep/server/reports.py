"""The report: what faults cost and how long recovery took, over the incidents of jobs. Pure arithmetic on the World."""

from collections import Counter
from collections.abc import Iterable, Sequence

from keepstep.core.incident import IncidentState
from keepstep.core.job import Job
from keepstep.core.world import World
from keepstep.review.estimates import nearest
from keepstep.review.records import DRILL, IncidentRecord
from keepstep.server import views
from keepstep.server.records import incident_record, job_record

RECOVERED = IncidentState.RECOVERED.value


def report(world: World, jobs: Sequence[Job], now_s: float) -> views.Report:
    faults = {job.id: _faults(world, job) for job in jobs}
    return views.Report(
        jobs=tuple(_job_report(world, job, faults[job.id], now_s) for job in jobs),
        stages=_spreads(record for found in faults.values() for record in found),
    )


def _faults(world: World, job: Job) -> list[IncidentRecord]:
    return [incident_record(world, i) for i in world.incidents.values() if i.job == job.id and i.kind == "fault"]


def _job_report(world: World, job: Job, faults: list[IncidentRecord], now_s: float) -> views.JobReport:
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
        lost_steps=job.past.lost_steps + sum(fault.lost_steps for fault in faults),
        redone_s=redone_s,
        faults=record.faults,
        by_cause=dict(Counter(DRILL if fault.drill else fault.cause for fault in faults)),
        by_verdict=dict(Counter(fault.state for fault in faults)),
        restored_from=dict(
            Counter(f.restored_from or "nothing" for f in faults if f.state == RECOVERED and f.attempts)
        ),
        stages=_spreads(faults),
    )


def _spreads(faults: Iterable[IncidentRecord]) -> tuple[views.StageSpread, ...]:
    """Recovered incidents only: the others have no recovery time. Drills have figures of their own."""
    samples: dict[str, list[float]] = {}
    for fault in faults:
        if fault.state != RECOVERED or fault.drill:
            continue
        for stage, seconds in fault.stage_s.items():
            samples.setdefault(stage, []).append(seconds)
        samples.setdefault("all", []).append(fault.downtime_s)
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
