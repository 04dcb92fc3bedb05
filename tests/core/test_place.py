"""Stages 6 and 7: healthy capacity only, survivors keep their ranks, declared elasticity; and one launch per generation."""

from keepstep.core import facts as f
from keepstep.core.ids import NodeId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import EndJob, Fence, Launch, Notify
from keepstep.core.job import JobState, Placement
from keepstep.core.policy import Approvals, Policy
from keepstep.core.resource import ResourceState

from .build import Plane, device, launched, node


def lose(plane: Plane, *names: str) -> None:
    """The nodes' launchers are gone; whoever is left proves its ranks dead, and so does the host for the lost ones."""
    for name in names:
        plane.tell(plane.silent(name, lost=True))
        plane.tell(plane.witnessed(name, "process_gone"))
    plane.fence_all()


def placed(plane: Plane) -> Placement:
    assert plane.job.placement is not None
    return plane.job.placement


def seats(plane: Plane) -> list[str]:
    return [str(name) for name in placed(plane).nodes]


def test_a_restart_without_a_loss_keeps_every_rank_where_it_was() -> None:
    plane = Plane().start(nodes=3)
    before = placed(plane)
    plane.tell(plane.exited(1, signal=9))
    plane.recover()
    assert placed(plane).nodes == before.nodes
    assert placed(plane).generation == before.generation + 1


def test_a_spare_takes_the_seat_of_the_lost_node_and_survivors_keep_their_ranks() -> None:
    plane = Plane().start(nodes=3, spares=1)
    lose(plane, "n1")
    assert seats(plane) == ["n0", "n3", "n2"]
    assert [place.rank for place in placed(plane).nodes[NodeId("n3")]] == [2, 3]


def test_no_node_is_special() -> None:
    plane = Plane().start(nodes=2, spares=1)
    lose(plane, "n0")
    assert seats(plane) == ["n2", "n1"]
    assert plane.job.store.startswith(("n1:", "n2:"))


def test_a_spare_is_not_used_while_there_are_others() -> None:
    plane = Plane().start(nodes=2, spares=2)
    assert seats(plane) == ["n0", "n1"]


def test_an_elastic_job_goes_on_smaller() -> None:
    plane = Plane().start(nodes=3, min_nodes=1)
    lose(plane, "n1")
    assert seats(plane) == ["n0", "n2"]
    assert placed(plane).world_size == 4
    assert [i.group_world_size for _, i in plane.pending(Launch)] == [2, 2]


def test_an_elastic_job_shrinks_in_its_declared_step() -> None:
    plane = Plane().start(nodes=4, min_nodes=2, grain=2)
    lose(plane, "n0")
    assert len(seats(plane)) == 2


def test_a_fixed_job_waits_says_so_once_and_goes_on_when_a_node_comes() -> None:
    plane = Plane().start(nodes=2)
    lose(plane, "n1")
    assert plane.incident.state is IncidentState.PLACING
    assert "needs 2 healthy nodes" in plane.incident.waits_for
    plane.wait(10.0)
    assert len([i for _, i in plane.pending(Notify) if "needs 2 healthy nodes" in i.message]) == 1
    plane.tell(plane.joined("n9"))
    assert seats(plane) == ["n0", "n9"]
    plane.launch_all()
    assert plane.incident.state is IncidentState.VERIFYING


def test_waiting_for_capacity_ends_with_a_clear_message_and_exit_code() -> None:
    plane = Plane().start(nodes=2, capacity_wait_s=60.0)
    lose(plane, "n1")
    plane.wait(59.0)
    assert plane.incident.state is IncidentState.PLACING
    plane.wait(2.0)
    assert plane.incident.state is IncidentState.ESCALATED
    assert plane.job.exit_code == 75
    assert "1 of 2 healthy nodes after waiting 61 s" in plane.job.message
    assert [i.node for _, i in plane.pending(EndJob)] == ["n0"]


def test_policy_waits_where_the_job_does_not_say_how_long() -> None:
    plane = Plane().start(nodes=2)
    lose(plane, "n1")
    plane.wait(plane.policy.capacity.wait_s - 1.0)
    assert plane.job.state is JobState.RECOVERING
    plane.wait(2.0)
    assert plane.job.exit_code == 75


def test_a_held_device_is_avoided() -> None:
    plane = Plane().start(nodes=2, spares=1)
    plane.tell(f.HoldRequested(resource=device("n0", 0), source="person:eve", by="eve"))
    plane.tell(plane.exited(3, signal=9))
    plane.fence_all()
    assert seats(plane) == ["n2", "n1"]


def test_another_slot_of_the_same_node_stands_in_for_a_held_device() -> None:
    plane = Plane()
    plane.submit(nodes=2, join=False)
    plane.tell(plane.joined("n0", nproc=3), plane.joined("n1", nproc=3))
    plane.recover(step=10)
    plane.tell(f.HoldRequested(resource=device("n0", 0), source="person:eve", by="eve"))
    plane.tell(plane.exited(3, signal=9))
    plane.fence_all()
    assert [place.slot for place in placed(plane).nodes[NodeId("n0")]] == [1, 2]


def test_a_held_node_is_avoided_with_all_its_devices() -> None:
    plane = Plane().start(nodes=2, spares=1)
    plane.tell(f.HoldRequested(resource=node("n1"), source="person:eve", by="eve"))
    plane.tell(plane.exited(3, signal=9))
    plane.fence_all()
    assert seats(plane) == ["n0", "n2"]


def test_a_hold_that_arrives_during_the_fence_is_respected() -> None:
    plane = Plane().start(nodes=2, spares=1)
    plane.tell(plane.exited(3, signal=9))
    plane.answer(Fence, plane.fenced, node="n0")
    plane.tell(f.HoldRequested(resource=node("n0"), source="person:eve", by="eve"))
    plane.answer(Fence, plane.fenced, node="n1")
    assert seats(plane) == ["n2", "n1"]


def test_a_node_on_probation_is_taken_after_the_healthy_ones() -> None:
    plane = Plane().start(nodes=2, spares=2)
    plane.resource("device/n2/0").state = ResourceState.PROBATION
    lose(plane, "n1")
    assert seats(plane) == ["n0", "n3"]


def test_a_node_on_probation_is_better_than_none() -> None:
    plane = Plane().start(nodes=2, spares=1)
    plane.resource("device/n2/0").state = ResourceState.PROBATION
    lose(plane, "n1")
    assert seats(plane) == ["n0", "n2"]


def test_a_replacement_comes_from_the_same_rack_if_it_can() -> None:
    plane = Plane()
    plane.submit(nodes=2, join=False)
    plane.tell(plane.joined("n0", rack="r1"), plane.joined("n1", rack="r1"))
    plane.recover(step=10)
    plane.tell(plane.joined("n2", rack="r2"), plane.joined("n3", rack="r1"))
    lose(plane, "n1")
    assert seats(plane) == ["n0", "n3"]


def test_a_rendezvous_store_serves_one_generation_only() -> None:
    plane = Plane().start()
    used = [plane.job.store]
    for step in range(3):
        plane.tell(plane.exited(1, signal=9, step=step))
        plane.recover()
        used.append(plane.job.store)
    assert all(used)
    assert len(set(used)) == 4


# ---- restart


def test_every_node_is_ordered_once_with_the_whole_picture() -> None:
    plane = Plane().start(nodes=2)
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    orders = [i for _, i in plane.pending(Launch)]
    assert [(i.node, i.group_rank, i.generation, i.world_size) for i in orders] == [("n0", 0, 2, 4), ("n1", 1, 2, 4)]
    assert {i.store for i in orders} == {plane.job.store}
    assert {i.peers for i in orders} == {("n0:9000", "n1:9000")}
    plane.wait(5.0)
    assert len(plane.pending(Launch)) == 2, "asked once, however often the turn comes round"


def test_a_generation_is_verified_only_when_every_node_has_launched() -> None:
    plane = Plane().start(nodes=2)
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    plane.answer(Launch, launched, node="n0")
    assert plane.incident.state is IncidentState.RESTARTING
    plane.answer(Launch, launched, node="n1")
    assert plane.incident.state is IncidentState.VERIFYING


def test_a_cold_start_is_told() -> None:
    plane = Plane().start(nodes=1)
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    plane.answer(Launch, f.Launched(pids={0: 1, 1: 2}, warm=False, why_cold="a thread runs"))
    assert "cold on n0" in plane.reasons()


def test_a_fault_during_the_restart_is_a_new_attempt_of_the_same_incident() -> None:
    plane = Plane().start(nodes=2)
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    plane.tell(plane.exited(0, signal=11))
    assert len(plane.world.incidents) == 2
    assert len(plane.incident.attempts) == 2
    assert {i.generation for _, i in plane.pending(Fence)} == {2}


def test_a_launch_that_keeps_failing_ends_with_its_reason() -> None:
    plane = Plane(Policy(approvals=Approvals(start_from_nothing=True))).start(nodes=1)
    plane.tell(plane.exited(1, signal=9))
    for _ in range(plane.policy.budget.per_cause["host_software"] + 2):
        if plane.pending(Fence):
            plane.fence_all()
        if plane.pending(Launch):
            plane.answer(Launch, f.Failed(reason="cannot fork: out of memory"))
    assert plane.incident.state is IncidentState.ESCALATED
    assert "cannot fork: out of memory" in plane.job.message
