"""Stage 7, restart: orders the new generation, once, and only where nothing of an older one can be alive."""

from keepstep.core.decision import Decision, MoveIncident, Setback
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.intents import Intent, Launch
from keepstep.core.job import Job
from keepstep.core.policy import Policy
from keepstep.core.select import reopen
from keepstep.core.world import World


def restart(incident: Incident, world: World, policy: Policy, now_s: float) -> Decision | None:
    """Launch on every node of the placement; on to the verification when all have answered."""
    job, attempt = world.job_of(incident), incident.attempt
    assert job.placement is not None and job.placement.generation == attempt.new_generation
    if incident.undiagnosed:
        return reopen(incident, "restart")
    pending = world.launch_pending(incident.id, attempt.new_generation)
    late = [node for node, order in pending.items() if order.overdue]
    if late:
        return _set_back(incident, f"no answer to the launch from {', '.join(late)}")
    ordered = any(job.launchers[node].running == job.generation for node in job.placement.nodes)
    if not ordered:
        return _launch(incident, job)
    if any(node not in attempt.launched for node in job.placement.nodes):
        return None
    cold = [node for node, warm in attempt.launched.items() if not warm]
    started = "from warm interpreters" if not cold else f"cold on {', '.join(cold)}"
    return Decision(
        stage="restart",
        subject=incident.id,
        reason=f"generation {job.generation} runs, {started}; it must progress now",
        changes=(MoveIncident(incident=incident.id, to=IncidentState.VERIFYING),),
    )


def _set_back(incident: Incident, reason: str) -> Decision:
    return Decision(
        stage="restart",
        subject=incident.id,
        reason=reason,
        changes=(
            Setback(incident=incident.id, reason=reason),
            MoveIncident(incident=incident.id, to=IncidentState.OPEN),
        ),
    )


def _launch(incident: Incident, job: Job) -> Decision:
    restore = incident.attempt.restore
    start = "from nothing" if restore is None else f"from step {restore.step}"
    return Decision(
        stage="restart",
        subject=incident.id,
        reason=f"launching generation {job.generation} {start}",
        intents=_orders(incident, job),
    )


def _orders(incident: Incident, job: Job) -> tuple[Intent, ...]:
    placement = job.placement
    assert placement is not None
    peers = tuple(job.launchers[n].snapshots for n in placement.nodes if job.launchers[n].snapshots)
    return tuple(
        Launch(
            job=job.id,
            node=node,
            session=job.launchers[node].session,
            generation=placement.generation,
            argv=job.spec.argv,
            ranks=ranks,
            world_size=placement.world_size,
            group_rank=group_rank,
            group_world_size=len(placement.nodes),
            store=job.store,
            restore=incident.attempt.restore,
            peers=peers,
            checkpoint_dir=job.spec.checkpoint_dir,
        )
        for group_rank, (node, ranks) in enumerate(placement.nodes.items())
    )
