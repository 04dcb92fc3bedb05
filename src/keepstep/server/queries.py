"""The read side: questions of tools, answered from the books. Must not change anything.

The same functions answer on a live server and on a journal file that was replayed; only the vitals are missing there.
``QUESTIONS`` is the whole list; a question's arguments are the keyword arguments of its function.
"""

import inspect
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from keepstep.core.ids import IncidentId, JobId, NodeId, node_of
from keepstep.core.incident import Attempt, Incident, IncidentState
from keepstep.core.job import Job, Launcher
from keepstep.core.vitals import JobVitals, RankSample, common_step, mean_loss
from keepstep.review.postmortem import Postmortem
from keepstep.review.records import IncidentRecord
from keepstep.server import (
    access_queries,
    drill_queries,
    fault_queries,
    fleet_queries,
    health_queries,
    journal_queries,
    precision,
    resource_queries,
    review_queries,
    status_queries,
    views,
)
from keepstep.server.desk import Desk, action_view
from keepstep.server.paging import LIMIT_MAX, Closed, Record, page_of_all
from keepstep.server.records import downtime_s, led_by_drill
from keepstep.server.reports import report
from keepstep.server.whereabouts import whereabouts

UNDIAGNOSED = "undiagnosed"
"""How a record says what a line leaves empty."""


# ---- jobs


def jobs(
    desk: Desk, state: str = "", q: str = "", live: bool | None = None, cursor: str = "", limit: int = LIMIT_MAX
) -> views.Jobs:
    """``live``: only those that run, or only those that are over. ``q``: part of the name."""
    running = [desk.world.jobs[id] for id in reversed(desk.world.live_jobs)] if live is not False else []
    fitting = [job for job in running if desk.sees(job.id) and _job_fits(job, state, q)]
    closed = None if live else Closed(kind="job", where=_where(desk, state=state, q=q))
    found = page_of_all(
        [partial(job_view, desk, job) for job in fitting],
        desk.archive, closed, lambda record: partial(_job_over, desk, record.id), cursor=cursor, limit=limit,
    )  # fmt: skip
    made = tuple(make() for make in found.items)
    return views.Jobs(jobs=made, next=found.next, total=found.total, note=desk.note_of(found.missing))


def _job_fits(job: Job, state: str, q: str) -> bool:
    return (not state or job.state.value == state) and q.lower() in job.id.lower()


def _where(desk: Desk, **filters: str) -> dict[str, str]:
    """For the archive: what is set, and whose may be seen."""
    asked = {name: value for name, value in filters.items() if value}
    return asked | ({"tenant": ",".join(desk.tenants)} if desk.tenants else {})


def _job_over(desk: Desk, id: str) -> views.JobView:
    kept = desk.archive.get("job", id)
    if kept is None:
        raise LookupError(f"the archive lists job {id} and does not have it")
    return msgspec.msgpack.decode(kept, type=views.JobView)


def job(desk: Desk, id: str) -> views.JobView:
    """From the books while it is known there, else from the archive."""
    kept = desk.archived("job", id) if JobId(id) not in desk.world.jobs else None
    if kept is not None:
        return msgspec.msgpack.decode(kept, type=views.JobView)
    return job_view(desk, desk.job(id))


def checkpoints(desk: Desk, job: str) -> views.Checkpoints:
    found = desk.job(job)
    return views.Checkpoints(
        job=found.id,
        committed=tuple(
            views.Commit(step=o.step, generation=o.generation, world_size=o.world_size, key=o.key)
            for o in reversed(found.committed)
        ),
        committed_s=found.committed_s,
        every_s=found.commit_every_s,
        failed_saves=found.save_failures,
        ram_steps={
            node: tuple(sorted({offer.step for offer in launcher.inventory.ram}, reverse=True))
            for node, launcher in found.launchers.items()
            if launcher.inventory is not None and launcher.inventory.ram
        },
    )


def job_view(desk: Desk, job: Job) -> views.JobView:
    step, loss = _progress(desk, job)
    return views.JobView(
        id=job.id,
        state=job.state.value,
        generation=job.generation,
        nodes=len(job.placement.nodes) if job.placement else 0,
        ranks=job.placement.world_size if job.placement else 0,
        step=step,
        loss=loss,
        checkpoint_step=job.committed_step,
        incident=job.incident,
        incidents=desk.history.faults.get(job.id, 0),
        submitted_s=job.submitted_s,
        finished_s=job.finished_s,
        exit_code=job.exit_code,
        message=job.message,
        argv=job.spec.argv,
        slower=_slower(job),
        tenant=job.spec.tenant,
        labels=dict(job.spec.labels),
    )


def _slower(job: Job) -> str:
    word = job.slower
    if word is None or word.generation != job.generation:
        return ""
    who = f"ranks {', '.join(map(str, word.ranks))}" if word.ranks else "all ranks"
    whom = "the other ranks" if word.against == "peers" else "before"
    return f"{who}: {word.ratio:.2f} x the step time of {whom}, since about step {word.step}"


def _vitals_of(desk: Desk, job: Job) -> JobVitals | None:
    known = desk.vitals.jobs.get(job.id) if desk.vitals else None
    return known if known is not None and known.generation == job.generation else None


def _progress(desk: Desk, job: Job) -> tuple[int, float | None]:
    vitals = _vitals_of(desk, job)
    if vitals is None or job.placement is None:
        return max(job.step, job.committed_step), job.loss
    step, loss = common_step(vitals, job.placement.world_size), mean_loss(vitals)
    return max(step, job.step), loss if loss is not None else job.loss


def launchers(desk: Desk, job: str) -> views.Launchers:
    """Of a job, for whoever started them on this machine. None are known before the first one joined."""
    known = desk.world.jobs.get(JobId(job)) if desk.sees(job) else None
    return views.Launchers(launchers=tuple(map(_launcher_view, known.launchers.values())) if known else ())


def _launcher_view(launcher: Launcher) -> views.LauncherView:
    return views.LauncherView(
        node=launcher.node,
        session=launcher.session,
        boot_id=launcher.boot_id,
        pid=launcher.pid,
        pid_start=launcher.pid_start,
        reachable=launcher.reachable,
        running_generation=launcher.running,
        gone=launcher.gone,
    )


# ---- incidents


class IncidentFilter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is said must fit."""

    job: str = ""
    state: str = ""
    cause: str = ""
    node: str = ""
    q: str = ""
    """A word of its id, job, summary or resources."""
    open: bool | None = None
    """Only those that are open, or only those that are over."""
    starts: bool = False
    """Also the first start of each job."""
    since_s: float = 0.0
    until_s: float | None = None
    """Ended in that span, or open and opened before its end."""

    def fits(self, line: views.IncidentLine, nodes: tuple[str, ...]) -> bool:
        """Whether an open incident fits; of those that are over the archive says it."""
        words = " ".join((line.id, line.job, line.summary, *line.resources)).lower()
        return (
            (self.starts or line.kind == "fault")
            and self.job in ("", line.job)
            and self.state in ("", line.state)
            and self.cause in ("", line.cause)
            and (not self.node or self.node in nodes)
            and self.q.lower() in words
            and (self.until_s is None or line.opened_s < self.until_s)
        )


def incidents(
    desk: Desk, job: str | None = None, starts: bool = False, cursor: str = "", limit: int = LIMIT_MAX, **filters: Any
) -> views.Incidents:
    """``filters`` are the other fields of IncidentFilter."""
    if (
        job is not None
        and not (JobId(job) in desk.world.live_jobs and desk.sees(job))
        and not desk.archived("job", job)
    ):
        desk.job(job)
    try:
        chosen = msgspec.convert({"job": job or "", "starts": starts} | filters, IncidentFilter)
    except msgspec.ValidationError as error:
        raise ValueError(f"question 'incidents': {error}") from None
    found = page_of_all(
        _open_lines(desk, chosen), desk.archive, _closed_incidents(desk, chosen), _line_over, cursor=cursor, limit=limit
    )
    note = desk.note_of(found.missing)
    return views.Incidents(incidents=found.items, next=found.next, total=found.total, note=note)


def _open_lines(desk: Desk, chosen: IncidentFilter) -> list[views.IncidentLine]:
    if chosen.open is False:
        return []
    world = desk.world
    seen = [found for id in reversed(world.open_incidents) if desk.sees((found := world.incidents[id]).job)]
    return [line for found in seen if chosen.fits(line := _incident_line(desk, found), _nodes_of(found))]


def _nodes_of(incident: Incident) -> tuple[str, ...]:
    """Of its suspects, and those that are lost."""
    diagnosed = [a.diagnosis for a in incident.attempts if a.diagnosis is not None]
    named = [node_of(r) for d in diagnosed for r in d.resources] + [n for d in diagnosed for n in d.lost_nodes]
    return tuple(dict.fromkeys(named))


def _closed_incidents(desk: Desk, chosen: IncidentFilter) -> Closed | None:
    if chosen.open:
        return None
    where = _where(
        desk, job=chosen.job, state=chosen.state, cause=chosen.cause, node=chosen.node, q=chosen.q,
        kind="" if chosen.starts else "fault",
    )  # fmt: skip
    return Closed(kind="incident", where=where, since_s=chosen.since_s, until_s=chosen.until_s)


def _line_over(record: Record) -> views.IncidentLine:
    """Of an incident that is over, from its record: the list needs no report."""
    assert isinstance(record, IncidentRecord)
    return views.IncidentLine(
        id=record.id,
        job=record.job,
        kind=record.kind,
        state=record.state,
        cause="" if record.cause == UNDIAGNOSED else record.cause,
        confidence=record.confidence,
        summary=record.summary,
        resources=record.resources,
        opened_s=record.opened_s,
        closed_s=record.closed_s,
        downtime_s=record.downtime_s,
        step_before=record.step_before,
        restored_step=record.restored_step,
        lost_steps=record.lost_steps,
        verdict=record.verdict,
        tenant=record.tenant,
        drill=record.drill,
    )


def _diagnosed(incident: Incident) -> Attempt | None:
    """The newest attempt that has a diagnosis."""
    return next((a for a in reversed(incident.attempts) if a.diagnosis is not None), None)


def _incident_line(desk: Desk, incident: Incident) -> views.IncidentLine:
    attempt = _diagnosed(incident)
    diagnosis = attempt.diagnosis if attempt else None
    restored = next((a.restore for a in reversed(incident.attempts) if a.restore is not None), None)
    closed = not incident.open
    return views.IncidentLine(
        id=incident.id,
        job=incident.job,
        kind=incident.kind,
        state=incident.state.value,
        cause=diagnosis.cause.value if diagnosis else "",
        confidence=diagnosis.confidence if diagnosis else 0.0,
        summary=diagnosis.summary if diagnosis else "",
        resources=diagnosis.resources if diagnosis else (),
        opened_s=incident.opened_s,
        closed_s=incident.closed_s,
        downtime_s=downtime_s(incident, desk.now_s) if closed else None,
        step_before=incident.step_before,
        restored_step=restored.step if restored else None,
        lost_steps=incident.lost_steps if closed else None,
        verdict=incident.verdict,
        waits_for=incident.waits_for,
        tenant=desk.world.jobs[incident.job].spec.tenant,
        drill=led_by_drill(incident),
    )


def incident(desk: Desk, id: str) -> views.IncidentReport:
    """From the books while it is known there, else from the archive."""
    kept = desk.archived("incident", id) if IncidentId(id) not in desk.world.incidents else None
    if kept is not None:
        return msgspec.msgpack.decode(kept, type=views.IncidentReport)
    return incident_report(desk, desk.incident(id))


def incident_report(desk: Desk, found: Incident) -> views.IncidentReport:
    stages = dict(found.stage_s)
    if found.open:
        state = found.state.value
        stages[state] = stages.get(state, 0.0) + max(0.0, desk.now_s - found.entered_s)
    steps = desk.history.of_incident(found.id)
    return views.IncidentReport(
        incident=_incident_line(desk, found),
        attempts=tuple(map(_attempt_view, found.attempts)),
        actions=tuple(action_view(desk, found.opened_s, step) for step in steps),
        stages=tuple(views.StageTime(stage=stage, seconds=seconds) for stage, seconds in stages.items()),
        verified_step=found.progress[-1][0] if found.progress else -1,
    )


def _attempt_view(attempt: Attempt) -> views.AttemptView:
    diagnosis, restore = attempt.diagnosis, attempt.restore
    return views.AttemptView(
        generation=attempt.generation,
        new_generation=attempt.new_generation,
        cause=diagnosis.cause.value if diagnosis else "",
        confidence=diagnosis.confidence if diagnosis else 0.0,
        summary=diagnosis.summary if diagnosis else "",
        resources=diagnosis.resources if diagnosis else (),
        lost_nodes=diagnosis.lost_nodes if diagnosis else (),
        culprits=diagnosis.culprits if diagnosis else (),
        evidence=tuple(
            views.EvidenceView(entry=e.entry, source=e.source, text=e.text, supports=e.supports)
            for e in (diagnosis.evidence if diagnosis else ())
        ),
        fenced={str(node): proof for node, proof in attempt.fenced.items()},
        restore_tier=restore.tier if restore else "",
        restore_step=restore.step if restore else None,
        restore_key=restore.key if restore else "",
        rejected=tuple(attempt.rejected),
        warm_nodes=sum(attempt.launched.values()),
        cold_nodes=len(attempt.launched) - sum(attempt.launched.values()),
        fault=diagnosis.fault or "" if diagnosis else "",
    )


# ---- the report, the live view


def report_of(desk: Desk, job: str | None = None) -> views.Report:
    chosen = [desk.job(job)] if job is not None else [one for one in desk.world.jobs.values() if desk.sees(one.id)]
    return report(desk.world, chosen, desk.now_s)


def live(desk: Desk, job: str) -> views.Live:
    found = desk.job(job)
    step, loss = _progress(desk, found)
    leading = desk.world.leading(found)
    diagnosed = _diagnosed(leading) if leading else None
    steps = desk.history.of_incident(leading.id) if leading else desk.history.steps.get(found.id, [])
    return views.Live(
        job=found.id,
        state=found.state.value,
        generation=found.generation,
        step=step,
        loss=loss,
        ranks=_rank_views(desk, found),
        nodes=tuple(map(_launcher_view, found.launchers.values())),
        checkpoint_step=found.committed_step,
        checkpoint_age_s=desk.now_s - found.committed_s if found.committed_s is not None else None,
        incident=leading.id if leading else None,
        incident_stage=leading.state.value if leading else "",
        incident_summary=diagnosed.diagnosis.summary if diagnosed and diagnosed.diagnosis else "",
        incident_age_s=desk.now_s - leading.opened_s if leading else None,
        waits_for=leading.waits_for if leading and leading.state is IncidentState.WAITING else "",
        last_reason=steps[-1].reason if steps else "",
        exit_code=found.exit_code,
        message=found.message,
        now_s=desk.now_s,
    )


def _rank_views(desk: Desk, job: Job) -> tuple[views.RankView, ...]:
    if job.placement is None:
        return ()
    vitals = _vitals_of(desk, job)
    return tuple(
        _rank_view(job, node, place.rank, vitals.ranks.get(place.rank) if vitals else None)
        for node, places in job.placement.nodes.items()
        for place in places
    )


def _rank_view(job: Job, node: NodeId, rank: int, sample: RankSample | None) -> views.RankView:
    state = "ended" if rank in job.ended else sample.state if sample else ""
    return views.RankView(
        rank=rank,
        node=node,
        phase=sample.phase if sample else "",
        step=sample.step if sample else -1,
        step_time_s=sample.step_time_s if sample else 0.0,
        loss=None if sample is None or math.isnan(sample.loss) else sample.loss,
        idle_s=sample.idle_s if sample else 0.0,
        state=state,
    )


def postmortem(desk: Desk, id: str) -> Postmortem:
    return review_queries.postmortem(desk, incident(desk, id))


QUESTIONS: dict[str, Callable[..., Struct]] = {
    "jobs": jobs,
    "job": job,
    "checkpoints": checkpoints,
    "launchers": launchers,
    "incidents": incidents,
    "incident": incident,
    "resources": resource_queries.resources,
    "resource": resource_queries.resource,
    "holds": resource_queries.holds,
    "journal": journal_queries.entries,
    "report": report_of,
    "live": live,
    "faults": fault_queries.faults,
    "fault": fault_queries.fault,
    "drills": drill_queries.drills,
    "drill": drill_queries.drill,
    "nodes": fault_queries.nodes,
    "node": fault_queries.node,
    "precision": precision.precision,
    "capacity": fleet_queries.capacity,
    "find": fleet_queries.find,
    "fleet_map": fleet_queries.fleet_map,
    "fleet_list": fleet_queries.fleet_list,
    "fleet_node": fleet_queries.fleet_node,
    "fleet_device": fleet_queries.fleet_device,
    "review": review_queries.review,
    "postmortem": postmortem,
    "health": health_queries.health,
    "ranks": whereabouts,
    "tokens": access_queries.tokens,
    "certificates": access_queries.certificates,
    "policy": access_queries.policy,
    "status": status_queries.status,
}


def answer(desk: Desk, what: str, args: dict[str, Any]) -> Struct:
    """Raises UnknownSubject, or ValueError for a question or an argument that does not exist or is of another type."""
    fitting = arguments(what, args)
    return QUESTIONS[what](desk, **fitting)


def arguments(what: str, args: dict[str, Any]) -> dict[str, Any]:
    """Those of a question, as its types say: they come from whoever is connected. Raises ValueError."""
    try:
        ask = QUESTIONS[what]
    except KeyError:
        raise ValueError(f"unknown question {what!r}; known: {', '.join(QUESTIONS)}") from None
    types = _types(ask)
    try:
        inspect.signature(ask).bind(None, **args)
        if any(isinstance(value, int) and abs(value) > WHOLE_MAX for value in args.values()):
            raise TypeError(f"a number is over {WHOLE_MAX}")
        return {name: msgspec.convert(value, types.get(name, Any)) for name, value in args.items()}
    except (TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"question {what!r}: {error}") from error


WHOLE_MAX = 2**53
"""More than any entry or page; some databases take no larger one."""


@cache
def _types(ask: Callable[..., Struct]) -> dict[str, Any]:
    return get_type_hints(ask)
