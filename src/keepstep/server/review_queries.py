"""Material for reviews: from the books, the archive and the journal to the records that `keepstep.review` computes from.

Must not change anything. The computing itself is pure (`review.compute`), so that a server can hand it to a thread; so it does
with reading (``gather``), page by page.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, get_args

import msgspec

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.drill import Drill
from keepstep.core.ids import DrillId, FaultId, IncidentId, node_of
from keepstep.core.resource import ResourceState
from keepstep.ports import Journal
from keepstep.review import postmortem as p
from keepstep.review.compute import of_job
from keepstep.review.compute import review as compute
from keepstep.review.figures import Fleet, Material, Repair, Review
from keepstep.review.records import DrillRecord, FaultRecord, IncidentRecord, JobRecord, SaveRecord
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.records import drill_record, fault_record, incident_record, job_record
from keepstep.server.views import IncidentReport

WEEK_S = 7 * 86_400.0
REMEDIATIONS_MAX = 5000
"""Decisions that are looked through for repair orders."""
_PAGE = 500
_EVIDENCE_MAX = 32

Record = IncidentRecord | JobRecord | FaultRecord
Kind = Literal["incident", "job", "fault"]


def review(
    desk: Desk, since_s: float | None = None, until_s: float | None = None, tenant: str = "", job: str = ""
) -> Review:  # fmt: skip
    """Of the last seven days, where nothing is said, or of the whole life of a job. Raises ValueError for an empty span."""
    since_s, until_s = span(desk, 0.0 if job and since_s is None else since_s, until_s)
    closed = [record for kind in get_args(Kind) for record in desk.archive.records(kind, since_s)]
    material = material_of(desk, closed, remediations(desk.journal), since_s, until_s)
    return compute(*_narrowed(desk, material, tenant, job))


async def review_aside(
    desk: Callable[[], Desk], since_s: float | None = None, until_s: float | None = None, tenant: str = "", job: str = ""
) -> Review:  # fmt: skip
    """The same, for a server that does other things meanwhile: gathered page by page, computed in a thread."""
    material = await gather(desk, 0.0 if job and since_s is None else since_s, until_s)
    return await asyncio.to_thread(compute, *_narrowed(desk(), material, tenant, job))


def _narrowed(desk: Desk, material: Material, tenant: str, job: str) -> tuple[Material, str]:
    tenants = whose(desk, tenant)
    return (_only(material, job, tenants) if job else material), tenants


def _only(material: Material, job: str, tenants: str) -> Material:
    """Of one job, from its submission on where that is later."""
    mine = [x for x in material.jobs if x.id == job and (not tenants or x.tenant in tenants.split(","))]
    if not mine:
        known = ", ".join([x.id for x in material.jobs if not tenants or x.tenant in tenants.split(",")][-5:]) or "none"
        raise UnknownSubject(f"there is no job {job!r} in this time; the newest are: {known}")
    since_s = max(material.since_s, min(x.submitted_s for x in mine))
    return msgspec.structs.replace(of_job(material, job), since_s=since_s)


async def gather(
    desk: Callable[[], Desk], since_s: float | None = None, until_s: float | None = None
) -> Material:  # fmt: skip
    """Material, a page of the archive at a time. Hand it with ``whose(desk, tenant)`` to ``review.compute.review`` in a
    thread."""
    since_s, until_s = span(desk(), since_s, until_s)
    found: dict[tuple[Kind, str], Record] = {}
    for kind in get_args(Kind):
        records = desk().archive.records(kind, since_s)
        while part := await asyncio.to_thread(list, islice(records, _PAGE)):
            found.update(((kind, record.id), record) for record in part)
    decided = await asyncio.to_thread(remediations, desk().journal)
    return material_of(desk(), found.values(), decided, since_s, until_s)


def span(desk: Desk, since_s: float | None, until_s: float | None) -> tuple[float, float]:
    until_s = desk.now_s if until_s is None else min(until_s, desk.now_s)
    since_s = until_s - WEEK_S if since_s is None else since_s
    if since_s >= until_s:
        raise ValueError("the review would be of no time at all: `since` lies after `until`, or in the future")
    return since_s, until_s


def whose(desk: Desk, tenant: str) -> str:
    """Tenants of the review: what was asked for, as far as it may be seen."""
    if not desk.tenants:
        return tenant
    asked = [name for name in tenant.split(",") if name in desk.tenants] if tenant else list(desk.tenants)
    if not asked:
        raise UnknownSubject(f"there is no tenant {tenant!r}; yours: {', '.join(desk.tenants)}")
    return ",".join(asked)


def remediations(journal: Journal | None) -> tuple[d.Entry, ...]:
    """What a review reads in the journal itself, newest first."""
    found: list[d.Entry] = []
    while journal is not None and len(found) < REMEDIATIONS_MAX:
        page = journal.mentioning(["stage:remediate"], before=found[-1].seq if found else None, limit=_PAGE)
        found += page
        if len(page) < _PAGE:
            break
    return tuple(found)


def material_of(
    desk: Desk, closed: Iterable[Record], decided: Sequence[d.Entry], since_s: float, until_s: float
) -> Material:
    """What is over, with what is still open as of now. ``decided``: see ``remediations``."""
    world, over = desk.world, list(closed)
    going_on = [incident_record(world, world.incidents[id]) for id in world.open_incidents]
    incidents = (
        *(x for x in over if isinstance(x, IncidentRecord)),
        *(_so_far(record, desk.now_s) for record in going_on),
    )
    return Material(
        since_s=since_s,
        until_s=until_s,
        incidents=incidents,
        jobs=(
            *(x for x in over if isinstance(x, JobRecord)),
            *(job_record(world, world.jobs[id], desk.now_s) for id in world.live_jobs),
        ),
        faults=(
            *(x for x in over if isinstance(x, FaultRecord)),
            *(fault_record(world, world.faults[id]) for id in world.open_faults),
        ),
        saves=_saves(desk, since_s, until_s),
        precision=desk.history.ledger.precision(desk.now_s),
        fleet=_fleet(desk),
        repairs=_repairs(desk, decided),
        drills=_drills(desk, incidents),
    )


def _drills(desk: Desk, incidents: Iterable[IncidentRecord]) -> tuple[DrillRecord, ...]:
    """Those that the World has: the last two hundred."""
    rehearsed = {x.id: x for x in incidents if x.drill}
    return tuple(
        _drill(desk, drill, rehearsed.get(drill.incident or ""))
        for drill in desk.world.drills.values()
        if not drill.open
    )


def _drill(desk: Desk, drill: Drill, incident: IncidentRecord | None) -> DrillRecord:
    job = desk.world.jobs.get(drill.job)
    tenant = incident.tenant if incident is not None else job.spec.tenant if job is not None else ""
    return drill_record(drill, tenant, incident.opened_s if incident is not None else None)


def _so_far(record: IncidentRecord, now_s: float) -> IncidentRecord:
    down_s = now_s - record.opened_s if record.kind == "fault" else 0.0
    return msgspec.structs.replace(record, state="open", closed_s=now_s, downtime_s=max(0.0, down_s))


def _fleet(desk: Desk) -> Fleet:
    racks: dict[str, int] = {}
    for node in desk.world.by_node:
        rack = desk.world.domains.get(node, {}).get("rack", "")
        if rack:
            racks[rack] = racks.get(rack, 0) + 1
    return Fleet(nodes=len(desk.world.by_node), nodes_by_rack=racks)


def _saves(desk: Desk, since_s: float, until_s: float) -> tuple[SaveRecord, ...]:
    """As many of the newest as the tallies keep."""
    return tuple(
        SaveRecord(job=x.job, at_s=x.at_s, step=x.step, duration_s=x.duration_s, size_bytes=x.size_bytes)
        for x in desk.tallies.told.committed.values()
        if since_s <= x.at_s < until_s
    )


# ---- repair orders


def _repairs(desk: Desk, decided: Sequence[d.Entry]) -> tuple[Repair, ...]:
    """From the moves of resources in and out of repair, as the journal tells them."""
    found: dict[str, list[Repair]] = {}
    for entry in reversed(decided):
        if not isinstance(entry.record, d.Decision):
            continue
        for change in entry.record.changes:
            if isinstance(change, d.MoveResource):
                _moved(desk, found.setdefault(change.resource, []), change, entry.at_s, entry.record)
    return tuple(order for orders in found.values() for order in orders)


def _moved(desk: Desk, orders: list[Repair], move: d.MoveResource, at_s: float, decision: d.Decision) -> None:
    newest = orders[-1] if orders else None
    if move.to is ResourceState.REPAIR:
        known = desk.world.resources.get(move.resource)
        incident = next((x.incident for x in decision.intents if hasattr(x, "incident")), "")
        orders.append(
            Repair(
                resource=move.resource,
                node=node_of(move.resource),
                serial=known.serial if known is not None else "",
                reason=decision.reason.partition("; opening")[0],
                opened_s=at_s,
                incident=incident,
            )
        )
    elif newest is not None and newest.closed_s is None:
        orders[-1] = msgspec.structs.replace(newest, closed_s=at_s, became=move.to.value)
    elif newest is not None and newest.in_service_s is None and move.to in _WORKS:
        orders[-1] = msgspec.structs.replace(newest, in_service_s=at_s)


_WORKS = (ResourceState.PROBATION, ResourceState.IN_SERVICE)


# ---- one incident


def postmortem(desk: Desk, report: IncidentReport) -> p.Postmortem:
    """``report``: as the question ``incident`` answers it."""
    return p.postmortem(account(desk, report))


def account(desk: Desk, report: IncidentReport) -> p.Account:
    record, evidence = _record(desk, report), tuple(_evidence(report))
    curves = _curves(desk.journal, report.incident.id)
    return p.Account(
        record=record,
        drill=_rehearsed(desk, record),
        evidence=evidence,
        decisions=tuple(
            p.Decided(
                entry=action.entry,
                after_s=action.after_s,
                stage=action.stage,
                reason=action.reason,
                orders=tuple(
                    p.Order(number=x.number, kind=x.kind, node=x.node, answer=x.answer, took_s=x.took_s)
                    for x in action.orders
                ),
            )
            for action in report.actions
        ),
        began_s=_began_s(desk.journal, evidence),
        verified_step=report.verified_step,
        rejected=tuple(key for attempt in report.attempts for key in attempt.rejected),
        before=curves.get("before", ()),
        after=curves.get("after", ()),
        root=_root(desk, record.fault),
        repeats=sum(
            desk.archive.list("fault", {"node": node}, limit=1, until_s=record.opened_s).total
            for node in record.nodes[:4]
        ),
    )


def _record(desk: Desk, report: IncidentReport) -> IncidentRecord:
    """From the World while it is known there: an open one has no record yet."""
    known = desk.world.incidents.get(IncidentId(report.incident.id))
    if known is not None:
        return incident_record(desk.world, known)
    found = _archived(desk, "incident", report.incident.id)
    assert isinstance(found, IncidentRecord)
    return found


def _rehearsed(desk: Desk, record: IncidentRecord) -> DrillRecord | None:
    found = desk.world.drills.get(DrillId(record.drill))
    return _drill(desk, found, record) if found is not None else None


def _archived(desk: Desk, kind: Kind, id: str) -> Record | None:
    return next(iter(desk.archive.list(kind, {"id": id}, limit=1).records), None)


def _root(desk: Desk, fault: str) -> FaultRecord | None:
    if not fault:
        return None
    known = desk.world.faults.get(FaultId(fault))
    if known is not None:
        return fault_record(desk.world, known)
    found = _archived(desk, "fault", fault)
    return found if isinstance(found, FaultRecord) else None


def _evidence(report: IncidentReport) -> Iterator[p.Evidence]:
    for number, attempt in enumerate(report.attempts, start=1):
        for x in attempt.evidence:
            yield p.Evidence(entry=x.entry, source=x.source, text=x.text, supports=x.supports, attempt=number)


def _curves(journal: Journal | None, incident: str) -> dict[str, tuple[p.Point, ...]]:
    entries = journal.mentioning([incident], limit=_PAGE) if journal is not None else []
    return {
        fact.part: tuple(p.Point(x.after_s, x.step, x.loss, x.step_time_s) for x in fact.points)
        for entry in entries
        if isinstance(fact := entry.record, f.CurveNoted)
    }


def _began_s(journal: Journal | None, evidence: Iterable[p.Evidence]) -> float | None:
    """The earliest moment that a symptom of the first attempt speaks of."""
    if journal is None:
        return None
    wanted = dict.fromkeys(x.entry for x in evidence if x.attempt == 1 and x.supports)
    moments = []
    for seq in list(wanted)[:_EVIDENCE_MAX]:
        entry = next(iter(journal.mentioning([], before=seq + 1, limit=1)), None)
        if entry is not None and entry.seq == seq:
            moments.append(entry.at_s - _went_on_s(entry.record))
    return min(moments, default=None)


def _went_on_s(record: d.Record) -> float:
    match record:
        case f.JobStalled():
            return record.stalled_s
        case f.NodeUnreachable() | f.AgentSilent():
            return record.silent_s
        case f.SignalSeen():
            return record.age_s
        case _:
            return 0.0
