"""Failure cases that others met (sections B, C and F of the collection of runtimes' failures), as far as they are decisions.

Each test carries the id of its case. What needs processes (fences that kill, stores, ports) is in tests/integration.
"""

import pytest

from keepstep.core import facts as f
from keepstep.core.detect import detect
from keepstep.core.ids import JobId, NodeId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import CollectStacks, EndJob, Fence, Launch, Notify, PowerOff
from keepstep.core.job import JobState
from keepstep.core.policy import Budget, Policy
from keepstep.core.vitals import common_step

from .build import JOB, Plane, bug, device, launched, replayed, sample, stacks, victim, vitals_of, waiting, working

# ---- B: duplicate launches, event races, budgets


def test_b1_one_fault_on_two_paths_is_one_incident_and_one_relaunch() -> None:
    """A device dies: its driver says so, its rank says so, and its peers say so, 10 ms apart."""
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.lost"))
    plane.now_s += 0.01
    plane.tell(plane.exited(2, error=bug(kind="DeviceFault")))
    plane.tell(plane.exited(0, error=victim()), plane.exited(1, error=victim()))
    plane.recover()
    assert [i.kind for i in plane.world.incidents.values()] == ["start", "fault"]
    assert plane.job.generation == 2


def test_b1_one_fault_on_two_paths_is_charged_once() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.lost"))
    plane.tell(plane.exited(2, error=bug(kind="DeviceFault")))
    plane.recover()
    assert len(plane.job.failures) == 1


def test_b2_a_replayed_event_relaunches_nothing() -> None:
    plane = Plane().start()
    event = plane.exited(1, signal=9)
    plane.tell(event)
    plane.tell(event)
    plane.recover()
    plane.tell(event)
    assert (plane.job.generation, len(plane.world.incidents), plane.job.state) == (2, 2, JobState.RUNNING)
    assert plane.world.stale == 2


def test_b2_an_answer_that_comes_twice_counts_once() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    numbers = [n for n, _ in plane.pending(Launch)]
    plane.launch_all()
    before = plane.job.generation
    for number in numbers:
        plane.tell(f.Answered(intent=number, outcome=f.Failed(reason="said late, by the other road")))
    assert (plane.job.generation, plane.incident.state) == (before, IncidentState.VERIFYING)


def test_b4_late_words_of_a_superseded_generation_are_recorded_only() -> None:
    plane = Plane().start()
    late = [plane.exited(rank, signal=9) for rank in (2, 3)]
    stall = plane.stalled()
    plane.tell(plane.exited(1, signal=9))
    plane.recover()
    plane.tell(*late, stall, plane.steps(1, generation=1))
    assert plane.job.state is JobState.RUNNING
    assert len(plane.world.incidents) == 2
    assert plane.world.stale == 4


def test_b5_a_node_that_never_ends_is_replaced_after_proof_or_waits_for_a_person() -> None:
    plane = Plane().start(spares=1)
    plane.tell(plane.silent("n1"))
    plane.tell(plane.witnessed("n1", "process_gone"))
    plane.answer(Fence, f.Failed(reason="the host does not answer"), node="n1")
    plane.answer(Fence, plane.fenced, node="n0")
    assert plane.pending(Launch) == []
    plane.wait(2.0)
    plane.answer(Fence, lambda i: f.Fenced(generation=1, proof="process_gone"), node="n1")
    assert {i.node for _, i in plane.pending(Launch)} == {"n0", "n2"}


def test_b7_detection_does_not_wait_for_the_slowest_rank() -> None:
    """One rank is dead, three go on as if nothing was: the verdict and the fences are there in the same turn."""
    plane = Plane().start(nodes=2)
    made = plane.tell(plane.exited(1, signal=9))
    assert [d.stage for d in made] == ["correlate", "diagnose", "isolate"]
    assert all(i.grace_s == 0.0 for _, i in plane.pending(Fence))


@pytest.mark.parametrize("times", [1, 24])
def test_b8_failed_status_calls_never_touch_a_healthy_job(times: int) -> None:
    plane = Plane().start()
    made = []
    for _ in range(times):
        made += plane.tell(f.ProbeFailed(source="scheduler", job=JOB, detail="status call timed out"))
        plane.now_s += 600.0
    assert made == []
    assert plane.job.state is JobState.RUNNING


def test_b9_one_witness_that_does_not_answer_is_not_evidence() -> None:
    plane = Plane().start()
    plane.tell(plane.witnessed("n1", "no_answer"))
    assert plane.pending(Fence) == []
    assert plane.job.state is JobState.RUNNING


def test_b10_every_node_counts_not_only_the_first() -> None:
    plane = Plane().start(nodes=3, spares=1)
    plane.tell(plane.silent("n2"))
    plane.tell(plane.witnessed("n2", "process_gone"))
    assert plane.incident.attempt.diagnosis is not None
    assert plane.incident.attempt.diagnosis.lost_nodes == ("n2",)


def test_b11_one_lost_node_replaces_one_node() -> None:
    plane = Plane().start(nodes=8, spares=1)
    before = dict(plane.job.placement.nodes)  # type: ignore[union-attr]
    plane.tell(plane.silent("n5"))
    plane.tell(plane.witnessed("n5", "process_gone"))
    plane.fence_all()
    after = plane.job.placement.nodes  # type: ignore[union-attr]
    assert [n for n in before if n not in after] == ["n5"]
    assert [n for n in after if n not in before] == ["n8"]
    assert all(after[n] == ranks for n, ranks in before.items() if n != "n5")


def test_b13_rejoining_refills_no_budget() -> None:
    """A node that dies and comes back as a new session again and again spends the one budget of its cause."""
    plane = Plane(Policy(budget=Budget(per_cause={**Budget().per_cause, "host_software": 3}))).start(nodes=1)
    for n in range(1, 4):
        plane.sessions["n0"] = n
        plane.tell(plane.joined("n0"))
        plane.recover()
    plane.sessions["n0"] = 4
    plane.tell(plane.joined("n0"))
    assert plane.incident.state is IncidentState.ESCALATED
    assert "3 restarts for the same cause" in plane.job.message


def test_b14_eight_ranks_that_fail_from_one_fault_are_charged_once() -> None:
    plane = Plane().start(nodes=2, nproc=4)
    plane.tell(*(plane.exited(rank, error=bug()) for rank in range(8)))
    assert len(plane.job.failures) == 1
    plane.recover()
    assert len(plane.world.incidents) == 2


def test_b16_rank_0_is_no_special_rank() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(0, signal=9))
    plane.recover()
    assert plane.job.state is JobState.RUNNING


def test_b16_a_new_server_resumes_from_the_journal_at_every_point_of_a_recovery() -> None:
    """The server dies after any entry: its successor knows the same, and wants nothing that was not decided already."""
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.recover()
    whole, generation = plane.journal, plane.job.generation
    for cut in range(len(whole) + 1):
        plane.journal = whole[:cut]
        successor = Plane()
        successor.world, successor.now_s = replayed(plane), plane.now_s
        successor.tell(f.ServerStarted(server="b", version="1"))
        launches = [i for _, i in successor.pending(Launch)]
        assert len({(i.node, i.generation) for i in launches}) == len(launches), f"a second launch after entry {cut}"
        if successor.world.jobs:
            assert successor.job.generation <= generation


def test_b17_thirty_lost_nodes_are_one_plan() -> None:
    plane = Plane().start(nodes=32, nproc=1, spares=30)
    gone = [f"n{i}" for i in range(2, 32)]
    plane.tell(*(plane.silent(n, lost=True) for n in gone))
    plane.tell(*(plane.witnessed(n, "process_gone") for n in gone))
    plane.fence_all()
    orders = [i for _, i in plane.pending(Launch)]
    assert (len(orders), {i.generation for i in orders}) == (32, {2})
    assert not {str(i.node) for i in orders} & set(gone)


def test_b18_survivors_of_a_partial_loss_keep_rank_and_slot() -> None:
    plane = Plane().start(nodes=3, spares=1)
    before = plane.job.placement.nodes[NodeId("n0")]  # type: ignore[union-attr]
    plane.tell(plane.left("n2"))
    plane.fence_all()
    assert plane.job.placement.nodes[NodeId("n0")] == before  # type: ignore[union-attr]


# ---- C: rendezvous


def test_c1_survivors_that_are_in_no_collective_are_restarted_all_the_same() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(3, signal=9))
    assert {i.node for _, i in plane.pending(Fence)} == {"n0", "n1"}


def test_c2_nothing_is_waited_for_without_end() -> None:
    """No node ever answers anything: the incident ends, and says what it waited for."""
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    for _ in range(40):
        plane.tell(*(f.Overdue(intent=n, waited_s=600.0) for n in list(plane.world.orders)))
        plane.wait(1800.0)
    assert plane.incident.state is IncidentState.ESCALATED
    assert plane.job.message
    assert plane.pending(Launch) == []


def test_c3_no_generation_reads_the_store_of_another() -> None:
    plane = Plane().start()
    first = plane.job.store
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    assert {i.store for _, i in plane.pending(Launch)} == {plane.job.store}
    assert plane.job.store != first


def test_c4_leaving_is_not_closing() -> None:
    """A node leaves gracefully, the job goes on without it; it comes back and takes part again."""
    plane = Plane().start(nodes=2, min_nodes=1)
    plane.tell(plane.left("n1"))
    plane.recover()
    assert list(plane.job.placement.nodes) == ["n0"]  # type: ignore[union-attr]
    plane.sessions["n1"] = 1
    plane.tell(plane.joined("n1"))
    assert plane.job.state is JobState.RUNNING
    plane.tell(plane.exited(0, signal=9, step=50))
    plane.fence_all()
    assert list(plane.job.placement.nodes) == ["n0", "n1"]  # type: ignore[union-attr]


def test_c11_a_hang_that_no_collective_reports_is_found_from_outside() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled())
    plane.answer(CollectStacks, stacks(waiting(0), waiting(1), waiting(2), working(3, cpu_s=0.0)))
    assert plane.incident.attempt.diagnosis is not None
    assert plane.incident.attempt.diagnosis.culprits == (3,)


def test_c13_nodes_that_trickle_in_do_not_put_the_start_off_for_ever() -> None:
    """More than the minimum wait, and every few seconds another one comes: the window runs from the first."""
    plane = Plane()
    plane.submit(nodes=64, min_nodes=2, nproc=1, join=False)
    for n in range(10):
        plane.tell(plane.joined(f"n{n}", nproc=1))
        plane.wait(1.0)
    assert plane.job.state is JobState.STARTING
    assert plane.job.placement is not None
    assert len(plane.job.placement.nodes) < 10


def test_c14_a_node_that_dies_while_ranks_are_assigned_costs_another_try_not_the_job() -> None:
    plane = Plane().start(spares=1)
    plane.tell(plane.exited(0, signal=9))
    plane.fence_all()
    plane.tell(plane.silent("n1", lost=True))
    plane.tell(plane.witnessed("n1", "process_gone"))
    for _ in range(3):
        plane.wait(5.0)
        if plane.pending(Fence):
            plane.answer(Fence, plane.fenced)
    assert list(plane.job.placement.nodes) == ["n0", "n2"]  # type: ignore[union-attr]
    plane.answer(Launch, launched)
    assert plane.incident.state is IncidentState.VERIFYING


def test_c16_a_recovery_that_never_progresses_gives_up() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(0, signal=9))
    for _ in range(plane.policy.budget.per_cause["unknown"] + 1):
        plane.fence_all()
        plane.launch_all()
        plane.wait(plane.policy.incident_deadline_s["verifying"])
    assert plane.incident.state is IncidentState.ESCALATED
    assert any(i.level == "page" for _, i in plane.pending(Notify))


def test_c17_a_new_server_kills_nothing() -> None:
    plane = Plane().start()
    plane.tell(f.ServerStarted(server="b", version="1"))
    plane.tell(plane.joined("n0"), plane.joined("n1"))
    plane.wait(3600.0)
    assert plane.job.state is JobState.RUNNING
    assert plane.job.generation == 1
    assert len(plane.world.incidents) == 1


def test_c21_failures_spread_over_minutes_are_one_coordinated_stop() -> None:
    """Ranks time out one after another while others still wait: all are ended at once, then all are started at once."""
    plane = Plane().start(nodes=8, nproc=1)
    plane.tell(plane.exited(3, signal=11))
    for rank in (0, 5, 7):
        plane.now_s += 60.0
        plane.tell(plane.exited(rank, error=victim()))
    assert len(plane.world.incidents) == 2
    plane.fence_all()
    assert [i.node for _, i in plane.pending(Launch)] == [f"n{i}" for i in range(8)]


def test_c22_a_rank_that_comes_back_alone_is_a_new_generation_for_all() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(2, signal=9))
    plane.fence_all()
    orders = [i for _, i in plane.pending(Launch)]
    assert {place.rank for i in orders for place in i.ranks} == {0, 1, 2, 3}
    assert {i.generation for i in orders} == {2}


# ---- F: detection


@pytest.mark.parametrize("phase", ["checkpoint", "other", "evaluate"])
def test_f2_a_hang_between_steps_or_inside_a_save_is_seen(phase: str) -> None:
    plane = Plane().start()
    still = [sample(r, phase="step", idle_s=901.0) for r in (1, 2, 3)]
    vitals = vitals_of(plane, sample(0, phase=phase, idle_s=901.0), *still)
    told = [x for x in detect(vitals, plane.world, plane.policy, plane.now_s) if isinstance(x, f.JobStalled)]
    assert len(told) == 1
    assert common_step(vitals.jobs[JOB], 4) == 10


def test_f3_survivors_are_ended_with_the_verdict_not_with_the_collective_s_time_out() -> None:
    plane = Plane().start()
    before = plane.now_s
    plane.tell(plane.exited(3, signal=9))
    assert len(plane.pending(Fence)) == 2
    assert plane.now_s == before


def test_f4_a_probe_that_hangs_is_no_verdict_on_the_device() -> None:
    plane = Plane().start()
    plane.tell(f.ProbeFailed(source="nvml on n1", job=JOB, detail="no answer in 5 s"))
    assert plane.resource("device/n1/0").allocatable
    assert plane.pending(PowerOff) == []


def test_f6_hundreds_of_failures_leave_bounded_memory() -> None:
    plane = Plane(Policy(budget=Budget(per_cause=dict.fromkeys(Budget().per_cause, 10_000)))).start()
    for step in range(300):
        plane.tell(plane.exited(1, error=bug(f"sig{step}"), step=step))
        plane.recover()
    assert len(plane.job.failures) <= 64
    assert all(not i.evidence for i in plane.world.incidents.values())


# ---- the end of everything


def test_a11_a_job_that_failed_holds_no_node() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, code=3, error=bug(), step=10))
    plane.recover()
    plane.tell(plane.exited(1, code=3, error=bug(), step=10))
    assert {i.node for _, i in plane.pending(EndJob)} == {"n0", "n1"}
    plane.answer(EndJob, f.Done())
    assert (plane.job.state, plane.job.exit_code) == (JobState.FAILED, 3)


def test_a7_a_hung_rank_gets_no_grace() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled(stopped=(2,)))
    plane.wait(1.0)
    assert {i.grace_s for _, i in plane.pending(Fence)} == {0.0}


def test_two_jobs_share_nothing_but_the_server() -> None:
    plane = Plane().start()
    other = JobId("other")
    plane.tell(f.JobSubmitted(job=other, spec=plane.job.spec))
    plane.tell(plane.exited(1, signal=9))
    assert plane.world.jobs[other].state is JobState.SUBMITTED
    assert plane.world.jobs[other].incident is None
