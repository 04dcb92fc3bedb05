"""Stage 4: holds before fences, fences before anything else; the breaker; and when silence may count as a proof."""

import pytest

from keepstep.core import facts as f
from keepstep.core.ids import NodeId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import AskWitness, Fence, Launch, Notify, PowerOff, Quarantine
from keepstep.core.job import JobState
from keepstep.core.policy import Breaker, Policy

from .build import JOB, Plane, device, launched

SELF_FENCED_S = 25.0
"""The launcher's own deadline and the margin, as the default policy has them."""


def lost(plane: Plane, name: str, verdict: str = "process_gone") -> None:
    plane.tell(plane.silent(name, seconds=3.0))
    plane.tell(plane.witnessed(name, verdict))


def test_the_hold_is_journalled_before_the_fence() -> None:
    plane = Plane().start(spares=1)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="device.lost"))
    order = [type(i).__name__ for d in plane.decisions for i in d.intents]
    assert order.index("Quarantine") < order.index("Fence")
    held = next(i for i, d in enumerate(plane.decisions) if any(isinstance(x, Quarantine) for x in d.intents))
    fenced = next(i for i, d in enumerate(plane.decisions) if any(isinstance(x, Fence) for x in d.intents))
    assert held < fenced


def test_every_node_of_the_job_is_fenced_at_once_and_without_grace() -> None:
    plane = Plane().start(nodes=4)
    plane.tell(plane.exited(1, signal=9))
    fences = [i for _, i in plane.pending(Fence)]
    assert [(i.node, i.generation, i.via, i.grace_s) for i in fences] == [
        (f"n{n}", 1, "launcher", 0.0) for n in range(4)
    ]


def test_nothing_is_selected_before_the_last_proof() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.answer(Fence, plane.fenced, node="n0")
    assert plane.incident.state is IncidentState.ISOLATING
    plane.answer(Fence, plane.fenced, node="n1")
    assert plane.incident.state is IncidentState.RESTARTING


def test_a_fence_of_an_older_generation_proves_nothing() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.answer(Fence, f.Fenced(generation=0, proof="killed"))
    assert plane.incident.state is IncidentState.ISOLATING


def test_a_fence_that_fails_is_tried_again_with_growing_pauses() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.answer(Fence, plane.fenced, node="n0")
    gaps = []
    for _ in range(5):
        plane.answer(Fence, f.Failed(reason="pid 17 does not die"), node="n1")
        waited = 0.0
        while not plane.pending(Fence):
            plane.wait(0.25)
            waited += 0.25
        gaps.append(waited)
    assert gaps == [1.0, 2.0, 4.0, 8.0, 15.0]


def test_a_silent_launcher_is_fenced_through_a_witness() -> None:
    plane = Plane().start()
    lost(plane, "n1")
    assert {i.node: i.via for _, i in plane.pending(Fence)} == {"n0": "launcher", "n1": "witness"}


def test_a_launcher_that_falls_silent_during_the_fence_is_asked_on_the_other_road() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.answer(Fence, plane.fenced, node="n0")
    plane.tell(plane.silent("n1", lost=True))
    assert [i.via for _, i in plane.pending(Fence) if i.node == "n1"] == ["launcher", "witness"]


def test_a_node_that_left_needs_no_fence() -> None:
    plane = Plane().start(spares=1)
    plane.tell(plane.left("n1"))
    assert [i.node for _, i in plane.pending(Fence)] == ["n0"]


# ---- the self-fence rule


def test_a_cut_off_node_of_a_job_of_many_is_dead_after_its_deadline() -> None:
    plane = Plane().start(spares=1)
    lost(plane, "n1")
    plane.answer(Fence, plane.fenced, node="n0")
    # Its ranks may have stepped until n0's were gone: its own clock of progress runs from there at the earliest.
    plane.wait(SELF_FENCED_S - 0.25)
    assert plane.incident.state is IncidentState.ISOLATING
    plane.wait(0.5)
    assert plane.incident.attempt.fenced["n1"] == "self_fenced"  # type: ignore[index]
    assert plane.incident.state is IncidentState.RESTARTING


def test_the_deadline_does_not_count_while_a_peer_may_still_step_with_it() -> None:
    plane = Plane().start()
    lost(plane, "n1")
    plane.answer(Fence, f.Failed(reason="busy"), node="n0")
    plane.wait(SELF_FENCED_S + 1.0)
    assert plane.job.launchers[NodeId("n1")].running == 1, "n0 is alive and heard: its ranks may still step with n1's"


def test_two_silent_halves_may_still_reach_each_other_and_are_not_presumed_dead() -> None:
    plane = Plane().start()
    lost(plane, "n0")
    lost(plane, "n1")
    plane.wait(SELF_FENCED_S + 60.0)
    assert [x.running for x in plane.job.launchers.values()] == [1, 1]


def test_a_job_on_one_node_is_never_presumed_dead_by_the_clock() -> None:
    """It may step by itself: unknown, not dead. It waits for proof, or for a person who orders the power off."""
    plane = Plane().start(nodes=1, spares=1)
    lost(plane, "n0")
    plane.wait(SELF_FENCED_S + 60.0)
    assert plane.job.launchers[NodeId("n0")].running == 1
    assert plane.pending(Launch) == []


# ---- when there is no proof


def stuck() -> Plane:
    plane = Plane().start(nodes=1, spares=1)
    lost(plane, "n0")
    plane.wait(plane.policy.incident_deadline_s["isolating"] + 1.0)
    plane.wait(20.0)
    return plane


def test_without_proof_a_person_is_asked_and_nothing_starts() -> None:
    plane = stuck()
    assert plane.incident.state is IncidentState.WAITING
    assert "no proof that the old generation is dead on n0" in plane.incident.waits_for
    assert [i.level for _, i in plane.pending(Notify)][-1] == "page"
    assert plane.pending(PowerOff) == []
    assert plane.pending(Launch) == []


def test_an_approval_orders_the_power_off_and_its_proof_lets_the_recovery_go_on() -> None:
    plane = stuck()
    plane.tell(f.Approved(subject=plane.incident.id, by="eve", granted=True))
    assert [i.node for _, i in plane.pending(PowerOff)] == ["n0"]
    plane.answer(PowerOff, f.Fenced(generation=1, proof="powered_off"))
    assert plane.incident.state is IncidentState.RESTARTING
    assert plane.incident.attempt.fenced == {"n0": "powered_off"}


def test_a_refusal_ends_the_job_without_a_power_off() -> None:
    plane = stuck()
    plane.tell(f.Approved(subject=plane.incident.id, by="eve", granted=False))
    assert plane.incident.state is IncidentState.ESCALATED
    assert plane.job.state in (JobState.ENDING, JobState.FAILED)
    assert "eve refused" in plane.job.message
    assert plane.pending(PowerOff) == []


def test_nobody_answering_ends_the_wait() -> None:
    plane = stuck()
    plane.wait(plane.policy.approvals.wait_s)
    assert plane.incident.state is IncidentState.ESCALATED
    assert "nobody answered" in plane.job.message


def test_proof_that_comes_while_a_person_is_asked_is_enough() -> None:
    plane = stuck()
    plane.answer(Fence, lambda i: f.Fenced(generation=i.generation, proof="process_gone"))  # type: ignore[union-attr]
    assert plane.incident.state is IncidentState.RESTARTING


def test_an_approval_given_before_the_question_is_no_answer_to_it() -> None:
    plane = Plane().start(nodes=1, spares=1)
    lost(plane, "n0")
    plane.tell(f.Approved(subject=plane.incident.id, by="eve", granted=True))
    plane.wait(plane.policy.incident_deadline_s["isolating"] + 1.0)
    plane.wait(20.0)
    assert plane.incident.state is IncidentState.WAITING


# ---- the breaker


def signals(plane: Plane, count: int) -> None:
    for n in range(count):
        plane.tell(f.SignalSeen(resource=device(f"n{n + 2}", 0), signal="device.lost"))


def test_the_breaker_stops_isolation_when_too_much_of_the_fleet_would_go() -> None:
    plane = Plane().start(spares=5)
    signals(plane, 5)
    held = [r.id for r in plane.world.resources.values() if r.holds]
    assert len(held) == plane.policy.breaker.absolute
    assert any("the breaker allows 3" in i.message for _, i in plane.pending(Notify))


def test_the_breaker_makes_an_incident_ask_and_an_approval_goes_on() -> None:
    plane = Plane(Policy(breaker=Breaker(absolute=1))).start(spares=3)
    signals(plane, 1)
    for n in range(3):
        plane.tell(plane.exited(1, error=f.ErrorRecord(kind="DeviceFault", message="x", signature="s"), step=n))
        if n < 2:
            plane.recover()
    assert plane.incident.state is IncidentState.WAITING
    assert plane.pending(Fence) == []
    plane.tell(f.Approved(subject=plane.incident.id, by="eve", granted=True))
    assert plane.resource("device/n0/1").holds
    assert plane.incident.state is IncidentState.ISOLATING


def test_the_breaker_closes_again_after_its_window() -> None:
    plane = Plane().start(spares=5)
    signals(plane, 3)
    plane.wait(plane.policy.breaker.window_s)
    plane.tell(f.SignalSeen(resource=device("n5", 0), signal="device.lost"))
    assert plane.resource("device/n5/0").holds


def test_a_large_fleet_has_a_breaker_in_proportion() -> None:
    plane = Plane(Policy(breaker=Breaker(absolute=1, fraction=0.25))).start(spares=6)
    signals(plane, 6)
    resources = len(plane.world.resources)
    assert len([r for r in plane.world.resources.values() if r.holds]) == int(0.25 * resources) == 6


# ---- a launcher that came back as a new process


def replaced(plane: Plane, name: str) -> None:
    plane.sessions[name] = plane.sessions.get(name, 0) + 1
    plane.tell(plane.joined(name))


def test_a_new_launcher_proves_the_end_of_the_old_one_s_ranks_before_anything_starts() -> None:
    plane = Plane().start()
    replaced(plane, "n1")
    asked = {i.node: (i.via, i.session) for _, i in plane.pending(Fence)}
    assert asked["n1"] == ("launcher", plane.session("n1"))  # type: ignore[index]
    assert plane.pending(Launch) == []
    plane.fence_all()
    assert {i.session for _, i in plane.pending(Launch)} == {plane.session("n0"), plane.session("n1")}


def test_a_proof_from_the_old_session_brings_nothing_of_it_along() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    number, fence = next((n, i) for n, i in plane.pending(Fence) if i.node == "n1")
    plane.sessions["n1"] = 1
    plane.tell(plane.joined("n1"))
    store = plane.job.launchers[NodeId("n1")].store
    plane.tell(f.Answered(intent=number, outcome=f.Fenced(generation=1, proof="killed", store="stale:1")))
    assert plane.job.launchers[NodeId("n1")].store == store
    assert fence.session != plane.session("n1")


def test_a_witness_is_asked_once_for_each_silent_node() -> None:
    plane = Plane().start(nodes=3)
    plane.tell(plane.silent("n1"))
    plane.tell(plane.silent("n2"))
    assert [i.node for _, i in plane.pending(AskWitness)] == ["n1", "n2"]


def test_only_the_new_generation_runs_after_a_recovery() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    assert {i.generation for _, i in plane.pending(Launch)} == {2}
    plane.answer(Launch, launched)
    assert {x.running for x in plane.job.launchers.values()} == {2}
    assert plane.job.id == JOB


@pytest.mark.parametrize("proof", ["killed", "nothing_ran", "process_gone", "rebooted", "powered_off"])
def test_every_kind_of_proof_ends_a_generation(proof: str) -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.answer(Fence, f.Fenced(generation=1, proof=proof))  # type: ignore[arg-type]
    assert set(plane.incident.attempt.fenced.values()) == {proof}
    assert plane.pending(Launch)
