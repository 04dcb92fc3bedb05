"""One job: its ranks by node, how long their steps take, generations, checkpoints by tier, the interval, its incidents."""

import math
from collections.abc import Iterator, Sequence

import msgspec
from litestar import Response, get
from litestar.params import FromPath
from msgspec import Struct

from keepstep.core.decision import Decision, Place
from keepstep.core.facts import CheckpointFailed
from keepstep.core.job import TERMINAL, Job
from keepstep.review.records import IncidentRecord
from keepstep.review.wording import count as counted
from keepstep.server import views
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.drill_queries import drills
from keepstep.server.drill_views import DrillView
from keepstep.server.queries import live
from keepstep.server.reports import report
from keepstep.server.saves import Save
from keepstep.web.pages import acts
from keepstep.web.pages.asking import Asked, Look, param, respond, whole
from keepstep.web.pages.intervals import Optimum, optimum
from keepstep.web.pages.now import JobLine, OpenIncident, job_line, open_incident

RANKS_PER_PAGE = 64
STRIP_MAX = 512
"""Columns of the heat strip; of a larger job the slowest rank of each group is shown."""
LEVELS = 6
NODES_MAX = 48
INCIDENTS_MAX = 20
DRILLS_SHOWN = 10
ENTRIES_LOOKED = 400
SAVES_SHOWN = 12
SAVES_TIMED = 100
"""The newest ones: what a save cost months ago says little of the next."""


class Cell(Struct, frozen=True, kw_only=True):
    """One column of the heat strip."""

    label: str
    level: int
    """0 … LEVELS - 1: how slow beside the others; -1 where nothing is known."""
    step_time_s: float


class NodeLine(Struct, frozen=True, kw_only=True):
    node: str
    ranks: str
    step: int
    slowest_s: float
    reachable: bool
    state: str


class Generation(Struct, frozen=True, kw_only=True):
    number: int
    at_s: float
    entry: int
    ranks: int
    nodes: tuple[str, ...]
    reason: str


class Checkpoint(Struct, frozen=True, kw_only=True):
    tier: str
    step: int
    at_s: float | None
    """None where only its existence was told."""
    duration_s: float | None
    size_bytes: int | None
    generation: int
    held_by: str


class JobPage(Struct, frozen=True, kw_only=True):
    line: JobLine
    argv: tuple[str, ...]
    labels: dict[str, str]
    tenant: str
    submitted_s: float
    running_since_s: float | None
    finished_s: float | None
    exit_code: int | None
    message: str
    is_over: bool
    totals: views.JobReport
    elasticity: str
    nodes: tuple[NodeLine, ...]
    """What is not as it should be first, then the slowest."""
    more_nodes: int
    strip: tuple[Cell, ...]
    strip_note: str
    ranks: tuple[views.RankView, ...]
    rank_page: int
    rank_pages: int
    rank_order: str
    generations: tuple[Generation, ...]
    checkpoints: tuple[Checkpoint, ...]
    failed_saves: tuple[tuple[float, CheckpointFailed], ...]
    interval: Optimum
    open: tuple[OpenIncident, ...]
    incidents: tuple[IncidentRecord, ...]
    incident_count: int
    drills: tuple[DrillView, ...]
    drill_acts: tuple[acts.Act, ...]
    acts: tuple[acts.Act, ...]


def job_page(desk: Desk, name: str, rank_page: int = 0, rank_order: str = "rank") -> JobPage:
    job = desk.job(name)
    ranks = live(desk, name).ranks
    ordered = (
        sorted(ranks, key=lambda r: -r.step_time_s) if rank_order == "slowest" else sorted(ranks, key=lambda r: r.rank)
    )
    pages = max(1, math.ceil(len(ranks) / RANKS_PER_PAGE))
    first = min(rank_page, pages - 1) * RANKS_PER_PAGE
    entries = desk.journal.mentioning([job.id], limit=ENTRIES_LOOKED) if desk.journal is not None else []
    saves = desk.tallies.told.of_job(job.id)
    past = desk.archive.list("incident", {"job": job.id, "kind": "fault"}, limit=INCIDENTS_MAX)
    records = tuple(r for r in past.records if isinstance(r, IncidentRecord))
    strip, note = _strip(ranks)
    nodes = sorted(_nodes(job, ranks), key=lambda n: (n.state in ("", "spare"), n.state, -n.slowest_s))
    elastic = job.spec.elasticity
    line = job_line(desk, job)
    return JobPage(
        line=line,
        argv=job.spec.argv,
        labels=dict(job.spec.labels),
        tenant=job.spec.tenant,
        submitted_s=job.submitted_s,
        running_since_s=job.running_since_s,
        finished_s=job.finished_s,
        exit_code=job.exit_code,
        message=job.message,
        is_over=job.state in TERMINAL,
        totals=report(desk.world, [job], desk.now_s).jobs[0],
        elasticity=counted(elastic.min_nodes, "node") if elastic.min_nodes == elastic.max_nodes else
        f"{elastic.min_nodes} to {elastic.max_nodes} nodes",
        nodes=tuple(nodes[:NODES_MAX]),
        more_nodes=max(0, len(nodes) - NODES_MAX),
        strip=strip,
        strip_note=note,
        ranks=tuple(ordered[first : first + RANKS_PER_PAGE]),
        rank_page=first // RANKS_PER_PAGE,
        rank_pages=pages,
        rank_order=rank_order,
        generations=tuple(
            Generation(number=c.placement.generation, at_s=e.at_s, entry=e.seq, ranks=c.placement.world_size,
                       nodes=tuple(c.placement.nodes), reason=e.record.reason)
            for e in entries if isinstance(e.record, Decision)
            for c in e.record.changes if isinstance(c, Place) and c.job == job.id
        ),
        checkpoints=tuple(_checkpoints(job, saves)),
        failed_saves=tuple((e.at_s, e.record) for e in entries if isinstance(e.record, CheckpointFailed))[:SAVES_SHOWN],
        interval=optimum(
            job.commit_every_s, [save.duration_s for save in saves[:SAVES_TIMED]], (r.cause for r in records),
            (job.finished_s or desk.now_s) - job.running_since_s if job.running_since_s is not None else 0.0,
            len(job.placement.nodes) if job.placement is not None else elastic.min_nodes,
        ),
        open=(open_incident(desk, desk.world.incidents[job.incident]),) if job.incident is not None else (),
        incidents=records,
        incident_count=past.total,
        acts=acts.of_job(job, desk.principal) if desk.principal is not None and job.state not in TERMINAL else (),
        drills=drills(desk, job.id, limit=DRILLS_SHOWN).drills,
        drill_acts=acts.of_drills(job, desk.world, desk.principal, line.step)
        if desk.principal is not None and job.state not in TERMINAL else (),
    )  # fmt: skip


def _nodes(job: Job, ranks: Sequence[views.RankView]) -> Iterator[NodeLine]:
    by_node: dict[str, list[views.RankView]] = {}
    for rank in ranks:
        by_node.setdefault(rank.node, []).append(rank)
    for node, launcher in job.launchers.items():
        own = by_node.pop(node, [])
        over = "over" if job.state in TERMINAL else ""
        state = f"gone: {launcher.gone}" if launcher.gone else "left" if launcher.left else over
        spare = "spare" if not own else ""
        yield _node_line(node, own, launcher.reachable, state or ("silent" if not launcher.reachable else spare))
    for name, own in by_node.items():
        yield _node_line(name, own, False, "no launcher is known")


def _node_line(node: str, own: Sequence[views.RankView], reachable: bool, state: str) -> NodeLine:
    numbers = sorted(rank.rank for rank in own)
    spans = f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else "".join(map(str, numbers))
    return NodeLine(
        node=node, ranks=spans, step=min((r.step for r in own), default=-1),
        slowest_s=max((r.step_time_s for r in own), default=0.0), reachable=reachable, state=state,
    )  # fmt: skip


def _strip(ranks: Sequence[views.RankView]) -> tuple[tuple[Cell, ...], str]:
    """One column a rank, or the slowest of a group. The levels are steps of 5 % above the median."""
    timed = sorted((r for r in ranks if r.step_time_s > 0), key=lambda r: r.rank)
    if not timed:
        return (), ""
    usual_s = sorted(r.step_time_s for r in timed)[len(timed) // 2]
    group = math.ceil(len(timed) / STRIP_MAX)
    cells = []
    for start in range(0, len(timed), group):
        worst = max(timed[start : start + group], key=lambda r: r.step_time_s)
        level = min(LEVELS - 1, max(0, math.floor((worst.step_time_s / usual_s - 1) / 0.05 + 0.5)))
        said = f"rank {worst.rank} on {worst.node}: {worst.step_time_s:.3g} s, {worst.step_time_s / usual_s:.2f} x the median"
        cells.append(Cell(label=said, level=level, step_time_s=worst.step_time_s))
    each = "each column is a rank" if group == 1 else f"each column is the slowest of {group} ranks"
    return tuple(cells), f"{each}; median {usual_s:.3g} s; a shade is 5 % above it"


def _checkpoints(job: Job, saves: Sequence[Save]) -> Iterator[Checkpoint]:
    """Memory first: it is the nearest tier. What nodes hold there was told when they were last asked; what a launcher held
    that is gone, or not heard, no recovery counts on."""
    ram: dict[tuple[int, int], list[str]] = {}
    for node, launcher in job.launchers.items() if job.state not in TERMINAL else ():
        is_there = launcher.reachable and not launcher.gone and not launcher.left
        for offer in launcher.inventory.ram if launcher.inventory is not None and is_there else ():
            ram.setdefault((offer.step, offer.generation), []).append(node)
    for (step, generation), nodes in sorted(ram.items(), reverse=True)[:SAVES_SHOWN]:
        yield Checkpoint(tier="memory", step=step, at_s=None, duration_s=None, size_bytes=None, generation=generation,
                         held_by=f"{counted(len(nodes), 'node')}: {', '.join(sorted(nodes)[:4])}")  # fmt: skip
    told = set()
    for save in saves[:SAVES_SHOWN]:
        told.add(save.key)
        yield Checkpoint(tier="disk", step=save.step, at_s=save.at_s, duration_s=save.duration_s or None,
                         size_bytes=save.size_bytes or None, generation=save.generation, held_by=save.key)  # fmt: skip
    for known in reversed(job.committed):
        if known.key not in told:
            yield Checkpoint(tier="disk", step=known.step, at_s=job.committed_s if known.key == job.committed_key else None,
                             duration_s=None, size_bytes=None, generation=known.generation, held_by=known.key)  # fmt: skip


@get("/jobs/{job:str}", include_in_schema=False)
async def show_job(request: Asked, job: FromPath[str]) -> Response[str]:
    look, page, order = Look(request), whole(request, "ranks"), param(request, "order")
    try:
        shown = await look.at(lambda desk: job_page(desk, job, page, order))
    except UnknownSubject as error:
        ended = await look.at(lambda desk: _ended(desk, job))
        if ended is None:
            return look.not_found(str(error), "/jobs")
        return respond(request, "ended_job.html", look.frame(f"Job {job}", "/jobs"), ended)
    return respond(request, "job.html", look.frame(f"Job {job}", "/jobs"), {"job": shown})


def _ended(desk: Desk, job: str) -> dict[str, object] | None:
    """One that the World has let go: its report is in the archive."""
    kept = desk.archived("job", job)
    if kept is None:
        return None
    past = desk.archive.list("incident", {"job": job, "kind": "fault"}, limit=INCIDENTS_MAX)
    return {"job": msgspec.msgpack.decode(kept, type=views.JobView), "past": past}
