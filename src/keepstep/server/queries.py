"""The read side: questions of tools, answered from the books. Must not change anything.

The same functions answer on a live server and on a journal file that was replayed; only the vitals are missing there.
``QUESTIONS`` is the whole list; a question's arguments are the keyword arguments of its function.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from keepstep.core.ids import IncidentId, JobId, NodeId
from keepstep.core.incident import Attempt, Incident, IncidentState
from keepstep.core.job import Job, Launcher
from keepstep.core.vitals import JobVitals, RankSample, common_step, mean_loss
from keepstep.server import fault_queries, health_queries, precision, views
from keepstep.server.desk import Desk, action_view
from keepstep.server.reports import report
from keepstep.server.whereabouts import whereabouts

# ---- jobs


def jobs(desk: Desk) -> views.Jobs:
    return views.Jobs(jobs=tuple(job_view(desk, job) for job in desk.world.jobs.values()))


def job_view(desk: Desk, job: Job) -> views.JobView:
    step, loss = _progress(desk, job)
    faults = [i for i in desk.world.incidents.values() if i.job == job.id and i.kind == "fault"]
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
        incidents=len(faults),
        submitted_s=job.submitted_s,
        finished_s=job.finished_s,
        exit_code=job.exit_code,
        message=job.message,
        argv=job.spec.argv,
        slower=_slower(job),
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
        return job.step, job.loss
    step, loss = common_step(vitals, job.placement.world_size), mean_loss(vitals)
    return max(step, job.step), loss if loss is not None else job.loss


def launchers(desk: Desk, job: str) -> views.Launchers:
    """Of a job, for whoever started them on this machine. None are known before the first one joined."""
    known = desk.world.jobs.get(JobId(job))
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


def incidents(desk: Desk, job: str | None = None, starts: bool = False) -> views.Incidents:
    """``starts`` includes the first start of each job."""
    if job is not None:
        desk.job(job)
    found = [
        _incident_line(incident)
        for incident in desk.world.incidents.values()
        if (job is None or incident.job == job) and (starts or incident.kind == "fault")
    ]
    return views.Incidents(incidents=tuple(found))


def _diagnosed(incident: Incident) -> Attempt | None:
    """The newest attempt that has a diagnosis."""
    return next((a for a in reversed(incident.attempts) if a.diagnosis is not None), None)


def _incident_line(incident: Incident) -> views.IncidentLine:
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
        downtime_s=incident.downtime_s if closed else None,
        step_before=incident.step_before,
        restored_step=restored.step if restored else None,
        lost_steps=incident.lost_steps if closed else None,
        verdict=incident.verdict,
        waits_for=incident.waits_for,
    )


def incident(desk: Desk, id: str) -> views.IncidentReport:
    """From the books while it is known there, else from the archive."""
    kept = desk.archive.get("incident", id) if IncidentId(id) not in desk.world.incidents else None
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
        incident=_incident_line(found),
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


# ---- resources, the report, the live view


def resources(desk: Desk) -> views.Resources:
    return views.Resources(
        resources=tuple(
            views.ResourceView(
                id=item.id,
                node=item.node,
                state=item.state.value,
                allocatable=item.allocatable,
                serial=item.serial,
                holds=tuple(
                    views.HoldView(source=hold.source, reason=hold.reason, since_s=hold.since_s)
                    for hold in item.holds.values()
                ),
                failures=len(item.failures),
                incident=item.incident,
            )
            for item in desk.world.resources.values()
        )
    )


def report_of(desk: Desk, job: str | None = None) -> views.Report:
    chosen = [desk.job(job)] if job is not None else list(desk.world.jobs.values())
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


QUESTIONS: dict[str, Callable[..., Struct]] = {
    "jobs": jobs,
    "launchers": launchers,
    "incidents": incidents,
    "incident": incident,
    "resources": resources,
    "report": report_of,
    "live": live,
    "faults": fault_queries.faults,
    "fault": fault_queries.fault,
    "nodes": fault_queries.nodes,
    "precision": precision.precision,
    "health": health_queries.health,
    "ranks": whereabouts,
}


def answer(desk: Desk, what: str, args: dict[str, Any]) -> Struct:
    """Raises UnknownSubject, or ValueError for a question or an argument that does not exist."""
    try:
        ask = QUESTIONS[what]
    except KeyError:
        raise ValueError(f"unknown question {what!r}; known: {', '.join(QUESTIONS)}") from None
    try:
        inspect.signature(ask).bind(desk, **args)
    except TypeError as error:
        raise ValueError(f"question {what!r}: {error}") from error
    return ask(desk, **args)
