"""How live jobs go, second by second, in bounded memory, and what of it the journal keeps around an incident.

Beats never enter the journal, but a review wants to see the loss and the step time where something failed: two facts an
incident, thinned. Owns the rings; must not judge them. After a restart of the server the rings are empty.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from keepstep.core.facts import CurveNoted, CurvePoint, Fact
from keepstep.core.ids import IncidentId, JobId
from keepstep.core.job import Job
from keepstep.core.vitals import JobVitals, Vitals, common_step, mean_loss
from keepstep.core.world import World
from keepstep.server.history import Books

KEPT = 600
"""Points of a job that are remembered."""
NOTED = 120
"""Points of one fact."""
EVERY_S = 1.0
BEFORE_S = 120.0
AFTER_S = 60.0
"""So long after its end the second half is noted: it shows whether the job goes as it did. At once where the job ends."""
_RANKS_A_SECOND = 4096
"""Of a larger job points lie further apart, so that looking at its ranks stays cheap."""

Half = Literal["before", "after"]


@dataclass(frozen=True)
class Point:
    at_s: float
    step: int
    loss: float | None
    step_time_s: float


@dataclass
class _Followed:
    job: JobId
    opened_s: float
    closed_s: float | None = None


class Curves:
    def __init__(self) -> None:
        self._points: dict[JobId, deque[Point]] = {}
        self._followed: dict[IncidentId, _Followed] = {}
        self._began = False

    def tick(self, books: Books, vitals: Vitals, now_s: float) -> list[Fact]:
        """Look once at every live job; returns what is to be journalled. To be called about once a second."""
        world = books.world
        for job in world.live_jobs:
            known = vitals.jobs.get(job)
            if known is not None:
                self._look(world.jobs[job], known, now_s)
        noted: list[Fact] = []
        if world.open_incidents or self._followed:
            noted = [*self._opened(world), *self._ended(world, now_s)]
        self._began = True
        wanted = {item.job for item in self._followed.values()} | set(world.live_jobs) if self._points else ()
        for job in [job for job in self._points if job not in wanted]:
            del self._points[job]
        return noted

    def points(self, job: JobId, since_s: float = 0.0) -> tuple[Point, ...]:
        """Of a live job, oldest first."""
        return tuple(point for point in self._points.get(job, ()) if point.at_s >= since_s)

    def _look(self, job: Job, vitals: JobVitals, now_s: float) -> None:
        if job.placement is None or vitals.generation != job.generation:
            return
        ring = self._points.setdefault(job.id, deque(maxlen=KEPT))
        apart_s = EVERY_S * max(1.0, len(vitals.ranks) / _RANKS_A_SECOND) * 0.9
        if ring and now_s - ring[-1].at_s < apart_s:
            return
        step = common_step(vitals, job.placement.world_size)
        if step < 0:
            return
        times_s = [sample.step_time_s for sample in vitals.ranks.values() if sample.step_time_s > 0]
        step_time_s = math.fsum(times_s) / len(times_s) if times_s else 0.0
        ring.append(Point(now_s, step, mean_loss(vitals), step_time_s))

    def _opened(self, world: World) -> Iterator[CurveNoted]:
        """What was open when this began is only followed to its end: nothing is remembered of the time before it."""
        for id in world.open_incidents:
            if id in self._followed:
                continue
            incident = world.incidents[id]
            self._followed[id] = _Followed(incident.job, incident.opened_s)
            if self._began and incident.kind == "fault":
                since_s, until_s = incident.opened_s - BEFORE_S, incident.opened_s
                yield from self._note(id, self._followed[id], "before", (since_s, until_s))

    def _ended(self, world: World, now_s: float) -> Iterator[CurveNoted]:
        over = []
        for id, item in self._followed.items():
            if id in world.open_incidents:
                continue
            known = world.incidents.get(id)
            item.closed_s = item.closed_s if item.closed_s is not None else now_s
            if now_s - item.closed_s >= AFTER_S or item.job not in world.live_jobs:
                over.append(id)
                if known is None or known.kind == "fault":
                    yield from self._note(id, item, "after", (item.opened_s, now_s))
        for id in over:
            del self._followed[id]

    def _note(self, id: IncidentId, item: _Followed, part: Half, span: tuple[float, float]) -> Iterable[CurveNoted]:
        found = [p for p in self._points.get(item.job, ()) if span[0] <= p.at_s <= span[1]]
        if not found:
            return ()
        points = tuple(
            CurvePoint(after_s=p.at_s - item.opened_s, step=p.step, loss=p.loss, step_time_s=p.step_time_s)
            for p in thinned(found)
        )
        return (CurveNoted(job=item.job, incident=id, part=part, points=points),)


def thinned(points: Sequence[Point], most: int = NOTED) -> list[Point]:
    """At most so many, evenly, the last one always."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]
