"""The first page: what is open and what it waits for, what runs, what there is to run on. For 3 a.m."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from litestar import Response, get
from msgspec import Struct

from keepstep.core.fault import Fault
from keepstep.core.ids import FaultId
from keepstep.core.incident import OWNER, Incident, IncidentState
from keepstep.core.job import TERMINAL, Job
from keepstep.core.policy import Policy
from keepstep.review.records import IncidentRecord
from keepstep.server.desk import Desk
from keepstep.server.fleet_queries import capacity
from keepstep.server.fleet_views import Capacity
from keepstep.server.policy_file import read_policy
from keepstep.server.queries import job_view
from keepstep.server.reports import report
from keepstep.web.pages.acts import Act, of_incident, of_suspects
from keepstep.web.pages.asking import Asked, Look, respond, tenant_filter

OPEN_MAX = 50
JOBS_MAX = 50
FAULTS_MAX = 20
RECENT = 8
ROAD = (
    IncidentState.OPEN, IncidentState.ISOLATING, IncidentState.SELECTING, IncidentState.PLACING, IncidentState.RESTARTING,
    IncidentState.VERIFYING,
)  # fmt: skip
"""The stages of a recovery, in order."""
LATE = 2.0
"""A checkpoint older than so many times its usual interval is late."""


class Stage(Struct, frozen=True, kw_only=True):
    name: str
    is_past: bool
    is_here: bool


class OpenIncident(Struct, frozen=True, kw_only=True):
    id: str
    job: str
    kind: str
    state: str
    road: tuple[Stage, ...]
    owner: str
    cause: str
    confidence: float | None
    summary: str
    for_count: int
    against_count: int
    resources: tuple[str, ...]
    lost_nodes: tuple[str, ...]
    opened_s: float
    in_state_s: float
    waits_for: str
    waits_for_person: bool
    last_reason: str
    acts: tuple[Act, ...]


class JobLine(Struct, frozen=True, kw_only=True):
    id: str
    state: str
    nodes: int
    ranks: int
    step: int
    loss: float | None
    step_time_s: float | None
    goodput: float | None
    checkpoint_step: int
    checkpoint_age_s: float | None
    target_s: float | None
    """Usual time between checkpoints."""
    late: bool
    slower: str
    incident: str


class FaultLine(Struct, frozen=True, kw_only=True):
    id: str
    resource: str
    failure_class: str
    verdict: str
    text: str
    opened_s: float
    count: int
    held: tuple[str, ...]


class Breaker(Struct, frozen=True, kw_only=True):
    used: int
    limit: int
    window_s: float

    @property
    def tripped(self) -> bool:
        return self.used >= self.limit


class Now(Struct, frozen=True, kw_only=True):
    waiting: tuple[OpenIncident, ...]
    open: tuple[OpenIncident, ...]
    more_open: int
    jobs: tuple[JobLine, ...]
    more_jobs: int
    faults: tuple[FaultLine, ...]
    more_faults: int
    capacity: Capacity
    breaker: Breaker
    recent: tuple[IncidentRecord, ...]


@lru_cache(maxsize=4)
def _read(overrides: str) -> Policy:
    return read_policy(overrides)


def policy_of(desk: Desk) -> Policy:
    """The one in force."""
    known = desk.registry.policy
    return _read(known.overrides) if known is not None else Policy()


def now(desk: Desk) -> Now:
    world = desk.world
    incidents = [i for i in map(world.incidents.__getitem__, world.open_incidents) if desk.sees(i.job)]
    incidents.sort(key=lambda i: (i.state is not IncidentState.WAITING, i.kind != "fault", i.opened_s))
    shown = [open_incident(desk, incident) for incident in incidents[:OPEN_MAX]]
    jobs = [job for job in map(world.jobs.__getitem__, world.live_jobs) if desk.sees(job.id)]
    jobs.sort(key=lambda job: -(job.placement.world_size if job.placement is not None else 0))
    faults = tuple(islice(_faults(desk), FAULTS_MAX))
    page = desk.archive.list("incident", {"kind": "fault", **tenant_filter(desk)}, limit=RECENT)
    return Now(
        waiting=tuple(i for i in shown if i.waits_for_person),
        open=tuple(i for i in shown if not i.waits_for_person),
        more_open=len(incidents) - len(shown),
        jobs=tuple(job_line(desk, job) for job in jobs[:JOBS_MAX]),
        more_jobs=max(0, len(jobs) - JOBS_MAX),
        faults=faults,
        more_faults=len(world.open_faults) - len(faults),
        capacity=capacity(desk),
        breaker=_breaker(desk),
        recent=tuple(record for record in page.records if isinstance(record, IncidentRecord)),
    )


def open_incident(desk: Desk, incident: Incident) -> OpenIncident:
    diagnosis = incident.diagnosis
    steps = desk.history.of_incident(incident.id)
    evidence = diagnosis.evidence if diagnosis is not None else ()
    waits = incident.state is IncidentState.WAITING
    return OpenIncident(
        id=incident.id,
        job=incident.job,
        kind=incident.kind,
        state=incident.state.value,
        road=tuple(_road(incident)),
        owner=OWNER[incident.state],
        cause=diagnosis.cause.value if diagnosis is not None else "",
        confidence=diagnosis.confidence if diagnosis is not None else None,
        summary=diagnosis.summary if diagnosis is not None else "",
        for_count=sum(e.supports for e in evidence),
        against_count=sum(not e.supports for e in evidence),
        resources=diagnosis.resources if diagnosis is not None else (),
        lost_nodes=diagnosis.lost_nodes if diagnosis is not None else (),
        opened_s=incident.opened_s,
        in_state_s=desk.now_s - incident.entered_s,
        waits_for=incident.waits_for,
        waits_for_person=waits,
        last_reason=steps[-1].reason if steps else "",
        acts=acts_of(desk, incident),
    )


def acts_of(desk: Desk, incident: Incident) -> tuple[Act, ...]:
    if desk.principal is None:
        return ()
    wait_s = policy_of(desk).approvals.wait_s
    return (
        *of_incident(incident, desk.world, desk.principal, wait_s, desk.now_s),
        *of_suspects(incident, desk.world, desk.principal),
    )


def _road(incident: Incident) -> Iterator[Stage]:
    """Where it stands; of one that waits, where it goes on."""
    here = incident.resume_at if incident.state is IncidentState.WAITING else incident.state
    place = ROAD.index(here) if here in ROAD else -1
    for number, state in enumerate(ROAD):
        yield Stage(name=state.value, is_past=number < place, is_here=number == place)


def job_line(desk: Desk, job: Job) -> JobLine:
    seen = job_view(desk, job)
    age_s = desk.now_s - job.committed_s if job.committed_s is not None else None
    target_s = job.commit_every_s
    return JobLine(
        id=job.id,
        state=job.state.value,
        nodes=seen.nodes,
        ranks=seen.ranks,
        step=seen.step,
        loss=seen.loss,
        step_time_s=job.step_time_s,
        goodput=report(desk.world, [job], desk.now_s).jobs[0].goodput,
        checkpoint_step=job.committed_step,
        checkpoint_age_s=age_s,
        target_s=target_s,
        late=job.state not in TERMINAL and age_s is not None and target_s is not None and age_s > LATE * target_s,
        slower=seen.slower,
        incident=job.incident or "",
    )


def _faults(desk: Desk) -> Iterator[FaultLine]:
    for id in reversed(desk.world.open_faults):
        yield fault_line(desk.world.faults[FaultId(id)])


def fault_line(fault: Fault) -> FaultLine:
    return FaultLine(
        id=fault.id, resource=fault.resource, failure_class=fault.nature.failure_class,
        verdict=fault.nature.verdict.value, text=fault.nature.text, opened_s=fault.opened_s, count=fault.count,
        held=tuple(fault.held),
    )  # fmt: skip


def _breaker(desk: Desk) -> Breaker:
    """As core.isolate counts it."""
    rule = policy_of(desk).breaker
    recent = sum(1 for at_s, _ in desk.world.isolations if desk.now_s - at_s < rule.window_s)
    limit = max(rule.absolute, int(rule.fraction * len(desk.world.resources)))
    return Breaker(used=recent, limit=limit, window_s=rule.window_s)


@get("/", include_in_schema=False)
async def show_now(request: Asked) -> Response[str]:
    look = Look(request)
    seen = await look.at(now)
    return respond(request, "now.html", look.frame("Now", "/"), {"now": seen})
