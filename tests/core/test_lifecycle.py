"""How a job begins and ends, and what becomes of a resource outside of one."""

import pytest

from keepstep.core import facts as f
from keepstep.core.ids import JobId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import EndJob, Fence, Launch, OpenRepair, Quarantine, Release, ResetDevice, RunGate
from keepstep.core.job import JobState
from keepstep.core.policy import DeviceRule, Policy
from keepstep.core.resource import ResourceState

from .build import JOB, Plane, device, disk, launched, node


def ended(plane: Plane) -> None:
    plane.answer(EndJob, f.Done())


# ---- the beginning


def test_a_job_starts_when_all_its_nodes_have_joined() -> None:
    plane = Plane()
    plane.submit(nodes=2, join=False)
    plane.tell(plane.joined("n0"))
    plane.wait(60.0)
    assert plane.job.state is JobState.SUBMITTED
    plane.tell(plane.joined("n1"))
    assert plane.job.state is JobState.STARTING
    assert plane.incident.kind == "start"
    assert len(plane.pending(Launch)) == 2


def test_a_start_resumes_from_the_newest_valid_state_like_a_recovery() -> None:
    plane = Plane()
    plane.inventories = {"n0": f.Inventory(disk=(disk(500),))}
    plane.start(step=502)
    assert plane.job.restored is not None
    assert plane.job.restored.step == 500


def test_an_elastic_job_waits_a_moment_for_the_rest_and_then_starts_smaller() -> None:
    plane = Plane()
    plane.submit(nodes=3, min_nodes=1, join=False)
    plane.tell(plane.joined("n0"))
    assert plane.job.state is JobState.SUBMITTED
    plane.wait(plane.policy.capacity.start_settle_s)
    assert plane.job.state is JobState.STARTING


def test_nodes_that_never_come_end_the_job_with_a_clear_message() -> None:
    plane = Plane()
    plane.submit(nodes=2, join=False)
    plane.tell(plane.joined("n0"))
    plane.wait(plane.policy.capacity.start_wait_s)
    assert plane.job.exit_code == 75
    assert "1 of 2 nodes joined within 600 s" in plane.job.message


def test_the_same_submission_twice_is_one_job() -> None:
    plane = Plane().start()
    generation = plane.job.generation
    plane.tell(f.JobSubmitted(job=JOB, spec=plane.job.spec))
    assert len(plane.world.jobs) == 1
    assert plane.job.generation == generation


def test_a_node_of_a_job_that_nobody_knows_is_stale() -> None:
    plane = Plane().start()
    stranger = plane.joined("n7")
    plane.tell(f.NodeJoined(job=JobId("other"), node=stranger.node, session=stranger.session, boot_id="b", devices=(),
                            address="n7"))  # fmt: skip
    assert plane.world.stale == 1


# ---- the end


def test_all_ranks_ending_well_finish_the_job() -> None:
    plane = Plane().start()
    plane.tell(*(plane.exited(rank, code=0) for rank in range(4)))
    assert plane.job.state is JobState.ENDING
    ended(plane)
    assert (plane.job.state, plane.job.exit_code) == (JobState.FINISHED, 0)
    assert plane.world.live_jobs == {}


def test_a_rank_that_ends_early_waits_for_the_others() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(0, code=0))
    plane.wait(600.0)
    assert plane.job.state is JobState.RUNNING


def test_ctrl_c_ends_the_job_with_130() -> None:
    plane = Plane().start()
    plane.tell(f.JobStopRequested(job=JOB, by="eve", reason="Ctrl-C"))
    assert len(plane.pending(EndJob)) == 2
    ended(plane)
    assert (plane.job.state, plane.job.exit_code, plane.job.message) == (JobState.STOPPED, 130, "Ctrl-C")


@pytest.mark.parametrize("stage", ["isolating", "restarting", "verifying", "placing"])
def test_ctrl_c_ends_a_job_in_the_middle_of_a_recovery(stage: str) -> None:
    plane = Plane().start()
    if stage == "placing":
        plane.tell(plane.silent("n1", lost=True), plane.witnessed("n1", "process_gone"))
    else:
        plane.tell(plane.exited(1, signal=9))
    if stage != "isolating":
        plane.fence_all()
    if stage == "verifying":
        plane.launch_all()
    assert plane.incident.state.value == stage
    plane.tell(f.JobStopRequested(job=JOB, by="eve"))
    assert not plane.incident.open
    ended(plane)
    assert plane.job.state is JobState.STOPPED
    plane.wait(3600.0)
    assert plane.world.open_incidents == {}


def test_ranks_that_die_while_the_job_ends_are_no_incident() -> None:
    plane = Plane().start()
    plane.tell(f.JobStopRequested(job=JOB, by="eve"))
    plane.tell(plane.exited(1, signal=15))
    assert len(plane.world.incidents) == 1


def test_the_end_does_not_wait_for_a_launcher_that_nobody_hears() -> None:
    plane = Plane().start()
    plane.tell(f.JobStopRequested(job=JOB, by="eve"))
    plane.answer(EndJob, f.Done(), node="n0")
    assert plane.job.state is JobState.ENDING
    plane.tell(plane.silent("n1"))
    assert plane.job.state is JobState.STOPPED


def test_an_end_that_is_not_answered_in_time_is_the_end() -> None:
    plane = Plane().start()
    plane.tell(f.JobStopRequested(job=JOB, by="eve"))
    plane.tell(*(f.Overdue(intent=n, waited_s=30.0) for n, _ in plane.pending(EndJob)))
    assert plane.job.state is JobState.STOPPED


def test_nothing_said_to_a_job_that_is_over_changes_it() -> None:
    plane = Plane().start()
    plane.tell(*(plane.exited(rank, code=0) for rank in range(4)))
    ended(plane)
    plane.tell(plane.exited(1, signal=9), plane.stalled(), plane.silent("n0"))
    plane.tell(f.JobStopRequested(job=JOB, by="eve"))
    assert plane.job.state is JobState.FINISHED
    assert len(plane.world.incidents) == 1


# ---- resources


def held(policy: Policy | None = None) -> Plane:
    """A running job whose spare n2 has just lost device 0."""
    plane = Plane(policy).start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="device.lost"))
    plane.answer(Quarantine, f.Done())
    return plane


def gate(plane: Plane, passed: bool | None, *, serial: str = "n2-gpu0", boot: str = "boot-1") -> None:
    plane.tell(
        f.GateFinished(resource=device("n2", 0), serial=serial, boot_id=boot, firmware="", passed=passed),
        *(f.Answered(intent=n, outcome=f.Done()) for n, _ in plane.pending(RunGate)),
    )


def test_a_held_device_is_reset_then_validated_then_on_probation_then_in_service() -> None:
    plane = held()
    assert plane.state_of("device/n2/0") == "remediating"
    plane.answer(ResetDevice, f.Done())
    assert plane.state_of("device/n2/0") == "validating"
    gate(plane, True)
    assert plane.state_of("device/n2/0") == "probation"
    assert plane.resource("device/n2/0").holds == {}
    assert [i.resource for _, i in plane.pending(Release)] == [device("n2", 0)]
    plane.wait(plane.policy.device.probation_s)
    assert plane.state_of("device/n2/0") == "in_service"


def test_a_device_in_use_is_drained_before_it_is_touched() -> None:
    plane = Plane().start()
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.thermal"))
    assert plane.state_of("device/n1/0") == "draining"
    assert plane.pending(ResetDevice) == []


def test_a_failed_gate_opens_a_repair_order() -> None:
    plane = held()
    plane.answer(ResetDevice, f.Done())
    gate(plane, False)
    assert plane.state_of("device/n2/0") == "repair"
    assert [i.serial for _, i in plane.pending(OpenRepair)] == ["n2-gpu0"]
    assert plane.resource("device/n2/0").holds


def test_d23_a_gate_whose_tool_fails_is_never_a_pass() -> None:
    plane = held()
    plane.answer(ResetDevice, f.Done())
    for _ in range(plane.policy.device.max_gate_tries):
        assert plane.state_of("device/n2/0") == "validating"
        gate(plane, None)
    assert plane.state_of("device/n2/0") == "repair"


def test_a_gate_that_gives_no_verdict_is_run_again_and_then_given_up() -> None:
    plane = held()
    plane.answer(ResetDevice, f.Done())
    for _ in range(plane.policy.device.max_gate_tries):
        plane.answer(RunGate, f.Failed(reason="the tool hangs"))
    assert plane.state_of("device/n2/0") == "repair"


@pytest.mark.parametrize(("serial", "boot"), [("another-part", "boot-1"), ("n2-gpu0", "boot-0")])
def test_a_pass_of_another_part_or_boot_lets_nothing_back(serial: str, boot: str) -> None:
    plane = held()
    plane.answer(ResetDevice, f.Done())
    plane.tell(f.GateFinished(resource=device("n2", 0), serial=serial, boot_id=boot, firmware="", passed=True))
    assert plane.state_of("device/n2/0") == "validating"
    assert plane.world.stale == 1


def test_a_pass_that_nobody_asked_for_lets_nothing_back() -> None:
    plane = held()
    gate(plane, True)
    assert plane.state_of("device/n2/0") == "remediating"
    assert plane.resource("device/n2/0").holds


def test_a_reset_that_never_ends_is_a_repair() -> None:
    plane = held()
    plane.wait(plane.policy.resource_deadline_s["remediating"])
    assert plane.state_of("device/n2/0") == "repair"


def test_a_person_s_hold_outlives_the_gate() -> None:
    plane = held()
    plane.tell(f.HoldRequested(resource=device("n2", 0), source="person:eve", by="eve"))
    plane.answer(ResetDevice, f.Done())
    gate(plane, True)
    assert list(plane.resource("device/n2/0").holds) == ["person:eve"]
    plane.answer(Release, f.Done())
    assert not plane.resource("device/n2/0").allocatable
    plane.tell(f.HoldLifted(resource=device("n2", 0), source="person:eve", by="eve"))
    assert plane.resource("device/n2/0").allocatable


def test_a_hold_is_lifted_by_its_own_source_only() -> None:
    plane = held()
    plane.tell(f.HoldLifted(resource=device("n2", 0), source="person:eve", by="eve"))
    assert len(plane.resource("device/n2/0").holds) == 1


def test_policy_may_keep_a_device_out_until_a_person_lets_it_back() -> None:
    plane = held(Policy(device=DeviceRule(return_automatically=False)))
    plane.answer(ResetDevice, f.Done())
    gate(plane, True)
    assert plane.state_of("device/n2/0") == "validating"
    assert plane.resource("device/n2/0").holds


def test_a_relapse_on_probation_is_held_again() -> None:
    plane = held()
    plane.answer(ResetDevice, f.Done())
    gate(plane, True)
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="device.lost"))
    assert plane.resource("device/n2/0").holds
    assert plane.state_of("device/n2/0") in ("fenced", "validating", "remediating")


def test_a_lost_node_that_comes_back_passes_the_gate_first() -> None:
    plane = Plane().start(spares=1)
    plane.tell(plane.silent("n1"))
    plane.tell(plane.witnessed("n1", "host_off"))
    plane.fence_all()
    assert plane.state_of("node/n1") == "lost"
    plane.sessions["n1"] = 1
    plane.tell(plane.joined("n1", boot="boot-2"))
    assert plane.state_of("node/n1") == "validating"
    assert {i.resource for _, i in plane.pending(RunGate)} == {node("n1"), device("n1", 0), device("n1", 1)}
    assert "n1" not in plane.job.placement.nodes  # type: ignore[union-attr]
    for name, serial in ((node("n1"), "n1"), (device("n1", 0), "n1-gpu0"), (device("n1", 1), "n1-gpu1")):
        plane.tell(f.GateFinished(resource=name, serial=serial, boot_id="boot-2", firmware="", passed=True))
    assert plane.state_of("device/n1/1") == "probation"


def test_another_part_in_the_slot_voids_the_pass_of_the_old_one() -> None:
    plane = held(Policy(device=DeviceRule(return_automatically=False)))
    plane.answer(ResetDevice, f.Done())
    gate(plane, True)
    assert plane.resource("device/n2/0").gate_passed_entry is not None
    plane.tell(plane.joined("n2", spare=True, serial="new-part"))
    assert plane.resource("device/n2/0").gate_passed_entry is None


def test_suspicion_decays() -> None:
    plane = Plane().start()
    plane.resource("device/n0/0").state = ResourceState.SUSPECT
    plane.world.busy_resources[device("n0", 0)] = None
    plane.wait(plane.policy.device.suspect_s)
    assert plane.state_of("device/n0/0") == "in_service"


def test_everything_that_a_job_needs_is_there_after_its_own_bad_device_was_held() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.lost"))
    assert plane.state_of("device/n1/0") == "draining"
    plane.answer(Fence, plane.fenced)
    assert plane.state_of("device/n1/0") == "remediating"
    plane.answer(Launch, launched)
    assert plane.incident.state is IncidentState.VERIFYING
