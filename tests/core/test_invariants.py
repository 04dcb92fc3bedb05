"""invariants.check: one test for each invariant that a decision could break. A broken one stops the engine, not the job."""

import msgspec
import pytest

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.apply import apply
from keepstep.core.decision import Change, Decision
from keepstep.core.errors import InvariantBroken
from keepstep.core.ids import IncidentId, NodeId
from keepstep.core.incident import Cause, Diagnosis
from keepstep.core.intents import Fence, Intent, Launch, PowerOff, VerifyCheckpoint
from keepstep.core.invariants import check
from keepstep.core.job import Placement
from keepstep.core.policy import Approvals, Policy
from keepstep.core.resource import ResourceState

from .build import JOB, Plane, device, disk


def deciding(
    *, changes: tuple[Change, ...] = (), intents: tuple[Intent, ...] = (), subject: str = "inc-0002"
) -> Decision:
    return Decision(stage="test", subject=subject, reason="", changes=changes, intents=intents)


def broken(plane: Plane, decision: Decision, number: int) -> None:
    with pytest.raises(InvariantBroken, match=f"^invariant {number}:"):
        check(plane.world, decision, plane.policy)


def at_launch(*, saved: bool = True) -> tuple[Plane, Decision]:
    """A recovery just before its launch, and the launch decision that is due: the engine itself made it."""
    plane = Plane()
    if saved:
        plane.inventories = {"n0": f.Inventory(disk=(disk(8),)), "n1": f.Inventory(disk=(disk(8),))}
    plane.start()
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    plane.verify_all()
    launch = next(x for x in reversed(plane.decisions) if any(isinstance(i, Launch) for i in x.intents))
    for intent in launch.intents:
        assert isinstance(intent, Launch)
        plane.job.launchers[intent.node].running = 0  # as it was when that decision was checked
    check(plane.world, launch, plane.policy)
    return plane, launch


def test_invariant_1_no_launch_while_an_older_generation_may_live() -> None:
    plane, launch = at_launch()
    plane.job.launchers[NodeId("n1")].running = plane.job.generation - 1
    broken(plane, launch, 1)


def test_invariant_1_only_the_newest_generation_is_launched() -> None:
    plane, launch = at_launch()
    old = [msgspec.structs.replace(i, generation=1) for i in launch.intents]
    broken(plane, deciding(intents=tuple(old)), 1)


def test_invariant_1_a_node_is_launched_once() -> None:
    plane, launch = at_launch()
    plane.job.launchers[NodeId("n0")].running = plane.job.generation
    broken(plane, launch, 1)


def test_invariant_1_who_is_heard_is_not_presumed_dead() -> None:
    plane, _ = at_launch()
    broken(plane, deciding(changes=(d.ProveFenced(job=JOB, node=NodeId("n0"), generation=1),)), 1)


def test_invariant_2_no_launch_on_a_held_device() -> None:
    plane, launch = at_launch()
    plane.fold(f.HoldRequested(resource=device("n0", 1), source="person:eve", by="eve"))
    broken(plane, launch, 2)


def test_invariant_2_no_launch_on_a_held_node() -> None:
    plane, launch = at_launch()
    plane.resource("node/n1").state = ResourceState.QUARANTINED
    broken(plane, launch, 2)


def test_invariant_2_what_is_diagnosed_is_held_before_the_launch() -> None:
    plane, launch = at_launch()
    named = plane.incident.attempt.diagnosis
    assert named is not None
    plane.incident.attempt.diagnosis = msgspec.structs.replace(named, resources=(device("n1", 0),))
    broken(plane, launch, 2)


def test_invariant_3_no_launch_from_a_state_that_was_not_verified() -> None:
    plane, launch = at_launch()
    plane.incident.attempt.verified_by = []
    broken(plane, launch, 3)


def test_invariant_3_no_launch_from_another_state_than_the_chosen_one() -> None:
    plane, launch = at_launch()
    other = [msgspec.structs.replace(i, restore=None) for i in launch.intents]
    broken(plane, deciding(intents=tuple(other)), 3)


def test_invariant_3_a_launch_belongs_to_an_incident() -> None:
    plane, launch = at_launch()
    plane.job.incident = None
    broken(plane, launch, 3)


def test_invariant_5_no_fence_without_a_diagnosis() -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1"))
    fence = Fence(job=JOB, node=NodeId("n1"), session=plane.session("n1"), generation=1)
    broken(plane, deciding(intents=(fence,)), 5)
    broken(plane, deciding(intents=(fence,), subject="inc-9999"), 5)


def test_invariant_5_a_diagnosis_rests_on_evidence() -> None:
    plane = Plane().start()
    guess = Diagnosis(cause=Cause.DEVICE, confidence=0.9, summary="it feels like it")
    broken(
        plane, deciding(changes=(d.Diagnose(incident=IncidentId("inc-0001"), diagnosis=guess, new_attempt=False),)), 5
    )


def test_invariant_6_no_power_off_without_policy_or_a_person() -> None:
    plane = Plane().start()
    off = PowerOff(job=JOB, node=NodeId("n1"), session=plane.session("n1"), generation=1)
    broken(plane, deciding(intents=(off,)), 6)
    check(plane.world, deciding(intents=(off,)), Policy(approvals=Approvals(power_off=True)))
    granted = deciding(intents=(off,), changes=(d.Grant(incident=IncidentId("inc-0001"), by="eve"),))
    check(plane.world, granted, plane.policy)


def test_invariant_7_a_persons_hold_is_not_lifted_by_the_engine() -> None:
    plane = Plane().start()
    plane.tell(f.HoldRequested(resource=device("n0", 0), source="person:eve", by="eve"))
    broken(plane, deciding(changes=(d.DropHold(resource=device("n0", 0), source="person:eve"),)), 7)


@pytest.mark.parametrize("generation", [0, 1, 3])
def test_invariant_8_a_generation_grows_by_one(generation: int) -> None:
    plane = Plane().start()
    placement = Placement(generation=generation, world_size=4, nodes={})
    place = d.Place(incident=IncidentId("inc-0001"), job=JOB, placement=placement, store_node=None)
    broken(plane, deciding(changes=(place,)), 8)


@pytest.mark.parametrize("to", [ResourceState.PROBATION, ResourceState.IN_SERVICE])
@pytest.mark.parametrize("state", [ResourceState.VALIDATING, ResourceState.BURN_IN, ResourceState.REPAIR])
def test_invariant_11_no_return_without_a_passed_gate(state: ResourceState, to: ResourceState) -> None:
    plane = Plane().start()
    plane.resource("device/n0/0").state = state
    back = deciding(changes=(d.MoveResource(resource=device("n0", 0), to=to),))
    broken(plane, back, 11)
    plane.resource("device/n0/0").gate_passed_entry = 7
    check(plane.world, back, plane.policy)


def test_a_queue_is_worked_off_in_order() -> None:
    plane = Plane().start()
    plane.fold(plane.exited(0, signal=9), plane.exited(1, signal=9))
    second = plane.world.inbox[1].entry
    with pytest.raises(InvariantBroken, match="out of turn"):
        apply(plane.world, deciding(changes=(d.Dismiss(entry=second, queue="inbox"),)), plane.now_s)


def test_a_turn_that_does_not_settle_stops_the_engine() -> None:
    plane = Plane(Policy(max_decisions_per_turn=3, max_decisions_per_resource=0))
    with pytest.raises(InvariantBroken, match="does not settle"):
        plane.submit()


def test_the_verification_orders_name_the_very_state_that_is_launched() -> None:
    plane, launch = at_launch()
    asked = [i for x in plane.decisions for i in x.intents if isinstance(i, VerifyCheckpoint)]
    restores = {i.restore.key for i in launch.intents if isinstance(i, Launch) and i.restore is not None}
    assert restores == {asked[-1].restore.key} == {"disk-8"}
