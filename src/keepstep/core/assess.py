"""Stage 2, assess: judges hardware signals in company and makes them faults, one per root cause. Pure.

Beside ``correlate``, which joins the symptoms of jobs. What becomes of a resource is decided here, whether or not a job runs
on it; a signal that a job must act on now goes to that job's incident as well.
"""

from collections.abc import Sequence

from msgspec import Struct

from keepstep.core import decision as d
from keepstep.core.catalog.row import Mode, Scope, Verdict
from keepstep.core.combine import judge
from keepstep.core.facts import SignalSeen
from keepstep.core.fault import Fault, FaultState, Nature
from keepstep.core.good_news import ended_by
from keepstep.core.ids import FaultId, NodeId, ResourceId, node_resource
from keepstep.core.incident import Seen, Urgency
from keepstep.core.intents import Intent, Notify
from keepstep.core.isolate import CAN_QUARANTINE, breaker, gate_orders, quarantine
from keepstep.core.job import uses
from keepstep.core.leaving import judged_of
from keepstep.core.observation import Observation, kind_of
from keepstep.core.observed import observed
from keepstep.core.policy import Policy
from keepstep.core.resource import Resource, ResourceState
from keepstep.core.root_cause import ONE_STORY_S, RootCause, root_causes
from keepstep.core.signal import Context, Signal
from keepstep.core.widen import one_trouble, widened
from keepstep.core.world import World

_RETURNED = (ResourceState.IN_SERVICE, ResourceState.PROBATION, ResourceState.RETIRED)


def assess(world: World, policy: Policy, now_s: float) -> d.Decision | None:
    """The verdict on the oldest signal; None when there is none."""
    if not world.signals:
        return _reconsider(world, now_s)
    seen = world.signals[0]
    assert isinstance(seen.fact, SignalSeen)
    resource = world.resources[seen.fact.resource]
    ended = ended_by(seen.fact, resource.node, world)
    if ended is not None:
        return _well_again(seen, ended, resource)
    cause, signals = _cause_of(seen, resource.node, world, policy)
    mine = next(signal for signal in signals if signal.seen.entry == seen.entry)
    certain = cause is not None and cause.row.verdict is Verdict.FAULTY
    if not certain and _needs_time(seen, mine, world, policy):
        deferred = d.Defer(entry=seen.entry, until_s=now_s + policy.correlation.settle_s)
        return _decision(resource, f"{mine.key}: waiting for what may take it back", (deferred,), ())
    verdict = cause.row if cause is not None else mine.row
    if cause is None or verdict.mode is not Mode.ACT or verdict.scope is Scope.JOB:
        done = d.Assess(entry=seen.entry, verdict=mine.row.verdict, shadow=_shadow(mine, cause))
        return _decision(resource, f"no fault: {_why(mine, cause)}", (done,), ())
    case = _Case(seen=seen, mine=mine, cause=cause, resource=resource, target=_target(cause, resource, world))
    if _answered(case, world):
        done = d.Assess(entry=seen.entry, verdict=Verdict.WATCH)
        return _decision(
            resource, f"{mine.key}: it was seen before the gate that {case.target.id} has passed", (done,), ()
        )
    return _fault(case, world, policy, now_s)


def _reconsider(world: World, now_s: float) -> d.Decision | None:
    """The first deferred signal whose time has come."""
    if not world.deferred or world.deferred[0][0] > now_s:
        return None
    seen = world.deferred[0][1]
    assert isinstance(seen.fact, SignalSeen)
    resource = world.resources[seen.fact.resource]
    return _decision(resource, "nothing took it back so far", (d.Reconsider(entry=seen.entry),), ())


def _needs_time(seen: Seen, mine: Signal, world: World, policy: Policy) -> bool:
    """It is a suspicion only because nothing was heard that takes it back: the signal itself says nothing bad."""
    assert isinstance(seen.fact, SignalSeen)
    if seen.entry in world.reconsidered or mine.row.verdict is not Verdict.SUSPECT:
        return False
    return policy.catalog.row(seen.fact.signal).verdict is Verdict.BENIGN


def _well_again(seen: Seen, fault: Fault, resource: Resource) -> d.Decision:
    """Good news from one node; the fault is over when the last node that saw it says so."""
    assert isinstance(seen.fact, SignalSeen)
    changes: list[d.Change] = [d.ClearNode(fault=fault.id, node=resource.node)]
    if fault.nodes == [resource.node]:
        changes.append(d.CloseFault(fault=fault.id, outcome=f"well again: {seen.fact.signal}"))
    changes.append(d.Assess(entry=seen.entry, verdict=Verdict.BENIGN))
    return _decision(resource, f"{seen.fact.signal}: {fault.resource} is well again on {resource.node}", changes, ())


def _decision(resource: Resource, reason: str, changes: Sequence[d.Change], intents: Sequence[Intent]) -> d.Decision:
    return d.Decision(
        stage="assess", subject=resource.id, reason=reason, changes=tuple(changes), intents=tuple(intents)
    )


def _cause_of(seen: Seen, node: NodeId, world: World, policy: Policy) -> tuple[RootCause | None, list[Signal]]:
    """The root cause that a signal belongs to, if any, and all signals of its node as they are judged now."""
    since_s = seen.at_s - policy.correlation.window_s
    company = [x for x in world.recent.get(node, ()) if x.entry != seen.entry and _counts(x, node, since_s, world)]
    context = Context(catalog=policy.catalog, parts=world.parts, own_actions=tuple(world.own_actions))
    signals = judge([*company, observed(seen, node)], context)
    at_s = observed(seen, node).at_s or seen.at_s
    lately = [s for s in signals if s.seen.entry == seen.entry or _still_says(s, node, at_s - ONE_STORY_S, world)]
    causes = root_causes(lately, context)
    for cause in causes:
        if any(s.seen.entry == seen.entry for s in (*cause.signals, *cause.explained)):
            return cause, signals
    mine = next(signal for signal in signals if signal.seen.entry == seen.entry)
    return _completed(mine, causes, company, context), signals


def _counts(old: Observation, node: NodeId, since_s: float, world: World) -> bool:
    """Whether an earlier signal still says something: not one of a port, a drive or the node before the node passed its gate.
    Cards keep their history: what comes again after a reset is not cured by another one."""
    if old.at_s is None or old.at_s < since_s:
        return False
    itself = world.resources.get(node_resource(node))
    return kind_of(old.part) == "gpu" or itself is None or old.at_s > itself.gate_passed_s


def _still_says(signal: Signal, node: NodeId, since_s: float, world: World) -> bool:
    """Whether an earlier signal can be the cause of a new one: recent, and not answered by a gate that its part has passed."""
    at_s = signal.seen.at_s
    if at_s is None:
        return True
    part = world.parts.canonical(node, signal.seen.part)
    owner = world.resources.get(world.slots.get((node, part), node_resource(node)))
    return at_s >= since_s and (owner is None or at_s > owner.gate_passed_s)


def _completed(
    mine: Signal, causes: Sequence[RootCause], company: Sequence[Observation], context: Context
) -> RootCause | None:
    """The cause that a signal makes out of earlier ones of its part: the third loss of carrier says what the first one was."""
    as_told = {x.entry: x.signal for x in company}
    own = mine.seen.node, context.parts.canonical(mine.seen.node, mine.seen.part)
    for cause in causes:
        lead = cause.signals[0].seen
        if (cause.node, cause.part) == own and as_told.get(lead.entry, lead.signal) != lead.signal:
            return cause
    return None


def _why(mine: Signal, cause: RootCause | None) -> str:
    if cause is not None and cause.row.mode is not Mode.ACT:
        return f"the rule for {mine.key} is in mode {cause.row.mode.value}"
    return mine.because[-1] if mine.because else mine.row.text


def _shadow(mine: Signal, cause: RootCause | None) -> tuple[str, ...]:
    if cause is not None and cause.row.mode is Mode.SHADOW:
        return (*mine.shadow, f"{mine.key}: {cause.resource_action}, job {cause.job_action}")
    return mine.shadow


def _answered(case: "_Case", world: World) -> bool:
    """It came late, and is older than the gate that what it blames has passed since: it blames what was, not what is."""
    at_s = case.mine.seen.at_s
    if at_s is None:
        return False
    on = [case.target]
    if case.cause.row.verdict is Verdict.SUSPECT and case.cause.row.scope is Scope.NODE:
        on = world.resources_of(case.resource.node)  # what is suspicious of the node may have been one of its cards
    return any(resource.gate_passed_s > at_s for resource in on)


# ---- faults


class _Case(Struct, frozen=True, kw_only=True):
    """One signal with its cause: what a decision is about."""

    seen: Seen
    mine: Signal
    cause: RootCause
    resource: Resource
    """Where the signal was seen."""
    target: Resource
    """What would be isolated."""


def _fault(case: _Case, world: World, policy: Policy, now_s: float) -> d.Decision:
    cause, node = case.cause, case.resource.node
    known = _known(cause, node, world)
    fault, changes = _joined(case, known) if known is not None else _opened(case, world, policy, now_s)
    if known is not None and known.node is None and node not in known.nodes:
        changes += widened(nature_of(cause), node, None, world, policy, now_s)
    held, why, intents = _hold(case, fault, known, world, policy, now_s)
    changes += held
    symptoms = _symptoms(fault, cause, case.target, world)
    verdict = case.mine.row.verdict
    changes.append(d.Assess(entry=case.seen.entry, verdict=verdict, shadow=case.mine.shadow, symptoms=symptoms))
    how = f"more evidence for {fault}" if known is not None else fault
    return _decision(case.resource, f"{case.mine.key}: {cause.row.text} ({how}){why}", changes, intents)


def _joined(case: _Case, known: Fault) -> tuple[FaultId, list[d.Change]]:
    nature = nature_of(case.cause)
    joined = d.JoinFault(
        fault=known.id,
        entry=case.seen.entry,
        node=case.resource.node,
        signal=case.mine.key,
        nature=nature if known.node is not None and _graver(nature, known.nature) else None,
    )
    return known.id, [joined]


def _opened(case: _Case, world: World, policy: Policy, now_s: float) -> tuple[FaultId, list[d.Change]]:
    fault, cause = FaultId(f"flt-{world.next_fault:04d}"), case.cause
    opened = d.OpenFault(
        fault=fault,
        node=case.resource.node if cause.node else None,
        seen_on=case.resource.node,
        part=cause.part,
        nature=nature_of(cause),
        entries=(case.seen.entry,),
        signal=case.mine.key,
    )
    if opened.node is None:
        return fault, [opened]
    return fault, [opened, *widened(opened.nature, case.resource.node, fault, world, policy, now_s)]


def nature_of(cause: RootCause) -> Nature:
    row = cause.row
    return Nature(
        cause=row.cause,
        failure_class=row.failure_class,
        scope=row.scope,
        verdict=row.verdict,
        urgency=row.urgency,
        confidence=cause.confidence,
        text=row.text,
        resource_action=cause.resource_action,
        job_action=cause.job_action,
    )


def _graver(new: Nature, old: Nature) -> bool:
    grave = (Verdict.BENIGN, Verdict.WATCH, Verdict.SUSPECT, Verdict.FAULTY)
    return (grave.index(new.verdict), new.confidence) > (grave.index(old.verdict), old.confidence)


def _known(cause: RootCause, node: NodeId, world: World) -> Fault | None:
    """The open fault that this is more evidence for: of the same part, or of a domain that shares the trouble."""
    at = world.fault_at.get((cause.node, cause.part))
    if at is not None:
        return _leading(world.faults[at], world)
    return _of_domain(cause, node, world) or _of_node(cause, node, world)


def _of_domain(cause: RootCause, node: NodeId, world: World) -> Fault | None:
    for kind, name in world.domains.get(node, {}).items():
        at = world.fault_at.get(("", f"{kind}/{name}"))
        wide = world.faults[at] if at is not None else None
        if wide is not None and one_trouble(wide.nature.failure_class, cause.row.failure_class):
            return _leading(wide, world)
    return None


def _leading(fault: Fault, world: World) -> Fault:
    """The widest fault that it belongs to."""
    while fault.group is not None:
        fault = world.faults[fault.group]
    return fault


def _of_node(cause: RootCause, node: NodeId, world: World) -> Fault | None:
    """A fault of one of the node's parts that explains what is only suspicious of the node as a whole, however late."""
    if cause.part or cause.row.verdict is not Verdict.SUSPECT:
        return None
    for fault in (world.faults[x] for x in world.open_faults):
        alike = one_trouble(fault.nature.failure_class, cause.row.failure_class)
        if fault.node == node and fault.group is None and alike:
            return fault
    return None


def _target(cause: RootCause, resource: Resource, world: World) -> Resource:
    """What is isolated: the device where the cause is one card's, else its node."""
    if cause.row.scope is Scope.CARD:
        for name in (cause.part, *world.parts.names(cause.node, cause.part)):
            device = world.slots.get((resource.node, name))
            if device is not None:
                return world.resources[device]
        return resource
    node = world.resources.get(node_resource(resource.node))
    return node if node is not None else resource


def _hold(
    case: _Case, fault: FaultId, known: Fault | None, world: World, policy: Policy, now_s: float
) -> tuple[list[d.Change], str, list[Intent]]:
    """The hold, if one is due: its changes, what to say, and the orders to the node."""
    cause, target = case.cause, case.target
    if known is not None and known.node is None:
        return [], "", []  # what a domain shares is not cured by holding its members one by one
    if not cause.row.isolate:
        if cause.row.verdict is Verdict.SUSPECT and target.state is ResourceState.IN_SERVICE and _own_scope(cause):
            return [d.MoveResource(resource=target.id, to=ResourceState.SUSPECT)], "; suspect", []
        return [], "", []
    if target.state not in CAN_QUARANTINE:
        return [], f"; already {target.state.value}", []
    refusal = breaker(world, policy, 1, now_s)
    if refusal:
        return [], f"; not held: {refusal}", [Notify(subject=target.id, level="page", message=refusal)]
    changes: list[d.Change] = [*quarantine(target, f"keepstep:{fault}", cause.row.text)]
    changes.append(d.HoldForFault(fault=fault, resource=target.id))
    return changes, f"; {target.id} held", gate_orders(target, cause.row.text, world)


def _own_scope(cause: RootCause) -> bool:
    return cause.row.scope in (Scope.CARD, Scope.NODE)


def _symptoms(fault: FaultId, cause: RootCause, target: Resource, world: World) -> tuple[d.Symptom, ...]:
    """Jobs that must act on it now. A mere suspicion is told to those in trouble, and takes nothing from one that steps."""
    row = cause.row
    if row.urgency is not Urgency.NOW or row.scope in (Scope.JOB, Scope.DEPENDENCY):
        return ()
    judged = judged_of(fault, target.id, nature_of(cause), isolate=row.isolate)
    jobs = (world.jobs[job] for job in world.live_jobs)
    if row.verdict is not Verdict.FAULTY:
        jobs = (job for job in jobs if world.leading(job) is not None)
    hit = [job for job in jobs if uses(job, target.id, or_used=world.leading(job) is not None)]
    return tuple(d.Symptom(job=job.id, judged=judged) for job in hit)


# ---- their end


def close_faults(world: World, policy: Policy, now_s: float) -> d.Decision | None:
    """The first open fault that is over: its resources are back, or nothing was heard of it for long."""
    for fault_id in world.open_faults:
        fault = world.faults[fault_id]
        outcome = _outcome(fault, world, policy, now_s)
        if outcome:
            return d.Decision(
                stage="assess",
                subject=fault_id,
                reason=outcome,
                changes=(d.CloseFault(fault=fault_id, outcome=outcome),),
            )
    return None


def _outcome(fault: Fault, world: World, policy: Policy, now_s: float) -> str:
    if fault.group is not None:
        wide = world.faults[fault.group]
        return f"closed with {wide.id}" if wide.state is FaultState.CLOSED else ""
    held = [world.resources[r] for r in _held(fault, world)]
    if held:
        # It stays open for a while beside its resource: others of its domain may follow, and then it was never its own.
        if all(r.state in _RETURNED for r in held) and now_s - fault.last_s >= policy.correlation.together_s:
            return f"{', '.join(f'{r.id} {r.state.value}' for r in held)}"
        return ""
    if now_s - fault.last_s >= policy.correlation.quiet_s:
        return f"nothing more was seen of it for {policy.correlation.quiet_s:.0f} s"
    return ""


def _held(fault: Fault, world: World) -> list[ResourceId]:
    """What was isolated because of it, or of its members."""
    members = [resource for member in fault.members for resource in world.faults[member].held]
    return [*fault.held, *members]
