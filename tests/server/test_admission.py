"""What a connection may report: its own node, job and orders, in its own name."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.build import JOB, Plane

from keepstep.core import facts as f
from keepstep.core.access import OWNER, Principal, Role
from keepstep.core.ids import JobId, NodeId, ResourceId, Session
from keepstep.core.intents import Fence
from keepstep.core.job import RetiredJob
from keepstep.core.world import World
from keepstep.server.admission import foreign_job, in_its_name, objection, unfit_session
from keepstep.wire.messages import PROTOCOL, Hello

NODE, SESSION = NodeId("n0"), Session("s0")
LAUNCHER = Hello(protocol=PROTOCOL, role="launcher", job=JOB, node=NODE, session=SESSION)
AGENT = Hello(protocol=PROTOCOL, role="agent", node=NODE, session=SESSION)
FRONT = Hello(protocol=PROTOCOL, role="front", job=JOB, session=SESSION)
TOOL = Hello(protocol=PROTOCOL, role="tool", session=SESSION)
SPEC = f.JobSpec(argv=("t.py",), nproc_per_node=1, elasticity=f.Elasticity(min_nodes=1, max_nodes=1), tenant="red")
RED = Principal(name="n0", role=Role.LAUNCHER, tenants=("red",), proof="certificate:1")

OWN = {
    "submits": (LAUNCHER, f.JobSubmitted(job=JOB, spec=SPEC)),
    "joins": (
        LAUNCHER,
        f.NodeJoined(job=JOB, node=NODE, session=SESSION, boot_id="b", devices=(), address="127.0.0.1"),
    ),
    "leaves": (LAUNCHER, f.NodeLeft(job=JOB, node=NODE, session=SESSION)),
    "commits": (LAUNCHER, f.CheckpointCommitted(job=JOB, generation=1, step=1, key="k", world_size=1)),
    "launcher's signal": (LAUNCHER, f.SignalSeen(resource=ResourceId("device/n0/3"), signal="xid.79")),
    "agent joins": (AGENT, f.AgentJoined(node=NODE, session=SESSION, boot_id="b")),
    "agent's signal": (AGENT, f.SignalSeen(resource=ResourceId("node/n0"), signal="x", session=SESSION)),
    "agent sees": (AGENT, f.CoverageChanged(node=NODE, session=SESSION, source="nvml", state="seen")),
    "front submits": (FRONT, f.JobSubmitted(job=JOB, spec=SPEC)),
    "front stops": (FRONT, f.JobStopRequested(job=JOB, by="ada")),
    "front witnesses": (
        FRONT,
        f.Witnessed(job=JOB, node=NodeId("n5"), session=Session("x"), witness="host", verdict="process_gone"),
    ),
}
OTHERS = {"job": JobId("other"), "node": NodeId("n9"), "session": Session("s9"), "resource": ResourceId("device/n9/0")}


@pytest.mark.parametrize("case", OWN)
def test_ones_own_is_taken(case):
    hello, fact = OWN[case]
    assert objection(OWNER, hello, fact, World()) == ""


@pytest.mark.parametrize(
    ("case", "field"), [(case, field) for case, (_, fact) in OWN.items() for field in OTHERS if hasattr(fact, field)]
)
def test_the_same_about_somebody_else_is_refused(case, field):
    hello, fact = OWN[case]
    other = msgspec.structs.replace(fact, **{field: OTHERS[field]})
    free = case == "front witnesses" and field in ("node", "session")
    assert bool(objection(OWNER, hello, other, World())) == (not free)


@pytest.mark.parametrize("resource", ["", "n0", "node", "node/", "rack/n0", "device/n0x/1", "link/n0/1", "../n0"])
def test_a_resource_that_is_not_of_the_node_is_refused(resource):
    fact = f.SignalSeen(resource=ResourceId(resource), signal="x", session=SESSION)
    assert "about node" in objection(OWNER, AGENT, fact, World())


SAMPLES = [fact for _, fact in OWN.values()] + [
    f.Approved(subject="inc-1", by="eve", granted=True),
    f.HoldLifted(resource=ResourceId("node/n0"), source="person:ada", by="ada"),
    f.ServerStarted(server="me", version="9"),
    f.TokenIssued(id="t9", digest="0" * 64, kind="api", role="admin"),
    f.PolicySet(overrides="", by="eve"),
    f.NodeUnreachable(job=JOB, node=NODE, session=SESSION, silent_s=9.0),
    f.StepsAdvanced(job=JOB, generation=1, step=1, ranks=1),
    f.BmcSeen(node=NODE, power="off", reachable=True),
    f.Compacted(upto=1, hash="", archive="", digest="", by="eve"),
]


@given(st.sampled_from(SAMPLES))
def test_a_tool_reports_nothing(fact):
    assert objection(OWNER, TOOL, fact, World()) != ""


@pytest.mark.parametrize("hello", [LAUNCHER, AGENT, FRONT], ids=["launcher", "agent", "front"])
@given(st.sampled_from(SAMPLES[len(OWN) :]))
def test_no_program_speaks_for_a_person_or_for_the_server(hello, fact):
    assert "does not report" in objection(OWNER, hello, fact, World())


@pytest.fixture
def fencing() -> Plane:
    """A plane that waits for proofs that two nodes are fenced."""
    plane = Plane()
    plane.start()
    plane.tell(plane.exited(0, signal=9))
    assert len(plane.pending(Fence)) == 2
    return plane


def test_nobody_answers_another_nodes_order(fencing):
    """The proof that a node is dead decides over a second launch: only that node gives it."""
    for number, order in fencing.pending(Fence):
        proof = f.Answered(intent=number, outcome=f.Fenced(generation=1, proof="killed"))
        for name in ("n0", "n1", "n9"):
            hello = msgspec.structs.replace(LAUNCHER, node=NodeId(name), job=order.job)
            assert bool(objection(OWNER, hello, proof, fencing.world)) == (name != order.node)


def test_a_launcher_of_another_job_on_that_node_does_not_answer_either(fencing):
    number, order = fencing.pending(Fence)[0]
    hello = msgspec.structs.replace(LAUNCHER, node=order.node, job=JobId("other"))
    answer = f.Answered(intent=number, outcome=f.Done())
    assert objection(OWNER, hello, answer, fencing.world) != ""


def test_a_repeated_answer_is_taken_and_changes_nothing(fencing):
    assert objection(OWNER, LAUNCHER, f.Answered(intent=999, outcome=f.Done()), fencing.world) == ""


def test_whose_job_it_is_comes_from_the_identity():
    lie = f.JobSubmitted(job=JOB, spec=msgspec.structs.replace(SPEC, tenant="blue"))
    assert in_its_name(RED, lie).spec.tenant == "red"
    assert in_its_name(RED, lie).spec.argv == lie.spec.argv
    assert in_its_name(OWNER, lie) == lie
    both = msgspec.structs.replace(RED, tenants=("red", "blue"))
    assert in_its_name(both, lie) == lie


def test_who_stopped_a_job_comes_from_the_identity():
    asked = f.JobStopRequested(job=JOB, by="somebody else")
    assert in_its_name(Principal(name="ada", role=Role.OPERATOR, proof="token:t1"), asked).by == "ada"
    assert in_its_name(OWNER, asked).by == "somebody else"


def test_the_name_of_another_tenants_job_is_taken(fencing):
    assert "taken" in foreign_job(RED, LAUNCHER, fencing.world)
    assert "taken" in objection(RED, LAUNCHER, f.JobSubmitted(job=JOB, spec=SPEC), fencing.world)
    assert foreign_job(OWNER, LAUNCHER, fencing.world) == ""
    assert foreign_job(RED, msgspec.structs.replace(LAUNCHER, job=JobId("fresh")), fencing.world) == ""
    gone = World(retired_jobs={JOB: RetiredJob(generation=3, runs=(), invalid=(), tainted=(), tenant="blue")})
    assert "taken" in foreign_job(RED, LAUNCHER, gone), "also when it is over and only its name is left"


@pytest.mark.parametrize("name", ["server-1-2", "ask-1", "enrol-t1", "renew-1", "a\0b", "x" * 201, "\u00fc"])
def test_sessions_of_the_server_itself_are_not_to_be_had(name):
    assert unfit_session(msgspec.structs.replace(LAUNCHER, session=Session(name))) != ""
    assert unfit_session(LAUNCHER) == ""
