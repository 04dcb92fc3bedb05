"""How a job begins and ends: admission when enough nodes have joined, and the end that every launcher is told of.

The first start takes the same road as a recovery (select, place, restart, verify): it is an incident without a fault.
"""

from keepstep.core.decision import Change, Decision, End, MoveIncident, MoveJob, Open
from keepstep.core.ids import IncidentId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import EndJob, Intent
from keepstep.core.job import Job, JobState
from keepstep.core.place import usable_launchers
from keepstep.core.policy import Policy
from keepstep.core.verify import all_done
from keepstep.core.world import World

EXIT_STOPPED = 130
EXIT_NO_CAPACITY = 75


def lifecycle(job: Job, world: World, policy: Policy, now_s: float) -> Decision | None:
    """What the job itself wants now, besides what its incident does."""
    if job.state is JobState.ENDING:
        return _finish(job, world)
    if job.stop_requested:
        return _end(job, world, EXIT_STOPPED, job.stop_requested)
    if job.state is JobState.SUBMITTED:
        return _admit(job, world, policy, now_s)
    if all_done(job) and job.incident is None:
        return _end(job, world, 0, "all ranks ended well")
    return None


def _admit(job: Job, world: World, policy: Policy, now_s: float) -> Decision | None:
    elasticity = job.spec.elasticity
    unproven = [launcher.node for launcher in job.launchers.values() if launcher.running]
    usable = usable_launchers(job, world)
    regular = sum(1 for launcher in usable if not launcher.spare)
    settled = bool(usable) and now_s - min(x.joined_s for x in usable) >= policy.capacity.start_settle_s
    enough = regular >= elasticity.max_nodes or (settled and len(usable) >= elasticity.min_nodes)
    if enough and not unproven:
        incident = IncidentId(f"inc-{world.next_incident:04d}")
        return Decision(
            stage="admit",
            subject=incident,
            reason=f"{len(usable)} nodes are ready for job {job.id}",
            changes=(
                Open(incident=incident, job=job.id, kind="start", symptoms=()),
                MoveJob(job=job.id, to=JobState.STARTING),
            ),
        )
    if now_s - job.entered_s >= policy.capacity.start_wait_s:
        old = f"ranks of an earlier run are not proven dead on {', '.join(unproven)}; " if unproven else ""
        message = (
            f"{old}{len(usable)} of {elasticity.min_nodes} nodes joined within {policy.capacity.start_wait_s:.0f} s. "
            "Start the launchers of the other nodes with the same --job, or ask for fewer nodes."
        )
        return _end(job, world, EXIT_NO_CAPACITY, message)
    return None


def _end(job: Job, world: World, exit_code: int, message: str) -> Decision:
    changes: list[Change] = []
    leading = world.leading(job)
    if leading is not None and leading.open:
        changes.append(MoveIncident(incident=leading.id, to=IncidentState.ESCALATED))
    changes += [
        End(job=job.id, exit_code=exit_code, message=message),
        MoveJob(job=job.id, to=JobState.ENDING),
    ]
    return Decision(stage="finish", subject=job.id, reason=message, changes=tuple(changes))


def _finish(job: Job, world: World) -> Decision | None:
    assert job.exit_code is not None
    untold = [x for x in job.launchers.values() if x.reachable and not x.left and not x.gone and not x.told_to_end]
    if untold:
        orders: tuple[Intent, ...] = tuple(
            EndJob(job=job.id, node=x.node, session=x.session, exit_code=job.exit_code, message=job.message[:2000])
            for x in untold
        )
        return Decision(
            stage="finish",
            subject=job.id,
            reason=f"telling {len(untold)} launcher(s): {job.message}",
            intents=orders,
        )
    waiting = (p for p in world.orders.values() if isinstance(p.intent, EndJob) and p.intent.job == job.id)
    if any(not p.overdue and _hears(job, p.intent) for p in waiting):
        return None
    to = JobState.STOPPED if job.stop_requested else JobState.FINISHED if job.exit_code == 0 else JobState.FAILED
    return Decision(
        stage="finish",
        subject=job.id,
        reason=f"{to.value} with exit code {job.exit_code}: {job.message}",
        changes=(MoveJob(job=job.id, to=to),),
    )


def _hears(job: Job, intent: Intent) -> bool:
    assert isinstance(intent, EndJob)
    launcher = job.launchers.get(intent.node)
    return launcher is not None and launcher.session == intent.session and launcher.reachable and not launcher.left
