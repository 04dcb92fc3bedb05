"""What becomes of a resource outside a job: drain, remediate, validate, probation; or the repair order. Level-triggered.

No way leads back into service but through a passed gate that is bound to the present serial, boot and firmware.
"""

from keepstep.core.decision import Change, Decision, DropHold, MoveResource, Remediate
from keepstep.core.ids import NO_JOB, IncidentId, slot_of
from keepstep.core.intents import Intent, Notify, OpenRepair, Release, ResetDevice, RunGate
from keepstep.core.job import Job, Launcher, uses
from keepstep.core.policy import Policy
from keepstep.core.resource import Resource, ResourceState
from keepstep.core.world import World

R = ResourceState


def remediate(resource: Resource, world: World, policy: Policy, now_s: float) -> Decision | None:
    """The next step of a resource that is neither in service nor out."""
    waited_s = now_s - resource.entered_s
    match resource.state:
        case R.NEW:
            return _move(resource, R.IN_SERVICE, "new, and the policy asks for no burn-in")
        case R.SUSPECT if waited_s >= policy.device.suspect_s:
            return _move(resource, R.IN_SERVICE, "the suspicion has decayed")
        case R.QUARANTINED:
            return _move(resource, R.DRAINING, "waiting until no rank lives on it")
        case R.DRAINING:
            return _drained(resource, world)
        case R.FENCED:
            return _first_step(resource, world, policy, waited_s)
        case R.REMEDIATING | R.VALIDATING:
            return _step(resource, world, policy, now_s)
        case R.PROBATION if resource.gate_passed_entry is None:
            return _move(resource, R.LOST, "another part, firmware or boot than the one that passed the gate")
        case R.PROBATION if resource.gated and not world.orders_on(resource.id):
            return _let_in(resource, world, policy, waited_s)
        case R.PROBATION if waited_s >= policy.device.probation_s:
            return _move(resource, R.IN_SERVICE, "probation is over without a relapse")
        case _:
            return None


def returns(resource: Resource, world: World) -> Decision | None:
    """A lost resource whose node is back: it is validated before anything else."""
    found = _launcher(resource, world)
    if resource.state is not R.LOST or found is None:
        return None
    return _validate(resource, found, "its node is back; it must pass the gate first")


def _move(resource: Resource, to: ResourceState, reason: str) -> Decision:
    return Decision(
        stage="remediate", subject=resource.id, reason=reason, changes=(MoveResource(resource=resource.id, to=to),)
    )


def _launcher(resource: Resource, world: World) -> tuple[Job, Launcher] | None:
    """A launcher through which the resource's node can be reached."""
    for job_id in world.live_jobs:
        launcher = world.jobs[job_id].launchers.get(resource.node)
        if launcher is not None and launcher.reachable and not launcher.left and not launcher.gone:
            return world.jobs[job_id], launcher
    return None


def _let_in(resource: Resource, world: World, policy: Policy, waited_s: float) -> Decision | None:
    """The node still refuses it: the launcher that was to open its gate is gone."""
    orders = _releases(resource, world)
    if not orders:
        if waited_s < policy.device.probation_s:
            return None
        return _move(resource, R.LOST, "no launcher reaches it; it is validated when its node comes back")
    return Decision(stage="remediate", subject=resource.id, reason="opening its node's gate", intents=orders)


def _releases(resource: Resource, world: World) -> tuple[Intent, ...]:
    """To whoever refuses it on its node and can be reached: a launcher, and the agent."""
    orders: list[Intent] = []
    found = _launcher(resource, world)
    if found is not None:
        job, launcher = found
        orders.append(Release(job=job.id, node=launcher.node, session=launcher.session, resource=resource.id))
    agent = world.hearing_agent(resource.node)
    if agent is not None:
        orders.append(Release(job=NO_JOB, node=agent.node, session=agent.session, resource=resource.id))
    return tuple(orders)


def _drained(resource: Resource, world: World) -> Decision | None:
    if any(uses(world.jobs[job], resource.id) for job in world.live_jobs):
        return None
    return _move(resource, R.FENCED, "no rank lives on it")


def _first_step(resource: Resource, world: World, policy: Policy, waited_s: float) -> Decision | None:
    found = _launcher(resource, world)
    if found is None:
        if waited_s < policy.resource_deadline_s[R.FENCED.value]:
            return None
        return _move(resource, R.LOST, "no launcher reaches it; it is validated when its node comes back")
    if slot_of(resource.id) is not None and resource.resets < policy.device.max_resets:
        return _reset(resource, found)
    return _validate(resource, found, "nothing to reset")


def _reset(resource: Resource, found: tuple[Job, Launcher]) -> Decision:
    job, launcher = found
    order = ResetDevice(job=job.id, node=launcher.node, session=launcher.session, resource=resource.id)
    return Decision(
        stage="remediate",
        subject=resource.id,
        reason=f"reset {resource.resets + 1}",
        changes=(
            Remediate(resource=resource.id, resets=resource.resets + 1, gate_tries=resource.gate_tries),
            MoveResource(resource=resource.id, to=R.REMEDIATING),
        ),
        intents=(order,),
    )


def _validate(resource: Resource, found: tuple[Job, Launcher], reason: str, *, move: bool = True) -> Decision:
    job, launcher = found
    changes: list[Change] = [
        Remediate(resource=resource.id, resets=resource.resets, gate_tries=resource.gate_tries + 1)
    ]
    if move:
        changes.append(MoveResource(resource=resource.id, to=R.VALIDATING))
    order = RunGate(job=job.id, node=launcher.node, session=launcher.session, resource=resource.id)
    return Decision(stage="remediate", subject=resource.id, reason=reason, changes=tuple(changes), intents=(order,))


def _step(resource: Resource, world: World, policy: Policy, now_s: float) -> Decision | None:
    found = _launcher(resource, world)
    waiting = [p for p in world.orders_on(resource.id) if not p.overdue]
    deadline_s = policy.resource_deadline_s[resource.state.value]
    if now_s - resource.entered_s >= deadline_s:
        return _repair(resource, f"{resource.state.value} did not end within {deadline_s:.0f} s")
    if resource.state is R.VALIDATING and resource.gate_verdict:
        return _after_gate(resource, world, policy, found)
    if found is None or waiting:
        return None
    if resource.state is R.REMEDIATING:
        return _validate(resource, found, "the reset is done; validating")
    if resource.gate_tries >= policy.device.max_gate_tries:
        return _repair(resource, "the gate gave no verdict")
    return _validate(resource, found, "the gate gave no verdict; running it again", move=False)


def _after_gate(
    resource: Resource, world: World, policy: Policy, found: tuple[Job, Launcher] | None
) -> Decision | None:
    if resource.gate_verdict == "passed" and resource.gate_passed_entry is not None:
        if not policy.device.return_automatically:
            return None
        return _return(resource, world)
    if resource.gate_verdict == "failed":
        return _repair(resource, "it failed the validation gate")
    if resource.gate_tries >= policy.device.max_gate_tries:
        return _repair(resource, "the gate's own tool kept failing: that is not a pass")
    if found is None:
        return None
    return _validate(resource, found, "the gate's tool failed: not a pass; running it again", move=False)


def _return(resource: Resource, world: World) -> Decision:
    ours = [source for source in resource.holds if source.startswith("keepstep:")]
    changes: list[Change] = [DropHold(resource=resource.id, source=source) for source in ours]
    changes.append(MoveResource(resource=resource.id, to=R.PROBATION))
    kept = [source for source in resource.holds if source not in ours]
    still = f"; still held by {', '.join(kept)}" if kept else ""
    return Decision(
        stage="remediate",
        subject=resource.id,
        reason=f"passed the validation gate (entry {resource.gate_passed_entry}); on probation{still}",
        changes=tuple(changes),
        intents=_releases(resource, world),
    )


def _repair(resource: Resource, reason: str) -> Decision:
    incident = resource.incident or IncidentId("")
    return Decision(
        stage="remediate",
        subject=resource.id,
        reason=f"{reason}; opening a repair order",
        changes=(MoveResource(resource=resource.id, to=R.REPAIR),),
        intents=(
            OpenRepair(resource=resource.id, serial=resource.serial, incident=incident, reason=reason),
            Notify(subject=resource.id, level="warning", message=f"{resource.id}: {reason}; repair order opened"),
        ),
    )
