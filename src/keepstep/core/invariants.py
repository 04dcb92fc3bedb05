"""The invariants of the design, asserted before every decision is applied, in production too. Must not decide.

Numbers are those of docs/explanation/invariants.md. What cannot be seen here (4: nothing deletes state; 10: a dead server
stops no step) has no intent that could break it and is checked in the simulator and in the integration tests.
"""

from keepstep.core import decision as d
from keepstep.core.drill import DrillState
from keepstep.core.errors import InvariantBroken
from keepstep.core.fault import FaultState
from keepstep.core.ids import ResourceId, device_resource
from keepstep.core.incident import OWNER as INCIDENT_OWNER
from keepstep.core.incident import Attempt, IncidentState
from keepstep.core.intents import Fence, Inject, Launch, PowerOff
from keepstep.core.job import OWNER as JOB_OWNER
from keepstep.core.job import JobState
from keepstep.core.policy import Policy
from keepstep.core.resource import OWNER as RESOURCE_OWNER
from keepstep.core.resource import ResourceState
from keepstep.core.retire import may_leave
from keepstep.core.world import World


def check(world: World, decision: d.Decision, policy: Policy) -> None:
    """Raise InvariantBroken if applying the decision would break one."""
    for change in decision.changes:
        _check_change(world, change, decision)
    launch = next((intent for intent in decision.intents if isinstance(intent, Launch)), None)
    if launch is not None:
        _check_start(world, launch, decision)
    for intent in decision.intents:
        match intent:
            case Launch():
                _check_launch(world, intent, decision)
            case Fence():
                _require(_diagnosed(world, decision), 5, "a fence needs a diagnosis: unknown never kills", decision)
            case PowerOff():
                allowed = policy.approvals.power_off or any(isinstance(c, d.Grant) for c in decision.changes)
                _require(allowed, 6, "power-fencing waits for policy or a person", decision)
            case Inject():
                _check_drill(world, intent, decision)
            case _:
                pass


def _require(holds: bool, number: int, what: str, decision: d.Decision) -> None:
    if not holds:
        raise InvariantBroken(f"invariant {number}: {what} (stage {decision.stage}, {decision.subject})")


def _check_start(world: World, intent: Launch, decision: d.Decision) -> None:
    """Of the generation as a whole: a decision launches one generation of one job."""
    job = world.jobs[intent.job]
    for launcher in job.launchers.values():
        dead = launcher.running in (0, intent.generation)
        _require(dead, 1, f"generation {launcher.running} is not proven dead on {launcher.node}", decision)
    _require(intent.generation == job.generation, 1, "only the newest generation is launched", decision)
    leading = world.leading(job)
    _require(leading is not None, 3, "a launch belongs to a start or an incident", decision)
    assert leading is not None
    attempt = leading.attempt
    for named in attempt.diagnosis.resources if attempt.diagnosis else ():
        held = named not in world.resources or not world.resources[named].allocatable
        _require(held or _redeemed(world, named, attempt), 2, f"{named} is diagnosed and not held", decision)
    _require(attempt.restore_chosen and attempt.restore == intent.restore, 3, "restore what was chosen", decision)
    if intent.restore is not None:
        verified = set(attempt.verified_by) >= set(attempt.verify_asked) and bool(attempt.verify_asked)
        _require(verified, 3, f"{intent.restore.key} is not verified", decision)


def _check_launch(world: World, intent: Launch, decision: d.Decision) -> None:
    job = world.jobs[intent.job]
    launcher = job.launchers[intent.node]
    _require(launcher.running != intent.generation, 1, f"{intent.node} was ordered to launch already", decision)
    for place in intent.ranks:
        resource = world.resources.get(device_resource(intent.node, place.slot))
        fit = resource is not None and resource.allocatable and world.node_usable(intent.node)
        _require(fit, 2, f"slot {place.slot} of {intent.node} is held or out of service", decision)


def _check_drill(world: World, intent: Inject, decision: d.Decision) -> None:
    job, drill = world.jobs[intent.job], world.drills[intent.drill]
    steady = job.state is JobState.RUNNING and job.incident is None and intent.generation == job.generation
    _require(steady, 6, f"a drill hits a steady job only; {job.id} is {job.state.value}", decision)
    others = [x for x in world.open_drills if world.drills[x].injected_s is not None]
    _require(not others and drill.state is DrillState.WAITING, 6, "one drill at a time, and each once", decision)


def _redeemed(world: World, named: ResourceId, attempt: Attempt) -> bool:
    """It passed a gate after everything that speaks against it: validation can be quicker than a recovery."""
    assert attempt.diagnosis is not None
    passed = world.resources[named].gate_passed_entry
    return passed is not None and all(evidence.entry < passed for evidence in attempt.diagnosis.evidence)


def _diagnosed(world: World, decision: d.Decision) -> bool:
    incident = next((i for i in world.open_incidents if i == decision.subject), None)
    return incident is not None and world.incidents[incident].attempt.diagnosis is not None


def _check_change(world: World, change: d.Change, decision: d.Decision) -> None:
    match change:
        case d.DropHold():
            ours = change.source.startswith("keepstep:")
            _require(ours, 7, f"the hold of {change.source} is not the engine's to lift", decision)
        case d.MoveResource() if change.to in (ResourceState.PROBATION, ResourceState.IN_SERVICE):
            resource = world.resources[change.resource]
            if resource.state in (ResourceState.VALIDATING, ResourceState.BURN_IN, ResourceState.REPAIR):
                _require(resource.gate_passed_entry is not None, 11, f"{resource.id} has not passed a gate", decision)
        case d.Place():
            job = world.jobs[change.job]
            grows = change.placement.generation == job.generation + 1
            _require(grows, 8, "a generation only ever grows by one", decision)
        case d.ProveFenced():
            launcher = world.jobs[change.job].launchers[change.node]
            _require(not launcher.reachable, 1, f"{change.node} is heard: its own proof counts", decision)
        case d.Diagnose():
            sure = bool(change.diagnosis.evidence) or change.diagnosis.key == "no_progress"
            _require(sure, 5, "a diagnosis rests on evidence", decision)
        case d.Retire():
            at_work: list[str] = [x for x in change.incidents if x in world.open_incidents]
            at_work += (x for x in change.faults if world.faults[x].state is not FaultState.CLOSED)
            at_work += (x for x in change.jobs if not may_leave(x, world))
            _require(not at_work, 9, f"{', '.join(at_work)}: only what is over leaves the World", decision)
        case _:
            pass


assert set(INCIDENT_OWNER) == set(IncidentState), "invariant 9: every incident state has an owner"
assert set(RESOURCE_OWNER) == set(ResourceState), "invariant 9: every resource state has an owner"
assert set(JOB_OWNER) == set(JobState), "invariant 9: every job state has an owner"
