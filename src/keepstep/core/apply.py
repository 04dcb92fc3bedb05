"""Applies decisions to the World: the only place where a decision changes anything. Must not decide.

Used by the engine when it has just decided, and by replay when the journal says that it had.
"""

from collections import deque
from typing import assert_never

from keepstep.core import decision as d
from keepstep.core import incident, job, resource
from keepstep.core.errors import IllegalMove
from keepstep.core.facts import JobSpec
from keepstep.core.ids import IncidentId, NodeId
from keepstep.core.incident import Attempt, Incident, IncidentState, Seen
from keepstep.core.intents import EndJob, Fence, Intent, Launch, PowerOff, Quarantine
from keepstep.core.job import Job, JobState
from keepstep.core.resource import Hold, Resource, ResourceState
from keepstep.core.world import Pending, World

_RESTING = (ResourceState.IN_SERVICE, ResourceState.RETIRED, ResourceState.LOST, ResourceState.REPAIR)
_RECENT_FAILURES = 64
_RECENT_ISOLATIONS = 4096


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
            queue = world.inbox if change.queue == "inbox" else world.signals
            _next(queue, change.entry)
        case d.End():
            ending = world.jobs[change.job]
            ending.exit_code, ending.message = change.exit_code, change.message
        case _:
            assert_never(change)


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
    )
    world.next_incident += 1
    world.incidents[item.id] = item
    world.open_incidents[item.id] = None
    owner.incident = item.id
    _take(world, item, change.symptoms)


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


def add_job(world: World, item: Job) -> None:
    world.jobs[item.id] = item
    world.live_jobs[item.id] = None


def run_again(world: World, item: Job, spec: JobSpec, at_s: float) -> None:
    """An ended job is submitted again: it begins at its newest valid state, with its budgets whole."""
    move_job(world, item, JobState.SUBMITTED, at_s)
    world.live_jobs[item.id] = None
    item.spec, item.submitted_s, item.finished_s = spec, at_s, None
    item.exit_code, item.message, item.stop_requested = None, "", ""
    item.failures, item.ended = [], {}
    # Launchers of the last run are gone, but one whose ranks are not proven dead must not be forgotten.
    item.launchers = {node: launcher for node, launcher in item.launchers.items() if launcher.running}


def add_resource(world: World, item: Resource) -> None:
    world.resources[item.id] = item
    world.by_node.setdefault(item.node, []).append(item.id)
    world.busy_resources[item.id] = None
