"""Faults that the tests or the simulator found in the engine itself: each as the shortest story that shows it."""

from keepstep.core import facts as f
from keepstep.core.ids import NodeId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import CollectStacks, Fence, Launch, VerifyCheckpoint
from keepstep.core.job import JobState
from keepstep.core.policy import Breaker, Policy

from .build import JOB, Plane, device, disk, launched, rejected, stacks, verified, waiting


def test_a_host_that_rebooted_and_is_back_before_its_ranks_are_proven_dead_lets_the_turn_settle() -> None:
    """Lost by the diagnosis, back by its hello: LOST and VALIDATING took turns for ever within one turn."""
    plane = Plane().start(spares=1)
    plane.tell(plane.silent("n1", lost=True), plane.witnessed("n1", "rebooted"))
    plane.sessions["n1"] = 1
    plane.tell(plane.joined("n1", boot="boot-2"))
    plane.fence_all()
    assert {i.node for _, i in plane.pending(Launch)} == {"n0", "n2"}
    assert plane.state_of("node/n1") == "validating"


def test_a_host_that_a_witness_called_off_and_that_is_heard_lets_the_turn_settle() -> None:
    plane = Plane().start(spares=1)
    plane.tell(plane.silent("n1"), plane.witnessed("n1", "host_off"))
    plane.tell(plane.heard("n1"))
    plane.fence_all()
    assert plane.pending(Launch)


def test_an_approval_to_isolate_is_no_approval_to_start_from_nothing() -> None:
    """Invariant 6: a person's yes answers the question that was asked, not the next one."""
    plane = Plane(Policy(breaker=Breaker(absolute=0, fraction=0.0))).start(spares=1)
    plane.tell(f.CheckpointCommitted(job=JOB, generation=1, step=8, key="disk-8", world_size=4))
    plane.inventories = {"n0": f.Inventory(disk=(disk(8),))}
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.lost"))
    assert plane.incident.state is IncidentState.WAITING
    plane.tell(f.Approved(subject=plane.incident.id, by="eve", granted=True))
    plane.fence_all()
    plane.answer(VerifyCheckpoint, rejected)
    assert plane.pending(Launch) == []
    assert plane.incident.state is IncidentState.WAITING


def test_a_launch_order_of_an_older_generation_that_nobody_answered_does_not_stand_for_the_new_one() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    plane.answer(Launch, launched, node="n0")
    plane.tell(plane.exited(0, signal=11))
    plane.fence_all()
    assert {i.node for _, i in plane.pending(Launch) if i.generation == 3} == {"n0", "n1"}


def test_a_launch_that_was_overdue_in_the_last_attempt_is_not_overdue_in_this_one() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    plane.answer(Launch, launched, node="n0")
    plane.tell(*(f.Overdue(intent=n, waited_s=120.0) for n, _ in plane.pending(Launch)))
    plane.fence_all()
    plane.answer(Launch, launched)
    assert plane.incident.state is IncidentState.VERIFYING


def test_a_node_that_is_silent_for_a_moment_during_the_verification_does_not_end_the_recovery() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    plane.launch_all()
    plane.tell(plane.silent("n1"))
    plane.tell(plane.heard("n1"))
    plane.now_s += 1.0
    plane.tell(plane.steps(5))
    assert plane.incident.state is IncidentState.RECOVERED
    assert plane.job.state is JobState.RUNNING
    assert plane.job.generation == 2


def test_a_node_that_is_silent_for_a_moment_during_the_start_does_not_leave_the_job_without_a_leader() -> None:
    plane = Plane()
    plane.submit()
    plane.answer(Launch, launched, node="n0")
    plane.tell(plane.silent("n1"))
    plane.tell(plane.heard("n1"))
    plane.answer(Launch, launched, node="n1")
    plane.now_s += 1.0
    plane.tell(plane.steps(5))
    assert plane.job.state is JobState.RUNNING


def test_a_launcher_that_replaced_another_one_long_ago_is_not_lost_when_it_is_silent_for_a_moment() -> None:
    plane = Plane().start()
    plane.sessions["n1"] = 1
    plane.tell(plane.joined("n1"))
    plane.recover()
    plane.tell(plane.silent("n1"))
    plane.tell(plane.heard("n1"))
    assert plane.incident.state is IncidentState.NO_FAULT
    assert plane.pending(Fence) == []


def test_a_second_hello_of_a_new_launcher_does_not_hide_that_it_replaced_the_old_one() -> None:
    """Both hellos arrive in one batch: the ranks of the old session are gone all the same."""
    plane = Plane().start()
    plane.sessions["n1"] = 1
    plane.tell(plane.joined("n1", running=0), plane.joined("n1", running=0))
    assert plane.incident.state is IncidentState.ISOLATING
    assert plane.pending(Fence)


def test_a_reader_that_fails_does_not_cost_the_checkpoint_that_another_node_can_read() -> None:
    both = f.Inventory(disk=(disk(4), disk(8)))
    plane = Plane().start()
    plane.inventories = {"n0": both, "n1": both}
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    plane.answer(VerifyCheckpoint, f.Failed(reason="the mount of n0 hangs"))
    assert [(i.node, i.restore.key) for _, i in plane.pending(VerifyCheckpoint)] == [("n1", "disk-8")]
    plane.answer(VerifyCheckpoint, verified)
    assert plane.incident.state is IncidentState.RESTARTING


def test_a_job_waits_for_capacity_as_long_as_it_says() -> None:
    """The deadline of the stage must not cut short what the job declared."""
    plane = Plane().start(capacity_wait_s=8 * 3600.0)
    plane.tell(plane.silent("n1", lost=True), plane.witnessed("n1", "process_gone"))
    plane.fence_all()
    plane.wait(7 * 3600.0)
    assert plane.incident.state is IncidentState.PLACING
    plane.tell(plane.joined("n2"))
    assert plane.pending(Launch)


def test_the_silent_node_is_named_when_all_who_are_heard_wait_for_it() -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1", seconds=3.0))
    plane.tell(plane.stalled(seconds=5.1))
    plane.answer(CollectStacks, stacks(waiting(0), waiting(1)))
    plane.wait(plane.policy.silence.presume_s)
    assert plane.incident.attempt.diagnosis is not None
    assert plane.incident.attempt.diagnosis.lost_nodes == (NodeId("n1"),)


def test_an_answer_that_does_not_fit_its_order_is_a_failure_of_the_order_not_of_the_engine() -> None:
    plane = Plane()
    plane.submit()
    plane.answer(Launch, f.Done())
    plane.tell(plane.exited(0, signal=9))
    assert plane.pending(Fence)
    plane.recover()
    assert plane.job.generation == 2
