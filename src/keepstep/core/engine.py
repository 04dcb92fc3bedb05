"""turn(): asks everything that is open what it wants now, until nothing wants anything. Level-triggered, pure.

The shell journals what comes back before any order leaves. The same function runs in the server, in the simulator and in
the replay of last night's incident.
"""

from collections.abc import Callable

import msgspec

from keepstep.core.apply import apply
from keepstep.core.assess import assess, close_faults
from keepstep.core.correlate import correlate
from keepstep.core.decision import Decision, End, MoveIncident, MoveJob
from keepstep.core.diagnose import diagnose
from keepstep.core.errors import InvariantBroken
from keepstep.core.facts import Fact
from keepstep.core.fold import fold
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.intents import Notify, Order
from keepstep.core.invariants import check
from keepstep.core.isolate import isolate
from keepstep.core.job import JobState
from keepstep.core.leaving import corroborated, due
from keepstep.core.lifecycle import lifecycle
from keepstep.core.place import place
from keepstep.core.policy import Policy
from keepstep.core.rehearse import rehearse
from keepstep.core.remediate import remediate, returns
from keepstep.core.restart import restart
from keepstep.core.retire import retire
from keepstep.core.review import review
from keepstep.core.select import select
from keepstep.core.verify import verify
from keepstep.core.wait import wait
from keepstep.core.world import World

Stage = Callable[[Incident, World, Policy, float], Decision | None]

STAGES: dict[IncidentState, Stage] = {
    IncidentState.OPEN: diagnose,
    IncidentState.ISOLATING: isolate,
    IncidentState.SELECTING: select,
    IncidentState.PLACING: place,
    IncidentState.RESTARTING: restart,
    IncidentState.VERIFYING: verify,
    IncidentState.WAITING: wait,
}


def turn(world: World, policy: Policy, now_s: float) -> list[Decision]:
    """Every decision that is due, applied to the World in the order in which it is returned."""
    made: list[Decision] = []
    while True:
        decision = _next(world, policy, now_s)
        if decision is None:
            return made
        decision = msgspec.structs.replace(decision, first_order=world.next_order)
        check(world, decision, policy)
        apply(world, decision, now_s)
        made.append(decision)
        if len(made) > policy.max_decisions_per_turn + policy.max_decisions_per_resource * len(world.resources):
            raise InvariantBroken(f"a turn made {len(made)} decisions and does not settle")


def _next(world: World, policy: Policy, now_s: float) -> Decision | None:
    """The first decision that anything wants, in a fixed order: verdicts before acts, resources before placements."""
    decision = assess(world, policy, now_s) or correlate(world) or corroborated(world)
    if decision is not None:
        return decision
    for resource_id in world.busy_resources:
        decision = remediate(world.resources[resource_id], world, policy, now_s)
        if decision is not None:
            return decision
    for resource_id in world.lost_resources:
        decision = returns(world.resources[resource_id], world)
        if decision is not None:
            return decision
    for incident_id in world.open_incidents:
        decision = step(world.incidents[incident_id], world, policy, now_s)
        if decision is not None:
            return decision
    decision = due(world) or close_faults(world, policy, now_s)
    if decision is not None:
        return decision
    for job_id in world.live_jobs:
        decision = lifecycle(world.jobs[job_id], world, policy, now_s)
        if decision is not None:
            return decision
    return rehearse(world, policy, now_s) or retire(world, policy, now_s)


def step(incident: Incident, world: World, policy: Policy, now_s: float) -> Decision | None:
    """What one incident wants now."""
    if not incident.open:
        return review(incident, world)
    decision = STAGES[incident.state](incident, world, policy, now_s)
    return decision if decision is not None else _deadline(incident, world, policy, now_s)


def _deadline(incident: Incident, world: World, policy: Policy, now_s: float) -> Decision | None:
    """Everything ends (invariant 9): a stage that let its deadline pass hands over to a person."""
    job = world.job_of(incident)
    limit_s = policy.incident_deadline_s[incident.state.value]
    if incident.state is IncidentState.PLACING and job.spec.capacity_wait_s is not None:
        limit_s = max(limit_s, 2 * job.spec.capacity_wait_s)  # place.py ends the wait itself
    if now_s - incident.entered_s < limit_s:
        return None
    message = f"{incident.state.value} did not end within {limit_s:.0f} s; a person must look ({incident.last_failure})"
    changes: tuple[MoveIncident | End | MoveJob, ...] = (
        MoveIncident(incident=incident.id, to=IncidentState.ESCALATED),
    )
    if job.state in (JobState.STARTING, JobState.RECOVERING):
        # Nothing of it runs, or what runs was never seen to progress: leaving it half-recovered would hide that.
        changes += (End(job=job.id, exit_code=75, message=message), MoveJob(job=job.id, to=JobState.ENDING))
    page = Notify(subject=incident.id, level="page", message=message)
    return Decision(stage="engine", subject=incident.id, reason=message, changes=changes, intents=(page,))


def orders_of(decision: Decision) -> list[Order]:
    """The numbered orders of a decision, ready to be sent once it is in the journal."""
    return [Order(number=decision.first_order + i, intent=intent) for i, intent in enumerate(decision.intents)]


def replay(world: World, record: Fact | Decision, at_s: float) -> None:
    """Fold one journal entry: facts are folded, decisions applied, nothing is decided again."""
    if isinstance(record, Decision):
        apply(world, record, at_s)
    else:
        fold(world, record, at_s)


def waits_s(world: World, policy: Policy) -> float:
    """How long the shell may sleep between turns when no fact arrives."""
    quick = world.open_incidents or world.inbox or world.signals
    return 0.02 if quick else 0.1
