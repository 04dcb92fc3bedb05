"""Stages 2 and 3: symptoms of one job make one incident; the cause, the culprits and the resources are named from evidence."""

import pytest

from keepstep.core import facts as f
from keepstep.core.ids import NodeId
from keepstep.core.incident import Cause, Diagnosis, IncidentState
from keepstep.core.intents import AskWitness, CollectStacks, Fence, Launch, Notify, Quarantine
from keepstep.core.job import JobState
from keepstep.core.policy import Budget, Policy

from .build import JOB, Plane, bug, device, node, stacks, victim, waiting, working


def verdict(plane: Plane) -> Diagnosis:
    found = plane.incident.attempt.diagnosis
    assert found is not None, plane.reasons()
    return found


# ---- correlate


def test_symptoms_of_one_job_make_one_incident() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9), plane.exited(0, error=victim()))
    plane.tell(plane.exited(3, error=victim()))
    assert [i.kind for i in plane.world.incidents.values()] == ["start", "fault"]


def test_a_symptom_of_a_job_that_ends_concerns_nobody() -> None:
    plane = Plane().start()
    plane.fold(plane.stalled())
    plane.fold(f.JobStopRequested(job=JOB, by="eve"))
    plane.job.state = JobState.ENDING
    plane.job.exit_code = 130
    plane.turn()
    assert len(plane.world.incidents) == 1
    assert not plane.world.inbox


def test_evidence_keeps_the_step_and_loss_the_job_had_reached() -> None:
    plane = Plane().start(step=10, loss=2.5)
    plane.tell(plane.steps(41, loss=1.5), plane.exited(1, signal=9, step=41))
    assert (plane.incident.step_before, plane.incident.loss_before) == (41, 1.5)


# ---- a rank ended


def test_a_killed_rank_is_host_software_and_holds_nothing() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    assert (verdict(plane).cause, verdict(plane).culprits, verdict(plane).resources) == (Cause.HOST_SOFTWARE, (1,), ())
    assert plane.incident.state is IncidentState.ISOLATING


def test_an_exception_is_the_application_s() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(2, error=bug()))
    assert verdict(plane).cause is Cause.APPLICATION
    assert not verdict(plane).deterministic
    assert "ValueError: wrong shape" in verdict(plane).summary


def test_victims_point_to_the_rank_that_failed_first_or_not() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(0, error=victim()), plane.exited(3, error=bug()), plane.exited(1, error=victim()))
    assert verdict(plane).culprits == (3,)
    assert any("only lost its peer" in e.text for e in verdict(plane).evidence)


def test_victims_alone_wait_for_the_story_of_their_peer() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(0, error=victim()), plane.exited(1, error=victim()))
    assert plane.incident.state is IncidentState.OPEN
    plane.wait(2.9)
    assert plane.incident.state is IncidentState.OPEN
    plane.tell(plane.exited(3, signal=11))
    assert verdict(plane).culprits == (3,)


def test_victims_without_a_culprit_are_a_network_fault_after_a_moment() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(0, error=victim()), plane.exited(1, error=victim()))
    plane.wait(3.1)
    assert (verdict(plane).cause, verdict(plane).culprits) == (Cause.NETWORK, ())


def test_ranks_that_end_with_the_process_that_started_them_are_no_network_fault() -> None:
    plane = Plane().start()
    orphan = f.ErrorRecord(kind=f.STARTER_LOST, message="the process that started the rank ended", victim=True)
    plane.tell(plane.exited(2, error=orphan), plane.exited(3, error=orphan), plane.exited(0, error=victim()))
    plane.wait(1.0)
    diagnosis = plane.incident.attempt.diagnosis
    assert diagnosis is not None and diagnosis.cause is Cause.HOST_SOFTWARE
    assert diagnosis.summary == "ranks 2, 3 ended with the process that had started them on n1"


def test_an_exception_told_first_and_the_exit_after_it_are_one_end() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(2, error=bug()))
    plane.tell(plane.exited(2, code=1, error=bug()))
    assert len(plane.incident.symptoms) == 1
    assert plane.job.ended[2].exit_code == 1


def test_a_clean_end_of_one_rank_is_no_fault() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(2, code=0))
    assert len(plane.world.incidents) == 1
    assert plane.job.state is JobState.RUNNING


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("CUDA error", Cause.DEVICE),
        ("NCCL", Cause.NETWORK),
        ("out of memory", Cause.APPLICATION),
        ("KeyError", Cause.APPLICATION),
    ],
)
def test_error_classes_come_from_the_catalogue(kind: str, cause: Cause) -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, error=bug(kind=kind)))
    assert verdict(plane).cause is cause


# ---- deterministic bugs and budgets


def test_the_same_error_at_the_same_step_is_a_bug_and_ends_the_job() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(2, code=3, error=bug(), step=10))
    plane.recover(step=10)
    plane.tell(plane.exited(1, code=3, error=bug(), step=10))
    assert plane.incident.state is IncidentState.ESCALATED
    assert (plane.job.state, plane.job.exit_code) == (JobState.ENDING, 3)
    assert "a bug in the program" in plane.job.message
    assert plane.pending(Fence) == []


def test_the_same_error_at_another_step_is_not_yet_a_bug() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(2, error=bug(), step=10))
    plane.recover(step=10)
    plane.tell(plane.exited(2, error=bug(), step=25))
    assert plane.incident.state is IncidentState.ISOLATING


def test_a_cause_that_spends_its_budget_ends_the_job_with_its_evidence() -> None:
    plane = Plane().start()
    limit = plane.policy.budget.per_cause["application"]
    for step in range(100, 100 + limit):
        plane.tell(plane.exited(2, error=bug(), step=step))
        plane.recover()
    plane.tell(plane.exited(2, error=bug(), step=999))
    assert plane.incident.state is IncidentState.ESCALATED
    assert f"{limit} restarts for the same cause" in plane.job.message
    assert any(isinstance(i, Notify) and i.level == "page" for _, i in plane.pending(Notify))


def test_a_budget_refills_after_its_window() -> None:
    plane = Plane(Policy(budget=Budget(window_s=100.0))).start()
    for step in range(10):
        plane.tell(plane.exited(2, error=bug(), step=step))
        assert plane.incident.state is IncidentState.ISOLATING, f"restart {step} was refused"
        plane.recover()
        plane.now_s += 60.0


# ---- devices


def test_a_device_that_fails_again_and_again_is_named_and_held() -> None:
    plane = Plane().start(spares=1)
    for n in range(plane.policy.device.max_failures - 1):
        plane.tell(plane.exited(1, error=bug(kind="DeviceFault"), step=20 + n))
        assert verdict(plane).resources == ()
        plane.recover()
    plane.tell(plane.exited(1, error=bug(kind="DeviceFault"), step=40))
    assert verdict(plane).resources == (device("n0", 1),)
    assert plane.resource("device/n0/1").holds
    assert [i.resource for _, i in plane.pending(Quarantine)] == [device("n0", 1)]
    plane.recover()
    assert plane.job.placement is not None
    assert list(plane.job.placement.nodes) == ["n2", "n1"]


def test_failures_of_one_device_do_not_count_against_another() -> None:
    plane = Plane().start()
    for n, rank in enumerate((0, 1, 2, 3)):
        plane.tell(plane.exited(rank, error=bug(kind="DeviceFault"), step=20 + n))
        assert verdict(plane).resources == ()
        plane.recover()


def test_errors_of_the_program_never_count_against_a_device() -> None:
    plane = Plane().start()
    for step in range(3):
        plane.tell(plane.exited(1, error=bug(f"sig{step}"), step=step))
        plane.recover()
    assert not plane.resource("device/n0/1").failures
    assert plane.resource("device/n0/1").allocatable


def test_old_failures_of_a_device_are_forgotten() -> None:
    plane = Plane().start()
    for step in range(4):
        plane.tell(plane.exited(1, error=bug(kind="DeviceFault"), step=step))
        assert verdict(plane).resources == ()
        plane.recover()
        plane.now_s += plane.policy.device.window_s / 2 + 1.0


# ---- hardware signals


def test_an_urgent_signal_on_a_used_device_opens_an_incident_and_holds_it() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.lost", boot_id="boot-1"))
    assert verdict(plane).resources == (device("n1", 0),)
    assert plane.resource("device/n1/0").holds
    assert plane.incident.state is IncidentState.ISOLATING


def test_a_signal_of_an_idle_node_holds_it_and_disturbs_no_job() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="device.lost", boot_id="boot-1"))
    assert plane.resource("device/n2/0").holds
    assert len(plane.world.incidents) == 1


def test_a_signal_that_can_wait_holds_the_device_and_leaves_the_job_alone() -> None:
    plane = Plane().start()
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.thermal"))
    assert plane.resource("device/n1/0").holds
    assert plane.job.state is JobState.RUNNING


@pytest.mark.parametrize("signal", ["device.engine", "device.memory.contained", "dependency.down", "never.heard.of"])
def test_signals_that_say_nothing_against_the_resource_hold_nothing(signal: str) -> None:
    plane = Plane().start()
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal=signal))
    assert not plane.resource("device/n1/0").holds
    assert len(plane.world.incidents) == 1
    assert not plane.world.signals


def test_a_signal_of_an_older_boot_is_stale() -> None:
    plane = Plane().start()
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.lost", boot_id="boot-0"))
    assert plane.world.stale == 1
    assert plane.resource("device/n1/0").allocatable


# ---- stalls


def test_a_stopped_rank_is_the_culprit_and_its_stack_is_worth_a_moment_only() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled(stopped=(3,), seconds=1.1))
    assert [i.node for _, i in plane.pending(CollectStacks)] == ["n0", "n1"]
    plane.wait(plane.policy.hang.stack_wait_s + 0.01)
    assert (verdict(plane).culprits, verdict(plane).cause) == ((3,), Cause.HOST_SOFTWARE)
    fences = [i for _, i in plane.pending(Fence)]
    assert all(i.grace_s == 0.0 for i in fences), "a rank that hangs gets no grace"


def test_the_rank_that_the_others_wait_for_is_the_culprit_with_its_stack() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled())
    plane.answer(CollectStacks, stacks(waiting(0), waiting(1), working(2, cpu_s=0.0), waiting(3)))
    assert (verdict(plane).culprits, verdict(plane).cause) == ((2,), Cause.APPLICATION)
    assert "train.py:42 forward" in verdict(plane).summary
    assert len([e for e in verdict(plane).evidence if e.source.startswith("stack of rank")]) == 4


def test_a_rank_in_uninterruptible_sleep_is_the_hosts() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled())
    plane.answer(CollectStacks, stacks(waiting(0), waiting(1), waiting(2), working(3, state="D", cpu_s=0.0)))
    assert verdict(plane).cause is Cause.HOST_HARDWARE


def test_everybody_waiting_is_the_network() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled())
    plane.answer(CollectStacks, stacks(*(waiting(r) for r in range(4))))
    assert (verdict(plane).cause, verdict(plane).culprits) == (Cause.NETWORK, ())


def test_nobody_waiting_names_who_is_behind() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled(behind=(2,)))
    plane.answer(CollectStacks, stacks(*(working(r, cpu_s=0.0) for r in range(4))))
    assert (verdict(plane).cause, verdict(plane).culprits) == (Cause.UNKNOWN, (2,))


def test_steps_that_go_on_by_themselves_are_no_fault_and_make_the_job_more_patient() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled())
    plane.tell(plane.steps(11))
    assert plane.incident.state is IncidentState.NO_FAULT
    assert plane.incident.excused
    assert plane.job.state is JobState.RUNNING
    assert plane.pending(Fence) == []


def test_ranks_at_work_outside_a_step_are_no_fault_until_patience_ends() -> None:
    busy = stacks(waiting(0), waiting(1), waiting(2), working(3))
    plane = Plane().start()
    plane.tell(plane.stalled(phase="evaluate", seconds=901.0))
    plane.answer(CollectStacks, busy)
    assert plane.incident.state is IncidentState.NO_FAULT
    plane.tell(plane.stalled(phase="evaluate", seconds=plane.policy.hang.busy_s + 1.0))
    plane.answer(CollectStacks, busy)
    assert verdict(plane).culprits == (3,)


def test_a_rank_that_spins_inside_a_declared_step_is_not_excused() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled(phase="step"))
    plane.answer(CollectStacks, stacks(waiting(0), waiting(1), waiting(2), working(3)))
    assert verdict(plane).culprits == (3,)


def test_a_launcher_that_cannot_look_does_not_block_the_verdict() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled(behind=(1,)))
    plane.answer(CollectStacks, stacks(waiting(0), working(1, cpu_s=0.0)), node="n0")
    assert plane.incident.attempt.diagnosis is None
    plane.wait(plane.policy.orders.timeout_s["CollectStacks"] + 0.01)
    assert verdict(plane).culprits == (1,)


# ---- unknown never kills


def test_silence_alone_asks_a_witness_and_kills_nothing() -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1"))
    assert [i.node for _, i in plane.pending(AskWitness)] == ["n1"]
    plane.wait(plane.policy.silence.unknown_s - 1.0)
    assert plane.incident.state is IncidentState.OPEN
    assert plane.pending(Fence) == []


def test_silence_without_a_witness_ends_with_a_page_and_leaves_the_job_as_it_is() -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1"))
    plane.answer(AskWitness, f.Done())
    plane.wait(plane.policy.silence.unknown_s + 1.0)
    assert plane.incident.state is IncidentState.ESCALATED
    assert (plane.job.state, plane.job.exit_code) == (JobState.RUNNING, None)
    assert plane.pending(Fence) == []


@pytest.mark.parametrize("word", ["alive", "no_answer"])
def test_a_witness_that_sees_no_death_kills_nothing(word: str) -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1"))
    plane.tell(plane.witnessed("n1", word))
    plane.wait(60.0)
    assert plane.incident.state is IncidentState.OPEN


def test_a_node_that_is_heard_again_is_no_fault() -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1"))
    plane.tell(plane.heard("n1"))
    assert plane.incident.state is IncidentState.NO_FAULT
    assert plane.job.state is JobState.RUNNING


@pytest.mark.parametrize(
    ("word", "cause"),
    [("process_gone", Cause.HOST_SOFTWARE), ("host_off", Cause.HOST_HARDWARE), ("rebooted", Cause.HOST_HARDWARE)],
)
def test_silence_and_a_witness_make_a_lost_node(word: str, cause: Cause) -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1"))
    plane.tell(plane.witnessed("n1", word))
    assert (verdict(plane).cause, verdict(plane).lost_nodes) == (cause, ("n1",))


def test_silence_and_peers_that_stand_still_make_a_lost_node_after_a_while() -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1", seconds=3.0))
    plane.wait(plane.policy.silence.presume_s - 4.0)
    plane.tell(plane.stalled())
    assert plane.incident.attempt.diagnosis is None, "peers that stand still, but not silent for long enough"
    plane.wait(1.1)
    assert verdict(plane).lost_nodes == ("n1",)
    assert verdict(plane).confidence < 0.9, "two weak witnesses are not proof"


def test_a_launcher_that_leaves_takes_its_ranks_along_on_purpose() -> None:
    plane = Plane().start(spares=1)
    plane.tell(plane.left("n1"))
    assert (verdict(plane).cause, verdict(plane).lost_nodes) == (Cause.OPERATOR, (NodeId("n1"),))
    assert not plane.resource("node/n1").holds


def test_a_witness_of_an_older_session_is_stale() -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1"))
    plane.tell(plane.witnessed("n1", "process_gone", session=plane.session("n0")))
    assert plane.incident.attempt.diagnosis is None
    assert plane.world.stale == 1


def test_a_lost_host_takes_its_devices_along() -> None:
    plane = Plane().start()
    plane.tell(plane.silent("n1"))
    plane.tell(plane.witnessed("n1", "host_off"))
    assert {plane.state_of(r) for r in ("node/n1", "device/n1/0", "device/n1/1")} == {"lost"}
    assert plane.world.resources[node("n0")].allocatable


def test_a_launch_that_fails_is_diagnosed_with_its_reason() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    plane.answer(Launch, f.Failed(reason="no such file: train.py"), node="n1")
    second = plane.incident.attempts[-1].diagnosis
    assert second is not None
    assert "no such file" in second.summary
    assert plane.incident.state is IncidentState.ISOLATING
