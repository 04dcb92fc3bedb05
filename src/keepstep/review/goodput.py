"""Where the time of jobs went: ETTR, goodput, and badput by cause. Pure; the parts always add up to the whole.

A job's time runs from its submission to its end. Each second of it is one of: waiting for capacity, starting up, recovering
from an incident, work that a later incident undid, or productive.
"""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from keepstep.review.figures import Badput, JobTime, Time
from keepstep.review.records import IncidentRecord, JobRecord

JOBS_TOLD = 100
HOUR_S = 3600.0

QUEUE, STARTUP, RECOVERY, WASTED = "queue", "program_startup", "infrastructure_recovery", "wasted_progress"

_UNDER_WAY = ("selecting", "restarting", "verifying")
"""Stages of a first start in which something is done; in the others it waits for a place."""


class _Span(Struct):
    start_s: float
    end_s: float
    category: str
    cause: str = ""


class _Split(Struct):
    """One job, taken apart."""

    job: JobRecord
    total_s: float
    parts: dict[tuple[str, str], float] = field(default_factory=dict)
    """(category, cause) -> seconds in the span."""
    faults: int = 0

    @property
    def productive_s(self) -> float:
        return max(0.0, self.total_s - math.fsum(self.parts.values()))

    def of(self, category: str) -> float:
        return math.fsum(spent for (name, _), spent in self.parts.items() if name == category)


def time_of(
    jobs: Sequence[JobRecord], incidents: Iterable[IncidentRecord], since_s: float, until_s: float
) -> Time:  # fmt: skip
    of_job: dict[str, list[IncidentRecord]] = {}
    for incident in sorted(incidents, key=lambda x: (x.opened_s, x.id)):
        of_job.setdefault(incident.job, []).append(incident)
    splits = [_split(job, of_job.get(job.id, []), since_s, until_s) for job in sorted(jobs, key=lambda x: x.id)]
    weighed = [split for split in splits if split.job.ranks > 0 and split.total_s > 0]
    total = math.fsum(split.job.ranks * split.total_s for split in weighed)
    parts: dict[tuple[str, str], float] = {}
    for split in weighed:
        for key, spent in split.parts.items():
            parts[key] = parts.get(key, 0.0) + split.job.ranks * spent
    productive = max(0.0, total - math.fsum(parts.values()))
    ran = total - math.fsum(spent for (category, _), spent in parts.items() if category in (QUEUE, STARTUP))
    told = sorted((_told(split) for split in weighed), key=lambda x: (-x.ranks * (x.total_s - x.productive_s), x.job))
    return Time(
        n=len(weighed),
        total_gpu_h=total / HOUR_S,
        productive_gpu_h=productive / HOUR_S,
        ettr=productive / total if total > 0 else None,
        goodput=productive / ran if ran > 0 else None,
        badput=_badput(parts, total),
        jobs=tuple(told[:JOBS_TOLD]),
        note="" if weighed else "no job had GPUs in this time",
    )


def _badput(parts: dict[tuple[str, str], float], total: float) -> tuple[Badput, ...]:
    told = (
        Badput(category=category, cause=cause, gpu_h=spent / HOUR_S, share=spent / total if total > 0 else None)
        for (category, cause), spent in parts.items()
        if spent > 0
    )
    return tuple(sorted(told, key=lambda x: (-x.gpu_h, x.category, x.cause)))


def _told(split: _Split) -> JobTime:
    job, ran_s = split.job, split.total_s - split.of(QUEUE) - split.of(STARTUP)
    return JobTime(
        job=job.id,
        tenant=job.tenant,
        state=job.state,
        ranks=job.ranks,
        total_s=split.total_s,
        queue_s=split.of(QUEUE),
        startup_s=split.of(STARTUP),
        recovery_s=split.of(RECOVERY),
        wasted_s=split.of(WASTED),
        productive_s=split.productive_s,
        faults=split.faults,
        ettr=split.productive_s / split.total_s if split.total_s > 0 else None,
        goodput=split.productive_s / ran_s if ran_s > 0 else None,
        model=job.labels.get("model", ""),
    )


def _split(job: JobRecord, incidents: list[IncidentRecord], since_s: float, until_s: float) -> _Split:
    end_s = min(until_s, job.finished_s if job.finished_s is not None else until_s)
    start_s = max(since_s, job.submitted_s)
    split = _Split(job=job, total_s=max(0.0, end_s - start_s))
    faults = [x for x in incidents if x.kind == "fault" and x.opened_s < end_s and x.closed_s >= job.submitted_s]
    for span in _spans(job, faults, end_s) + _before_running(job, incidents, faults, end_s):
        spent = min(span.end_s, end_s) - max(span.start_s, start_s)
        if spent > 0:
            key = (span.category, span.cause)
            split.parts[key] = split.parts.get(key, 0.0) + spent
    split.faults = sum(1 for x in faults if since_s <= x.opened_s and x.state != "no_fault" and not x.drill)
    return split


def _spans(job: JobRecord, faults: list[IncidentRecord], end_s: float) -> list[_Span]:
    """Recoveries, and the work before each that was lost: taken off the newest productive time that is left."""
    told: list[_Span] = []
    productive: list[tuple[float, float]] = []
    first_s = job.running_since_s if job.running_since_s is not None else math.inf
    at_s = job.submitted_s
    for incident in faults:
        opened_s = max(at_s, incident.opened_s)
        if opened_s > max(at_s, first_s):
            productive.append((max(at_s, first_s), opened_s))
        told += _undone(productive, incident)
        down_s = min(end_s, incident.opened_s + incident.downtime_s)
        if down_s > opened_s:
            told.append(_Span(opened_s, down_s, RECOVERY, incident.charged_to))
        at_s = max(at_s, opened_s, down_s)
    return told


def _undone(productive: list[tuple[float, float]], incident: IncidentRecord) -> list[_Span]:
    told: list[_Span] = []
    left_s = incident.redone_s
    while productive:
        start_s, end_s = productive.pop()
        if end_s - left_s > start_s:
            productive.append((start_s, end_s - left_s))
            return [*told, _Span(end_s - left_s, end_s, WASTED, incident.charged_to)]
        told.append(_Span(start_s, end_s, WASTED, incident.charged_to))
        left_s -= end_s - start_s
    return told


def _before_running(
    job: JobRecord, incidents: list[IncidentRecord], faults: list[IncidentRecord], end_s: float
) -> list[_Span]:  # fmt: skip
    """Queue and start-up: what lies before the first verified step and is no recovery. The start comes after the queue."""
    until_s = min(end_s, job.running_since_s if job.running_since_s is not None else end_s)
    gaps, at_s = [], job.submitted_s
    for incident in faults:
        if incident.opened_s > at_s:
            gaps.append((at_s, min(until_s, incident.opened_s)))
        at_s = max(at_s, incident.opened_s + incident.downtime_s)
    gaps = [(start, end) for start, end in (*gaps, (at_s, until_s)) if end > start]
    starts = [x for x in incidents if x.kind == "start" and x.opened_s >= job.submitted_s]
    left_s = sum(x.stage_s.get(stage, 0.0) for x in starts for stage in _UNDER_WAY)
    told = []
    for start_s, stop_s in reversed(gaps):
        cut_s = max(start_s, stop_s - max(0.0, left_s))
        left_s -= stop_s - cut_s
        told += [_Span(start_s, cut_s, QUEUE), _Span(cut_s, stop_s, STARTUP)]
    return told
