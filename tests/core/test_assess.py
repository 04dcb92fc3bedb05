"""Signals become faults: one per root cause, joined and not opened again, and jobs act on them at the right moment."""

import msgspec
import pytest
from tests.core.build import JOB, Plane, device, replayed
from tests.core.build import node as whole

from keepstep.core import facts as f
from keepstep.core import silence
from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.override import override
from keepstep.core.catalog.row import Verdict
from keepstep.core.company import OUTAGE_S
from keepstep.core.decision import Assess
from keepstep.core.detect import detect
from keepstep.core.fault import OWNER, TRANSITIONS, Fault, FaultState
from keepstep.core.ids import NodeId, Session
from keepstep.core.incident import Cause, IncidentState
from keepstep.core.intents import Launch, Quarantine
from keepstep.core.job import JobState
from keepstep.core.policy import Policy
from keepstep.core.resource import ResourceState
from keepstep.core.vitals import Vitals

AGENT = Session("agent-1")


def lost(node: str = "n1", slot: int = 0, **more: object) -> f.SignalSeen:
    return f.SignalSeen(resource=device(node, slot), signal="device.lost", **more)  # type: ignore[arg-type]


def faults(plane: Plane) -> list[Fault]:
    return list(plane.world.faults.values())


def joined(plane: Plane, node: str, **domains: str) -> None:
    plane.tell(
        f.AgentJoined(
            node=NodeId(node),
            session=Session(f"agent-{node}"),
            boot_id="boot-1",
            parts=(f.NodePart(names=("gpu/0000:9b:00", "gpu/0", "gpu/GPU-1"), slot=0),),
            domains=domains,
        )
    )


def test_every_state_of_a_fault_has_an_owner_and_a_way_out() -> None:
    assert set(OWNER) == set(TRANSITIONS) == set(FaultState)
    assert all(TRANSITIONS[state] for state in FaultState if state is not FaultState.CLOSED)


def test_repeated_evidence_joins_the_open_fault() -> None:
    plane = Plane().start(spares=1)
    for _ in range(5):
        plane.tell(lost())
    (fault,) = faults(plane)
    assert fault.count == 5
    assert len(plane.world.incidents) == 2  # the start, and one fault
    assert fault.incidents == [plane.incident.id]


def test_a_signal_of_a_part_by_any_of_its_names_is_one_fault() -> None:
    plane = Plane().start(spares=1)
    joined(plane, "n1")
    for name in ("gpu/GPU-1", "gpu/0000:9b:00", "gpu/0"):
        plane.tell(lost(part=name))
    assert len(faults(plane)) == 1


def test_the_diagnosis_points_to_its_fault() -> None:
    plane = Plane().start(spares=1)
    plane.tell(lost())
    diagnosis = plane.incident.attempt.diagnosis
    assert diagnosis is not None and diagnosis.fault == faults(plane)[0].id


def test_members_of_a_rack_that_fail_alike_are_one_fault_of_the_rack() -> None:
    plane = Plane().start(spares=3)
    for node in ("n1", "n2", "n3", "n4"):
        joined(plane, node, rack="r1")
    for node in ("n2", "n3", "n4"):
        plane.tell(f.SignalSeen(resource=device(node, 0), signal="device.lost"))
    wide = [fault for fault in faults(plane) if fault.node is None]
    assert [fault.part for fault in wide] == ["rack/r1"]
    assert {fault.state for fault in faults(plane) if fault.node is not None} == {FaultState.GROUPED}
    plane.tell(lost("n1"))
    assert len(faults(plane)) == 4  # the fourth member joins; nothing new is opened
    assert wide[0].count == 4


def test_a_fault_of_a_domain_isolates_no_further_member() -> None:
    plane = Plane().start(spares=3)
    for node in ("n1", "n2", "n3", "n4"):
        joined(plane, node, rack="r1")
    for node in ("n2", "n3", "n4", "n1"):
        plane.tell(lost(node))
    assert not plane.resource("device/n1/0").holds


def test_a_fault_closes_when_its_resource_is_back() -> None:
    plane = Plane().start(spares=1)
    plane.tell(lost("n2"))
    (fault,) = faults(plane)
    resource = plane.resource("device/n2/0")
    resource.state, resource.holds = ResourceState.IN_SERVICE, {}  # as the gate leaves it
    plane.wait(1.0)
    assert fault.state is FaultState.OPEN  # more of its domain may follow
    plane.wait(plane.policy.correlation.together_s)
    assert fault.state is FaultState.CLOSED
    plane.tell(lost("n2"))
    assert len(faults(plane)) == 2


def test_members_that_are_back_already_still_count_for_their_domain() -> None:
    plane = Plane().start(spares=3)
    for node in ("n1", "n2", "n3", "n4"):
        joined(plane, node, driver="580")
    for node in ("n2", "n3", "n4"):
        plane.tell(f.SignalSeen(resource=device(node, 0), signal="xid.119", part="gpu/0"))
        resource = plane.resource(f"device/{node}/0")
        resource.state, resource.holds = ResourceState.IN_SERVICE, {}  # a gate that is quick
        plane.wait(30.0)
    assert [fault.resource for fault in faults(plane) if fault.group is None] == ["driver/580"]


def test_a_fault_without_a_hold_closes_after_a_quiet_time() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="dependency.down", part="dependency/store"))
    (fault,) = faults(plane)
    plane.wait(plane.policy.correlation.quiet_s - 1.0)
    assert fault.state is FaultState.OPEN
    plane.wait(2.0)
    assert fault.state is FaultState.CLOSED


def test_one_dependency_seen_by_many_nodes_is_one_fault_and_no_node_is_blamed() -> None:
    plane = Plane().start(spares=3)
    for node in ("n1", "n2", "n3"):
        plane.tell(f.SignalSeen(resource=device(node, 0), signal="dependency.down", part="dependency/store"))
    (fault,) = faults(plane)
    assert fault.node is None and fault.nature.job_action == "wait"
    assert all(not resource.holds for resource in plane.world.resources.values())
    assert plane.job.state is JobState.RUNNING


def test_a_job_leaves_a_throttled_card_at_its_next_checkpoint() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.thermal"))
    assert plane.job.state is JobState.RUNNING
    plane.now_s += 5.0
    plane.tell(f.CheckpointCommitted(job=JOB, generation=plane.job.generation, step=7, key="k7", world_size=1))
    assert plane.incident.kind == "fault"
    assert plane.incident.state is IncidentState.ISOLATING


def test_a_job_with_nowhere_to_go_stays_on_a_throttled_card() -> None:
    plane = Plane().start(spares=0)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.thermal"))
    plane.now_s += 5.0
    plane.tell(f.CheckpointCommitted(job=JOB, generation=plane.job.generation, step=7, key="k7", world_size=1))
    plane.wait(60.0)
    assert plane.job.state is JobState.RUNNING


@pytest.mark.parametrize("mode", ["observe", "shadow"])
def test_a_rule_that_is_not_trusted_yet_holds_nothing(mode: str) -> None:
    rows = override(CATALOG, {"signal": {"device.lost": {"mode": mode}}}, "site.toml")
    plane = Plane(msgspec.structs.replace(Policy(), catalog=rows)).start(spares=1)
    plane.tell(lost())
    assert not plane.resource("device/n1/0").holds and not faults(plane)
    assessed = [c for x in plane.decisions for c in x.changes if isinstance(c, Assess)]
    assert [bool(change.shadow) for change in assessed] == [mode == "shadow"]


def test_what_our_own_kill_prints_is_no_fault() -> None:
    plane = Plane().start(spares=1)
    plane.tell(plane.exited(0, signal=9))  # the recovery fences the node
    before = len(faults(plane))
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="xid.45"))
    assert len(faults(plane)) == before


def test_faults_are_the_same_after_a_replay() -> None:
    plane = Plane().start(spares=3)
    for node in ("n1", "n2", "n3", "n4"):
        joined(plane, node, rack="r1", power="p1")
    for node in ("n2", "n3", "n4", "n1"):
        plane.tell(lost(node))
    plane.tell(f.BmcSeen(node=NodeId("n2"), power="off", reachable=True))
    assert repr(replayed(plane)) == repr(plane.world)


# ---- jobs and what they need from outside


def test_a_rank_that_fails_while_a_dependency_is_down_blames_nobody_and_waits() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="dependency.down", part="dependency/store"))
    plane.tell(plane.exited(0, error=f.ErrorRecord(kind="ConnectionError", message="store: refused"), code=1))
    diagnosis = plane.incident.attempt.diagnosis
    assert diagnosis is not None
    assert (diagnosis.cause, diagnosis.resources) == (Cause.DEPENDENCY, ())
    assert diagnosis.fault == faults(plane)[0].id
    plane.fence_all()
    plane.wait(1.0)
    assert not plane.pending(Launch)
    plane.wait(OUTAGE_S + 1.0)  # nothing more is heard of the outage
    assert plane.pending(Launch)


def test_an_error_of_the_program_is_its_own_even_while_a_dependency_is_down() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="dependency.down", part="dependency/store"))
    plane.tell(plane.exited(0, error=f.ErrorRecord(kind="ZeroDivisionError", message="by zero"), code=1))
    diagnosis = plane.incident.attempt.diagnosis
    assert diagnosis is not None and diagnosis.cause is Cause.APPLICATION


def test_what_the_card_signalled_stands_in_the_evidence_of_its_rank() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.memory.contained"))
    plane.tell(plane.exited(2, error=f.ErrorRecord(kind="CUDA error", message="uncorrectable"), code=1))
    diagnosis = plane.incident.attempt.diagnosis
    assert diagnosis is not None
    assert any("device.memory.contained" in evidence.text for evidence in diagnosis.evidence)


def test_an_outage_is_over_when_the_last_node_that_saw_it_says_so() -> None:
    plane = Plane().start(spares=1)
    for node in ("n1", "n2"):
        plane.tell(f.SignalSeen(resource=device(node, 0), signal="dependency.down", part="dependency/store"))
    (fault,) = faults(plane)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="dependency.ok", part="dependency/store"))
    assert (fault.state, fault.nodes) == (FaultState.OPEN, ["n2"])
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="dependency.ok", part="dependency/other"))
    assert fault.state is FaultState.OPEN
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="dependency.ok", part="dependency/store"))
    assert (fault.state, fault.outcome) == (FaultState.CLOSED, "well again: dependency.ok")


def test_good_news_lifts_no_hold() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="port.down", part="nic/mlx5_0"))
    held = [resource.id for resource in plane.world.resources.values() if resource.holds]
    assert held
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="port.up", part="nic/mlx5_0"))
    assert [resource.id for resource in plane.world.resources.values() if resource.holds] == held


# ---- agents and BMCs


def test_a_silent_agent_alone_changes_nothing_for_the_job() -> None:
    plane = Plane().start(spares=1)
    joined(plane, "n1")
    plane.tell(f.AgentSilent(node=NodeId("n1"), session=Session("agent-n1"), silent_s=5.0))
    plane.wait(60.0)
    assert plane.job.state is JobState.RUNNING
    assert silence.of_node(NodeId("n1"), plane.world).name == "only_agent_gone"


def test_a_word_of_an_older_agent_is_stale() -> None:
    plane = Plane().start(spares=1)
    joined(plane, "n1")
    plane.tell(f.AgentJoined(node=NodeId("n1"), session=Session("second"), boot_id="boot-1"))
    stale = plane.world.stale
    plane.tell(f.AgentSilent(node=NodeId("n1"), session=Session("agent-n1"), silent_s=5.0))
    assert plane.world.stale == stale + 1
    assert plane.world.agents[NodeId("n1")].silent_since_s is None


def test_a_silent_node_without_power_is_lost_by_the_word_of_its_bmc() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.NodeUnreachable(job=JOB, node=NodeId("n1"), session=plane.session("n1"), silent_s=3.0))
    plane.now_s += 1.0
    plane.tell(f.BmcSeen(node=NodeId("n1"), power="off", reachable=True))
    said = detect(Vitals(), plane.world, plane.policy, plane.now_s)
    assert [(x.node, x.verdict) for x in said if isinstance(x, f.Witnessed)] == [("n1", "host_off")]
    plane.tell(*said)
    assert plane.incident.attempt.diagnosis is not None
    assert plane.incident.attempt.diagnosis.lost_nodes == ("n1",)
    assert not [x for x in detect(Vitals(), plane.world, plane.policy, plane.now_s) if isinstance(x, f.Witnessed)]


def test_an_old_word_of_a_bmc_proves_nothing_of_a_new_silence() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.BmcSeen(node=NodeId("n1"), power="off", reachable=True))
    plane.now_s += 10.0
    plane.tell(f.NodeUnreachable(job=JOB, node=NodeId("n1"), session=plane.session("n1"), silent_s=3.0))
    assert not [x for x in detect(Vitals(), plane.world, plane.policy, plane.now_s) if isinstance(x, f.Witnessed)]


def test_the_agent_holds_as_well_and_lets_in_again() -> None:
    plane = Plane().start(spares=1)
    joined(plane, "n2")
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="device.lost"))
    told = [intent.session for _, intent in plane.pending(Quarantine)]
    assert told == [plane.session("n2"), Session("agent-n2")]


# ---- what the simulated month found


PORT = "nic/mlx5_0"


def port(signal: str, node: str = "n1", **more: object) -> f.SignalSeen:
    return f.SignalSeen(resource=device(node, 0), signal=signal, part=PORT, **more)  # type: ignore[arg-type]


def test_a_link_that_comes_back_by_itself_is_no_fault() -> None:
    plane = Plane().start(spares=1)
    plane.tell(port("nic.link_down"))
    assert not faults(plane) and plane.job.state is JobState.RUNNING
    plane.wait(2.0)
    plane.tell(port("nic.link_up"))
    plane.wait(plane.policy.correlation.settle_s + 1.0)
    assert not faults(plane) and plane.job.state is JobState.RUNNING


def test_a_link_that_stays_down_is_a_fault_after_it_had_time() -> None:
    plane = Plane().start(spares=1)
    plane.tell(port("nic.link_down"))
    plane.wait(plane.policy.correlation.settle_s - 1.0)
    assert not faults(plane)
    plane.wait(2.0)
    (fault,) = faults(plane)
    assert (fault.part, fault.nature.failure_class) == (PORT, "nic.link")
    assert repr(replayed(plane)) == repr(plane.world)


def test_a_suspicion_takes_nothing_from_a_job_that_steps() -> None:
    plane = Plane().start(spares=1)
    plane.tell(port("nic.link_down"))
    plane.wait(plane.policy.correlation.settle_s + 1.0)
    assert faults(plane)[0].nature.verdict is Verdict.SUSPECT
    assert plane.job.state is JobState.RUNNING and not plane.job.incident


def test_a_suspicion_is_told_to_a_job_that_gets_into_trouble() -> None:
    plane = Plane().start(spares=1)
    plane.tell(port("nic.link_down"))
    plane.wait(plane.policy.correlation.settle_s + 1.0)
    plane.wait(30.0)
    plane.tell(plane.stalled())
    assert faults(plane)[0].incidents == [plane.incident.id] or JOB in faults(plane)[0].told


def test_the_third_loss_of_a_link_is_known_at_once() -> None:
    plane = Plane().start(spares=1)
    for _ in range(2):
        plane.tell(port("nic.link_down"))
        plane.wait(3.0)
        plane.tell(port("nic.link_up"))
        plane.wait(25.0)
    assert not faults(plane)
    plane.tell(port("nic.link_down"))
    (fault,) = faults(plane)
    assert fault.held == ["node/n1"]


def test_what_was_seen_before_the_gate_passed_is_answered_by_it() -> None:
    plane = Plane().start(spares=1)
    plane.tell(lost("n2"))
    resource = plane.resource("device/n2/0")
    plane.wait(100.0)
    resource.state, resource.holds = ResourceState.PROBATION, {}  # as a passed gate leaves it
    resource.gate_passed_s, resource.gate_passed_entry = plane.now_s, plane.world.seq
    plane.wait(600.0)
    assert faults(plane)[0].state is FaultState.CLOSED
    plane.tell(lost("n2", age_s=650.0))
    assert len(faults(plane)) == 1 and not resource.holds
    plane.tell(lost("n2", age_s=300.0))
    assert len(faults(plane)) == 2 and resource.holds


def test_late_news_of_a_node_joins_the_fault_of_its_card() -> None:
    plane = Plane().start(spares=1)
    joined(plane, "n2")
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="xid.79", part="gpu/0000:9b:00"))
    plane.wait(1200.0)
    plane.tell(f.SignalSeen(resource=whole("n2"), signal="probe.hung.nvml"))
    (fault,) = faults(plane)
    assert fault.signals == ["xid.79", "probe.hung.nvml"]


def test_a_hot_rack_and_its_throttled_cards_are_one_fault() -> None:
    plane = Plane().start(spares=3)
    for node in ("n1", "n2", "n3", "n4"):
        joined(plane, node, rack="r1")
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="bmc.temperature.inlet", part="inlet"))
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="gpu.throttle.hw_thermal", part="gpu/0"))
    plane.tell(f.SignalSeen(resource=device("n3", 0), signal="gpu.throttle.hw_thermal", part="gpu/0"))
    plane.tell(f.SignalSeen(resource=device("n4", 0), signal="bmc.temperature.inlet", part="inlet"))
    assert [fault.resource for fault in faults(plane) if fault.group is None] == ["rack/r1"]


def test_a_switch_is_found_above_the_racks_that_were_found_first() -> None:
    plane = Plane().start(spares=7)
    nodes = [f"n{n}" for n in range(1, 9)]
    for node in nodes:
        joined(plane, node, rack="a" if node < "n5" else "b", switch="s", driver="580")
    for node in nodes:
        plane.tell(port("nic.link_down", node))
    plane.wait(plane.policy.correlation.settle_s + 1.0)
    leading = [fault for fault in faults(plane) if fault.group is None]
    assert [(fault.resource, len(fault.nodes)) for fault in leading] == [("switch/s", 8)]
    assert all(not resource.holds for resource in plane.world.resources.values())


def test_a_power_feed_is_not_blamed_for_its_one_rack_that_fails() -> None:
    plane = Plane().start(spares=7)
    nodes = [f"n{n}" for n in range(1, 9)]
    for node in nodes:
        joined(plane, node, rack="a" if node < "n5" else "b", power="p")
    for node in nodes[:4]:
        plane.tell(f.SignalSeen(resource=whole(node), signal="bmc.power.off"))
    assert [fault.resource for fault in faults(plane) if fault.group is None] == ["rack/a"]
    for node in nodes[4:]:
        plane.tell(f.SignalSeen(resource=whole(node), signal="bmc.power.off"))
    assert [fault.resource for fault in faults(plane) if fault.group is None] == ["power/p"]


def test_two_racks_of_one_driver_version_are_that_version() -> None:
    plane = Plane().start(spares=7)
    nodes = [f"n{n}" for n in range(1, 9)]
    for node in nodes:
        joined(plane, node, rack="a" if node < "n5" else "b", driver="580")
    for node in ("n1", "n2", "n5", "n3", "n6", "n7"):
        plane.tell(f.SignalSeen(resource=device(node, 0), signal="xid.119", part="gpu/0"))
    assert [fault.resource for fault in faults(plane) if fault.group is None] == ["driver/580"]


def test_a_program_error_after_the_gate_is_not_blamed_on_what_the_gate_answered() -> None:
    plane = Plane().start(spares=1)
    joined(plane, "n2")
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="xid.48", part="gpu/0000:9b:00"))
    resource = plane.resource("device/n2/0")
    resource.state, resource.holds = ResourceState.PROBATION, {}  # as a passed gate leaves it
    resource.gate_passed_s, resource.gate_passed_entry = plane.now_s + 40.0, plane.world.seq
    plane.wait(60.0)
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="xid.13", part="gpu/0000:9b:00"))
    assert not resource.holds


def test_a_card_that_is_missing_and_a_count_that_is_short_are_one_fault() -> None:
    plane = Plane().start(spares=1)
    joined(plane, "n2")
    plane.tell(f.SignalSeen(resource=device("n2", 0), signal="gpu.lost", part="gpu/0"))
    plane.tell(f.SignalSeen(resource=whole("n2"), signal="gpu.count"))
    assert len(faults(plane)) == 1


def test_a_job_does_not_leave_a_card_that_has_passed_the_gate_since() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.thermal"))
    resource = plane.resource("device/n1/0")
    resource.state, resource.holds, resource.gated = ResourceState.IN_SERVICE, {}, False  # as the gate leaves it
    plane.now_s += 5.0
    plane.tell(f.CheckpointCommitted(job=JOB, generation=plane.job.generation, step=7, key="k7", world_size=1))
    assert plane.job.state is JobState.RUNNING


def test_what_an_old_agent_was_told_its_successor_is_told_again() -> None:
    plane = Plane().start(spares=1)
    joined(plane, "n2")
    plane.tell(lost("n2"))
    assert Session("agent-n2") in [intent.session for _, intent in plane.pending(Quarantine)]
    plane.tell(f.AgentJoined(node=NodeId("n2"), session=Session("second"), boot_id="boot-1"))
    assert Session("agent-n2") not in [intent.session for _, intent in plane.pending(Quarantine)]
    assert not plane.resource("device/n2/0").allocatable
