"""The read side of the health score: each node's forecast, and when its job had better leave it. Must not change anything."""

from keepstep.core.health.forecast import Forecast
from keepstep.core.health.report import HealthReport, explain
from keepstep.core.health.timing import Candidate, Recommendation, Situation, ordered, recommend
from keepstep.core.ids import NodeId
from keepstep.core.job import Job
from keepstep.server import health_views as views
from keepstep.server.desk import Desk, UnknownSubject

HORIZON_S = 24 * 3600.0
"""How long a job is taken to run on where nobody says: beyond it the forecast says nothing either."""
INTERVAL_S = 1800.0
RESTART_S = 60.0
"""Where nothing was measured yet."""


def health(desk: Desk, node: str | None = None) -> views.Health:
    """The riskiest node first, and in which order nodes had better be left."""
    if desk.vitals is None:
        raise UnknownSubject("the forecast lives in a running server only: it is no fact and not in the journal")
    known = desk.vitals.health
    if node is not None and NodeId(node) not in known:
        raise UnknownSubject(f"no agent of {node!r} has told a forecast yet; those known: {', '.join(known) or 'none'}")
    chosen = {name: report for name, report in known.items() if node is None or name == node}
    advice = {name: found for name, report in chosen.items() if (found := _advice(desk, name, report)) is not None}
    first = ordered(Candidate(node=name, advice=found) for name, found in advice.items())
    lines = [_view(name, report, advice.get(name)) for name, report in chosen.items()]
    return views.Health(
        nodes=tuple(sorted(lines, key=lambda line: (-line.index, line.node))),
        first=tuple(one.node for one in first),
    )


def _view(node: NodeId, report: HealthReport, advice: Recommendation | None) -> views.NodeHealth:
    one, six, day = report.forecast.within
    return views.NodeHealth(
        node=node,
        at_s=report.at_s,
        index=report.index,
        p_1h=one,
        p_6h=six,
        p_24h=day,
        useful_h=report.useful_h,
        riskiest=report.parts[0].part if report.parts else "",
        when=advice.when if advice is not None else "",
        costs_gpu_h=dict(advice.costs_gpu_h) if advice is not None else {},
        reason=advice.reason if advice is not None else "no job runs there",
        explained=tuple(explain(report)),
    )


def _advice(desk: Desk, node: NodeId, report: HealthReport) -> Recommendation | None:
    """For the job that runs on the node; None where none does."""
    jobs = (desk.world.jobs[x] for x in desk.world.live_jobs)
    job = next((x for x in jobs if x.placement is not None and node in x.placement.nodes), None)
    return recommend(report.forecast, _situation(desk, job, report)) if job is not None else None


def _situation(desk: Desk, job: Job, report: HealthReport) -> Situation:
    assert job.placement is not None
    since_s = job.committed_s if job.committed_s is not None else job.running_since_s or job.submitted_s
    age_s = max(0.0, desk.now_s - since_s)
    interval_s = job.commit_every_s or INTERVAL_S
    spares = [n for n in job.launchers if n not in job.placement.nodes and desk.world.node_usable(n)]
    taken = sorted(
        i.downtime_s for i in desk.world.incidents.values() if i.job == job.id and i.closed_s and i.kind == "fault"
    )
    usual = report.forecast.usual_per_h
    return Situation(
        gpus=job.placement.world_size,
        job_remaining_s=HORIZON_S,
        checkpoint_age_s=age_s,
        checkpoint_interval_s=interval_s,
        next_checkpoint_s=max(0.0, interval_s - age_s),
        step_s=job.step_time_s or 0.0,
        restart_s=taken[len(taken) // 2] if taken else RESTART_S,
        spares=len(spares),
        replaced=Forecast(rates_per_h=usual, usual_per_h=usual),
    )
