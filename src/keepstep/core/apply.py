"""Applies decisions to the World: the only place where a decision changes anything. Must not decide.

Used by the engine when it has just decided, and by replay when the journal says that it had.
"""

from collections import deque
from typing import assert_never

import msgspec

from keepstep.core import decision as d
from keepstep.core import fault, incident, job, resource
from keepstep.core.apply_drill import apply_drill
from keepstep.core.catalog.row import Verdict
from keepstep.core.errors import IllegalMove
from keepstep.core.facts import JobSpec, SignalSeen
from keepstep.core.fault import Fault, FaultState
from keepstep.core.good_news import ENDS
from keepstep.core.ids import IncidentId, JobId, NodeId
from keepstep.core.incident import Attempt, Incident, IncidentState, Judged, Seen
from keepstep.core.intents import EndJob, Fence, Intent, Launch, PowerOff, Quarantine, ResetDevice
from keepstep.core.job import Job, JobState
from keepstep.core.leave import leave
from keepstep.core.observed import JOURNAL, observed
from keepstep.core.resource import Hold, Resource, ResourceState
from keepstep.core.signal import OwnAction
from keepstep.core.world import Pending, World

_RESTING = (ResourceState.IN_SERVICE, ResourceState.RETIRED, ResourceState.LOST, ResourceState.REPAIR)
_RECENT_FAILURES = 64
_RECENT_ISOLATIONS = 4096
_RECENT_SIGNALS = 64
_FAULT_ENTRIES = 256
_OWN_ACTION_S = 60.0
"""What a kill prints comes within this long after the order."""
_OWN_ACTIONS = 256


def apply(world: World, decision: d.Decision, at_s: float) -> None:
    """Apply one decision; it counts as one journal entry."""
    world.seq += 1
    for change in decision.changes:
        _apply_change(world, change, at_s)
    owner = IncidentId(decision.subject) if decision.subject in world.incidents else None
    for offset, intent in enumerate(decision.intents):
        _apply_order(world, decision.first_order + offset, intent, owner, at_s)


def _apply_order(world: World, number: int, intent: Intent, owner: IncidentId | None, at_s: float) -> None:
    world.next_order = number + 1
    world.orders[number] = Pending(number=number, intent=intent, decided_s=at_s, incident=owner)
    world.order_queue.setdefault(type(intent).__name__, deque()).append((at_s, number))
    if isinstance(intent, Fence | EndJob | PowerOff | ResetDevice):
        _remember_own(world, intent, at_s)
    match intent:
        case Launch():
            world.jobs[intent.job].launchers[intent.node].running = intent.generation
        case PowerOff():
            world.powering_off[intent.node] = number
        case Quarantine():
            world.resources[intent.resource].gated = True
        case EndJob():
            world.jobs[intent.job].launchers[intent.node].told_to_end = True
        case Fence() if owner is not None:
            attempt = world.incidents[owner].attempt
            attempt.fence_tries[intent.node] = attempt.fence_tries.get(intent.node, 0) + 1
            attempt.fence_tried_s[intent.node] = at_s
            attempt.fence_road[intent.node] = f"{intent.via}:{intent.session}"
        case _:
            pass


def _remember_own(world: World, intent: Fence | EndJob | PowerOff | ResetDevice, at_s: float) -> None:
    """What we do ourselves prints codes that look fatal."""
    what = f"{type(intent).__name__} of {intent.job}"
    action = OwnAction(node=intent.node, clock=JOURNAL, from_s=at_s, until_s=at_s + _OWN_ACTION_S, what=what)
    world.own_actions.append(action)
    while len(world.own_actions) > _OWN_ACTIONS or world.own_actions[0].until_s < at_s:
        world.own_actions.popleft()


def _apply_change(world: World, change: d.Change, at_s: float) -> None:
    match change:
        case d.MoveIncident():
            move_incident(world, world.incidents[change.incident], change.to, at_s)
        case d.MoveJob():
            move_job(world, world.jobs[change.job], change.to, at_s)
        case d.MoveResource():
            move_resource(world, world.resources[change.resource], change.to, at_s)
        case d.Open():
            _open(world, change, at_s)
        case (
            d.Join()
            | d.Ask()
            | d.Excuse()
            | d.Resume()
            | d.Setback()
            | d.Grant()
            | d.Diagnose()
            | d.Choose()
            | d.Place()
            | d.Wait()
            | d.Close()
        ):
            _apply_to_incident(world, world.incidents[change.incident], change, at_s)
        case d.PlaceHold() | d.DropHold() | d.Suspect() | d.Remediate():
            _apply_to_resource(world.resources[change.resource], change, at_s)
        case d.ProveFenced():
            mark_fenced(world, world.jobs[change.job], change.node, change.generation, change.proof, at_s)
        case d.Dismiss():
            _next(world.inbox, change.entry)
        case d.OpenFault() | d.JoinFault() | d.HoldForFault() | d.ClearNode() | d.CloseFault():
            _apply_to_fault(world, change, at_s)
        case d.Due():
            _tell(world, world.faults[change.judged.fault], change.job, change.judged)
        case d.Defer() | d.Reconsider():
            _defer(world, change)
        case d.Assess():
            _assess(world, change)
        case d.End():
            ending = world.jobs[change.job]
            ending.exit_code, ending.message = change.exit_code, change.message
        case d.OpenDrill() | d.MoveDrill() | d.LinkDrill():
            apply_drill(world, change, at_s)
        case d.Retire():
            leave(world, change, at_s)
        case _:
            assert_never(change)


def _apply_to_fault(
    world: World, change: d.OpenFault | d.JoinFault | d.HoldForFault | d.ClearNode | d.CloseFault, at_s: float
) -> None:
    match change:
        case d.OpenFault():
            _open_fault(world, change, at_s)
        case d.JoinFault():
            _join_fault(world.faults[change.fault], change, at_s)
        case d.HoldForFault():
            world.faults[change.fault].held.append(change.resource)
        case d.ClearNode():
            world.faults[change.fault].nodes.remove(change.node)
        case d.CloseFault():
            item = world.faults[change.fault]
            move_fault(item, FaultState.CLOSED)
            item.outcome, item.closed_s = change.outcome, at_s
            world.closed_faults[item.id] = at_s
            world.open_faults.pop(item.id)
            if world.fault_at.get((item.node or "", item.part)) == item.id:
                del world.fault_at[item.node or "", item.part]
        case _:
            assert_never(change)


def _open_fault(world: World, change: d.OpenFault, at_s: float) -> None:
    item = Fault(
        id=change.fault,
        node=change.node,
        part=change.part,
        nature=change.nature,
        opened_s=at_s,
        last_s=at_s,
        entries=list(change.entries),
        count=len(change.entries),
        signals=[change.signal] if change.signal else [],
        nodes=[change.seen_on] if change.seen_on is not None else [],
        members=list(change.members),
        first=world.signals[0] if change.entries and world.signals else None,
    )
    world.next_fault += 1
    world.faults[item.id] = item
    world.open_faults[item.id] = None
    world.fault_at[change.node or "", change.part] = item.id
    for member in (world.faults[x] for x in change.members):
        move_fault(member, FaultState.GROUPED)
        member.group = item.id
        item.nodes += [node for node in member.nodes if node not in item.nodes]
        item.entries += member.entries
        item.count += member.count


def _join_fault(item: Fault, change: d.JoinFault, at_s: float) -> None:
    item.last_s = at_s
    item.count += 1
    if len(item.entries) < _FAULT_ENTRIES:
        item.entries.append(change.entry)
    if change.signal and change.signal not in item.signals:
        item.signals.append(change.signal)
    if change.node is not None and change.node not in item.nodes:
        item.nodes.append(change.node)
    if change.nature is not None:
        item.nature = change.nature


def _defer(world: World, change: d.Defer | d.Reconsider) -> None:
    match change:
        case d.Defer():
            seen = _next(world.signals, change.entry)
            world.deferred.append((change.until_s, seen))
            _remember(world, seen)
        case d.Reconsider():
            _, seen = world.deferred.popleft()
            if seen.entry != change.entry:
                raise IllegalMove(f"entry {change.entry} was taken out of turn (entry {seen.entry} was deferred first)")
            world.signals.appendleft(seen)
            world.reconsidered[seen.entry] = None


def _remember(world: World, seen: Seen) -> None:
    """For the rules that look at signals in company."""
    assert isinstance(seen.fact, SignalSeen)
    node = world.resources[seen.fact.resource].node
    world.recent.setdefault(node, deque(maxlen=_RECENT_SIGNALS)).append(observed(seen, node))


def _assess(world: World, change: d.Assess) -> None:
    seen = _next(world.signals, change.entry)
    assert isinstance(seen.fact, SignalSeen)
    worth = change.verdict is not Verdict.BENIGN or bool(seen.fact.attributes) or seen.fact.signal in ENDS
    again = change.entry in world.reconsidered
    world.reconsidered.pop(change.entry, None)
    if worth and not again:
        _remember(world, seen)
    for symptom in change.symptoms:
        _tell(world, world.faults[symptom.judged.fault], symptom.job, symptom.judged, seen)


def _tell(world: World, item: Fault, job: JobId, judged: Judged, seen: Seen | None = None) -> None:
    """A job is told of a signal, by the newest one or by the one that opened the fault."""
    seen = seen or item.first
    assert seen is not None, "a fault that a job acts on was opened by a signal"
    if job not in item.told:
        item.told.append(job)
    world.inbox.append(msgspec.structs.replace(seen, job=job, judged=judged))


OfIncident = (
    d.Join | d.Ask | d.Excuse | d.Resume | d.Setback | d.Grant | d.Diagnose | d.Choose | d.Place | d.Wait | d.Close
)


def _apply_to_incident(world: World, item: Incident, change: OfIncident, at_s: float) -> None:
    match change:
        case d.Join():
            item.symptoms += change.symptoms
            item.undiagnosed += change.symptoms
            item.kind = "fault"
            _take(world, item, change.symptoms)
        case d.Ask():
            item.attempt.witnesses_asked += change.witnesses
            item.attempt.stacks_asked = item.attempt.stacks_asked or change.stacks
        case d.Excuse():
            item.excused = True
        case d.Resume():
            item.undiagnosed = []
        case d.Grant():
            item.granted = item.resume_at
            item.grants += 1
        case d.Setback():
            item.setback = change.reason
            if change.refuse:
                world.jobs[item.job].invalid.append(change.refuse)
                world.jobs[item.job].tainted.append(world.jobs[item.job].generation)
        case d.Diagnose():
            _diagnose(world, item, change)
        case d.Choose():
            attempt = item.attempt
            attempt.restore, attempt.restore_chosen = change.restore, True
            attempt.verified_by, attempt.verify_asked = [], change.asked
        case d.Place():
            _place(world, item, change)
        case d.Wait():
            item.waits_for, item.resume_at, item.asks = change.waits_for, change.resume_at, change.asks
        case d.Close():
            _close(world, item, change, at_s)
        case _:
            assert_never(change)


def _open(world: World, change: d.Open, at_s: float) -> None:
    owner = world.jobs[change.job]
    item = Incident(
        id=change.incident,
        job=change.job,
        kind=change.kind,
        state=IncidentState.OPEN if change.kind == "fault" else IncidentState.SELECTING,
        opened_s=at_s,
        entered_s=at_s,
        attempts=[Attempt(generation=owner.generation)],
        symptoms=list(change.symptoms),
        undiagnosed=list(change.symptoms),
        step_before=max(owner.step, owner.committed_step),
        loss_before=owner.loss,
        step_time_before_s=owner.step_time_s,
        checkpoint_s=owner.committed_s,
        ranks=owner.placement.world_size if owner.placement is not None else 0,
    )
    world.next_incident += 1
    world.incidents[item.id] = item
    world.open_incidents[item.id] = None
    owner.incident = item.id
    owner.incidents_kept += 1
    _take(world, item, change.symptoms)
    for seen in item.evidence.values():
        if seen.judged is not None:
            world.faults[seen.judged.fault].incidents.append(item.id)


def _take(world: World, item: Incident, symptoms: tuple[int, ...]) -> None:
    for entry in symptoms:
        item.evidence[entry] = _next(world.inbox, entry)


def _next(queue: deque[Seen], entry: int) -> Seen:
    """Queues are worked off in order, so what a decision takes stands at the head."""
    seen = queue.popleft()
    if seen.entry != entry:
        raise IllegalMove(f"entry {entry} was taken out of turn (the queue begins with {seen.entry})")
    return seen


def _diagnose(world: World, item: Incident, change: d.Diagnose) -> None:
    owner = world.jobs[item.job]
    if change.new_attempt:
        item.attempts.append(Attempt(generation=owner.generation))
    item.attempt.diagnosis = change.diagnosis
    item.undiagnosed, item.setback, item.granted = [], "", None
    if change.failure is not None:
        if not change.new_attempt and item.attempt.charged:
            owner.failures.pop()  # a second look at the same failure is not a second failure
        item.attempt.charged = True
        owner.failures.append(change.failure)
        del owner.failures[:-_RECENT_FAILURES]


def _place(world: World, item: Incident, change: d.Place) -> None:
    owner = world.jobs[change.job]
    owner.generation = item.attempt.new_generation = change.placement.generation
    # What was seen of the old generation says nothing of this one: it is looked at afresh if it must be.
    item.attempt.witnesses_asked, item.attempt.stacks_asked, item.attempt.stacks = (), False, {}
    owner.placement, owner.restored, owner.ended = change.placement, item.attempt.restore, {}
    owner.store = ""
    if change.store_node is not None:
        # A rendezvous store serves one generation only: a key of an older one must never be read again.
        host = owner.launchers[change.store_node]
        owner.store, host.store = host.store, ""


def _close(world: World, item: Incident, change: d.Close, at_s: float) -> None:
    item.verdict, item.lost_steps, item.stage_s, item.closed_s = change.verdict, change.lost_steps, change.stage_s, at_s
    item.downtime_s = change.downtime_s
    world.open_incidents.pop(item.id, None)
    world.closed_incidents[item.id] = at_s
    owner = world.jobs[item.job]
    if owner.incident == item.id:
        owner.incident = None
    item.evidence.clear()


def _apply_to_resource(item: Resource, change: d.PlaceHold | d.DropHold | d.Suspect | d.Remediate, at_s: float) -> None:
    match change:
        case d.PlaceHold():
            item.holds[change.source] = Hold(source=change.source, reason=change.reason, since_s=at_s)
            item.incident = change.incident or item.incident
        case d.DropHold():
            del item.holds[change.source]
        case d.Suspect():
            item.failures.append(at_s)
            del item.failures[:-_RECENT_FAILURES]
        case d.Remediate():
            if change.gate_tries > item.gate_tries:
                item.gate_verdict = ""  # a new run: the word of the last one is spent
            item.resets, item.gate_tries = change.resets, change.gate_tries
        case _:
            assert_never(change)


def mark_fenced(world: World, owner: Job, node: NodeId, generation: int, proof: str, at_s: float) -> None:
    """Everything of the job up to ``generation`` is proven dead on the node."""
    launcher = owner.launchers[node]
    launcher.fenced = max(launcher.fenced, generation)
    launcher.fenced_s = at_s
    if launcher.running <= generation:
        launcher.running, launcher.emptied, launcher.replaces = 0, False, None
    leading = world.leading(owner)
    if leading is not None:
        leading.attempt.fenced[node] = proof
    _withdraw_launches(world, owner.id, node, generation)


def _withdraw_launches(world: World, job: JobId, node: NodeId, generation: int) -> None:
    """A launch that never arrived must not do so now: it would start what was just proven dead, beside its successor."""
    launches = [(n, p.intent) for n, p in world.orders.items() if isinstance(p.intent, Launch)]
    for number, intent in launches:
        if (intent.job, intent.node) == (job, node) and intent.generation <= generation:
            del world.orders[number]


def move_incident(world: World, item: Incident, to: IncidentState, at_s: float) -> None:
    """The only writer of an incident's state."""
    if to not in incident.TRANSITIONS[item.state]:
        raise IllegalMove(f"incident {item.id}: {item.state.value} -> {to.value} is not in the table")
    spent = item.stage_s.get(item.state.value, 0.0) + at_s - item.entered_s
    item.stage_s[item.state.value] = spent
    item.timeline.append((to.value, at_s))
    item.state, item.entered_s, item.entered_entry = to, at_s, world.seq
    if to is not IncidentState.WAITING:
        item.waits_for, item.resume_at = "", None


def move_job(world: World, item: Job, to: JobState, at_s: float) -> None:
    """The only writer of a job's state."""
    if to not in job.TRANSITIONS[item.state]:
        raise IllegalMove(f"job {item.id}: {item.state.value} -> {to.value} is not in the table")
    if to is JobState.RUNNING and item.running_since_s is None:
        item.running_since_s = at_s
    item.state, item.entered_s = to, at_s
    if to in job.TERMINAL:
        item.finished_s = at_s
        world.live_jobs.pop(item.id, None)
        world.ended_jobs[item.id] = at_s


def move_resource(world: World, item: Resource, to: ResourceState, at_s: float) -> None:
    """The only writer of a resource's state."""
    if to not in resource.TRANSITIONS[item.state]:
        raise IllegalMove(f"resource {item.id}: {item.state.value} -> {to.value} is not in the table")
    item.state, item.entered_s = to, at_s
    world.lost_resources.pop(item.id, None)
    if to is ResourceState.LOST:
        world.lost_resources[item.id] = None
    if to is ResourceState.VALIDATING:
        item.gate_verdict, item.gate_passed_entry = "", None
    if to in _RESTING:
        world.busy_resources.pop(item.id, None)
    else:
        world.busy_resources[item.id] = None
    if to is ResourceState.QUARANTINED:
        world.isolations.append((at_s, item.id))
        if len(world.isolations) > _RECENT_ISOLATIONS:
            world.isolations.popleft()


def move_fault(item: Fault, to: FaultState) -> None:
    """The only writer of a fault's state."""
    if to not in fault.TRANSITIONS[item.state]:
        raise IllegalMove(f"fault {item.id}: {item.state.value} -> {to.value} is not in the table")
    item.state = to


def add_job(world: World, item: Job) -> None:
    world.jobs[item.id] = item
    world.live_jobs[item.id] = None


def run_again(world: World, item: Job, spec: JobSpec, at_s: float) -> None:
    """An ended job is submitted again: it begins at its newest valid state, with its budgets whole."""
    move_job(world, item, JobState.SUBMITTED, at_s)
    world.live_jobs[item.id] = None
    world.ended_jobs.pop(item.id, None)
    item.spec, item.submitted_s, item.finished_s = spec, at_s, None
    item.exit_code, item.message, item.stop_requested = None, "", ""
    item.failures, item.ended = [], {}
    # Launchers of the last run are gone, but one whose ranks are not proven dead must not be forgotten.
    item.launchers = {node: launcher for node, launcher in item.launchers.items() if launcher.running}


def add_resource(world: World, item: Resource) -> None:
    world.resources[item.id] = item
    world.by_node.setdefault(item.node, []).append(item.id)
    world.busy_resources[item.id] = None
