"""Stage 4, isolate: holds what is suspected and fences the old generation, before anything starts.

Two decisions from the same evidence: ``isolate`` serves the incident of a job; ``assess`` takes the verdict on a resource
whether or not a job runs there. Silence is never a reason to hold; a diagnosis or a catalogue row is.
"""

from keepstep.core.decision import (
    Ask,
    Change,
    Decision,
    MoveIncident,
    MoveResource,
    PlaceHold,
    ProveFenced,
    Wait,
)
from keepstep.core.diagnose import witness_order
from keepstep.core.ids import NO_JOB, NodeId, ResourceId
from keepstep.core.incident import Diagnosis, Incident, IncidentState
from keepstep.core.intents import Fence, Intent, Notify, PowerOff, Quarantine
from keepstep.core.job import Job, Launcher
from keepstep.core.policy import Policy
from keepstep.core.resource import Resource, ResourceState
from keepstep.core.world import World

CAN_QUARANTINE = (
    ResourceState.NEW, ResourceState.BURN_IN, ResourceState.IN_SERVICE, ResourceState.SUSPECT, ResourceState.PROBATION,
)  # fmt: skip


def isolate(incident: Incident, world: World, policy: Policy, now_s: float) -> Decision | None:
    """Holds first, then fences; on to the selection when every node of the old generation is proven dead."""
    job, diagnosis = world.job_of(incident), incident.attempt.diagnosis
    assert diagnosis is not None, "nothing is isolated without a diagnosis (invariant 5)"
    held = _hold_named(incident, job, world, policy, diagnosis, now_s)
    if held is not None:
        return held
    alive = [launcher for launcher in job.launchers.values() if launcher.running]
    if not alive:
        proofs = ", ".join(f"{node} {proof}" for node, proof in incident.attempt.fenced.items()) or "nothing ran"
        return Decision(
            stage="isolate",
            subject=incident.id,
            reason=f"generation {job.generation} is dead everywhere: {proofs}",
            changes=(MoveIncident(incident=incident.id, to=IncidentState.SELECTING),),
        )
    return _fence(incident, job, world, policy, alive, now_s) or _cannot_fence(incident, alive, policy, now_s)


# ---- holds


def _hold_named(
    incident: Incident, job: Job, world: World, policy: Policy, diagnosis: Diagnosis, now_s: float
) -> Decision | None:
    source = f"keepstep:{incident.id}"
    named = [world.resources[r] for r in diagnosis.resources if r in world.resources]
    missing = [r for r in named if source not in r.holds and r.state in CAN_QUARANTINE and not _redeemed(r, diagnosis)]
    if not missing:
        return None
    open_breaker = breaker(world, policy, len(missing), now_s)
    if open_breaker and not (incident.granted is IncidentState.ISOLATING and incident.asks == "breaker"):
        return _wait_for_person(incident, open_breaker, "breaker")
    changes: list[Change] = []
    intents: list[Intent] = []
    for resource in missing:
        changes += quarantine(resource, source, diagnosis.summary)
        launcher = job.launchers.get(resource.node)
        if launcher is not None and launcher.reachable:
            intents.append(_gate_order(job, launcher, resource.id, diagnosis.summary))
        intents += _agent_order(resource, diagnosis.summary, world)
    names = ", ".join(r.id for r in missing)
    return Decision(
        stage="isolate",
        subject=incident.id,
        reason=f"{names} held before the restart: {diagnosis.summary}",
        changes=tuple(changes),
        intents=tuple(intents),
    )


def _redeemed(resource: Resource, diagnosis: Diagnosis) -> bool:
    """It was held, and has passed the gate since: validation can be quicker than the fencing of a large job."""
    passed = resource.gate_passed_entry
    return passed is not None and all(evidence.entry < passed for evidence in diagnosis.evidence)


def quarantine(resource: Resource, source: str, reason: str) -> list[Change]:
    """The hold comes first, so that there is no moment in which the resource could be taken."""
    hold = PlaceHold(resource=resource.id, source=source, reason=reason)
    return [hold, MoveResource(resource=resource.id, to=ResourceState.QUARANTINED)]


def _gate_order(job: Job, launcher: Launcher, resource: ResourceId, reason: str) -> Quarantine:
    return Quarantine(job=job.id, node=launcher.node, session=launcher.session, resource=resource, reason=reason[:500])


def breaker(world: World, policy: Policy, more: int, now_s: float) -> str:
    """Why no more may be isolated automatically; empty where it may."""
    if not more:
        return ""
    limit = max(policy.breaker.absolute, int(policy.breaker.fraction * len(world.resources)))
    recent = sum(1 for at_s, _ in world.isolations if now_s - at_s < policy.breaker.window_s)
    if recent + more <= limit:
        return ""
    return (
        f"{recent} resources were isolated within {policy.breaker.window_s:g} s and {more} more would be: the breaker "
        f"allows {limit}. This looks like a common cause; look at it, then approve or deny."
    )


# ---- fences


def _fence(
    incident: Incident, job: Job, world: World, policy: Policy, alive: list[Launcher], now_s: float
) -> Decision | None:
    pending = world.fence_pending(incident.id, job.generation)
    intents: list[Intent] = []
    changes: list[Change] = []
    for launcher in alive:
        asked_about = launcher.node in incident.attempt.witnesses_asked
        if asked_about and _has_fenced_itself(launcher, alive, job, policy, now_s):
            changes.append(ProveFenced(job=job.id, node=launcher.node, generation=launcher.running))
            continue
        via_witness = not launcher.reachable and launcher.replaces is None
        if via_witness and not launcher.gone and launcher.node not in incident.attempt.witnesses_asked:
            changes.append(Ask(incident=incident.id, witnesses=(launcher.node,)))
            intents.append(witness_order(job, launcher))
        order = _fence_order(job, launcher, via_witness)
        asked = pending.get(launcher.node)
        if asked is not None and _road(asked.intent) == _road(order) and not asked.overdue:
            continue
        other_road = incident.attempt.fence_road.get(launcher.node, _road(order)) != _road(order)
        if not other_road and not _may_retry(incident, launcher.node, policy, now_s):
            continue
        intents.append(order)
    if not intents and not changes:
        return None
    names = ", ".join(intent.node for intent in intents if isinstance(intent, Fence))
    proven = ", ".join(change.node for change in changes if isinstance(change, ProveFenced))
    reason = f"fencing generation {job.generation} on {names}" if names else ""
    reason += f"{'; ' if names and proven else ''}{proven}: the self-fence deadline has passed" if proven else ""
    return Decision(
        stage="isolate",
        subject=incident.id,
        reason=reason or "asking a second witness about silent nodes",
        changes=tuple(changes),
        intents=tuple(intents),
    )


def _road(intent: Intent) -> str:
    """Whom a fence goes to."""
    assert isinstance(intent, Fence)
    return f"{intent.via}:{intent.session}"


def _fence_order(job: Job, launcher: Launcher, via_witness: bool) -> Fence:
    return Fence(
        job=job.id,
        node=launcher.node,
        session=launcher.session,
        generation=job.generation,
        via="witness" if via_witness else "launcher",
    )


def _may_retry(incident: Incident, node: NodeId, policy: Policy, now_s: float) -> bool:
    tries = incident.attempt.fence_tries.get(node, 0)
    if tries == 0:
        return True
    wait_s = min(policy.orders.fence_retry_max_s, policy.orders.fence_retry_s * 2.0 ** (tries - 1))
    return now_s - incident.attempt.fence_tried_s[node] >= wait_s


def _has_fenced_itself(launcher: Launcher, alive: list[Launcher], job: Job, policy: Policy, now_s: float) -> bool:
    """A launcher that nobody hears and whose ranks cannot step has ended them once its deadline has passed.

    It cannot step only where it needs ranks of other nodes, and those are all proven dead. A job on one node that may still
    step by itself is never presumed dead.
    """
    if launcher.reachable or launcher.silent_since_s is None or job.placement is None:
        return False
    if launcher.seen_alive_s is not None and launcher.seen_alive_s >= launcher.silent_since_s:
        return False  # whoever saw it can end it; and a launcher that is stopped does not fence itself
    others = [node for node in job.placement.nodes if node != launcher.node]
    if not others or any(job.launchers[node].running and job.launchers[node].reachable for node in others):
        return False
    if all(job.launchers[node].running for node in others) and len(alive) > 1:
        return False  # all of them silent: they may still reach each other
    # Its ranks may have stepped until the last of the others was gone, and its own clock of progress runs from there.
    stood_still_s = max((job.launchers[node].fenced_s or 0.0 for node in others), default=0.0)
    waited_s = now_s - max(launcher.silent_since_s, stood_still_s)
    return waited_s >= policy.silence.self_fence_s + policy.silence.margin_s


def _cannot_fence(incident: Incident, alive: list[Launcher], policy: Policy, now_s: float) -> Decision | None:
    if now_s - incident.entered_s < policy.incident_deadline_s[IncidentState.ISOLATING.value]:
        return None
    names = ", ".join(launcher.node for launcher in alive)
    why = f" ({incident.last_failure})" if incident.last_failure else ""
    return _wait_for_person(
        incident,
        f"no proof that the old generation is dead on {names}{why}. Approve to power the node off, or end it by hand; "
        "nothing is started until then.",
        "power_off",
    )


def _wait_for_person(incident: Incident, message: str, asks: str) -> Decision:
    return Decision(
        stage="isolate",
        subject=incident.id,
        reason=message,
        changes=(
            MoveIncident(incident=incident.id, to=IncidentState.WAITING),
            Wait(incident=incident.id, waits_for=message, resume_at=IncidentState.ISOLATING, asks=asks),
        ),
        intents=(Notify(subject=incident.id, level="page", message=message),),
    )


def power_off(incident: Incident, world: World) -> tuple[PowerOff, ...]:
    """The orders that an approval of a power fence stands for."""
    job = world.job_of(incident)
    return tuple(
        PowerOff(job=job.id, node=x.node, session=x.session, generation=job.generation)
        for x in job.launchers.values()
        if x.running and not x.reachable
    )


# ---- orders to the node


def gate_orders(resource: Resource, reason: str, world: World) -> list[Intent]:
    """Tell the launchers and the agent of its node to refuse it themselves."""
    orders: list[Intent] = [
        _gate_order(job, job.launchers[resource.node], resource.id, reason)
        for job in (world.jobs[j] for j in world.live_jobs)
        if resource.node in job.launchers and job.launchers[resource.node].reachable
    ]
    return [*orders, *_agent_order(resource, reason, world)]


def _agent_order(resource: Resource, reason: str, world: World) -> list[Intent]:
    """The agent's hold outlives every launcher of the node."""
    agent = world.hearing_agent(resource.node)
    if agent is None:
        return []
    return [Quarantine(job=NO_JOB, node=agent.node, session=agent.session, resource=resource.id, reason=reason[:500])]
