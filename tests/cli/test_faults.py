"""``keepstep faults``, ``fault show``, ``nodes`` from a journal that the core wrote; ``keepstep health`` from a real server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.core.build import Plane, device
from tests.server.conftest import Client, ServerProcess

from keepstep.adapters.database.opening import open_journal
from keepstep.core import facts as f
from keepstep.core.health.report import assess
from keepstep.core.health.window import Sample, history
from keepstep.core.ids import NodeId, Session
from keepstep.server.fault_views import FaultReport, Faults, Nodes
from keepstep.server.health_views import Health
from keepstep.server.state_dir import StateDir
from keepstep.wire import messages as m

CARD = f.NodePart(names=("gpu/0000:9b:00", "gpu/0", "gpu/GPU-1"), serial="S1", slot=0)


def agent_session(node: str) -> Session:
    return Session(f"agent-{node}")


def joined(node: str, **domains: str) -> f.AgentJoined:
    return f.AgentJoined(
        node=NodeId(node), session=agent_session(node), boot_id="boot-1", parts=(CARD,), domains=domains
    )


def written(plane: Plane, where: Path) -> Path:
    journal = open_journal(where / "journal.db")
    for at_s, record in plane.journal:
        journal.append(at_s, [record])
    journal.close()
    return where


@pytest.fixture
def lost_card(tmp_path: Path) -> Path:
    """A job on two nodes; the card that n1's rank runs on is lost, and n2, a spare, has an agent that cannot see drives."""
    plane = Plane().start(spares=1)
    plane.tell(joined("n1", rack="r1"), joined("n2", rack="r1"))
    for source, state in (("kmsg", "seen"), ("nvml", "absent")):
        plane.tell(
            f.CoverageChanged(node=NodeId("n2"), session=agent_session("n2"), source=source, state=state)  # type: ignore[arg-type]
        )
    plane.tell(f.BmcSeen(node=NodeId("n2"), power="on", reachable=True, health="OK"))
    for _ in range(3):
        plane.tell(
            f.SignalSeen(
                resource=device("n1", 0), signal="xid.79", part="gpu/GPU-1", detail="GPU has fallen off the bus.",
                source="kmsg", session=agent_session("n1"),
            )
        )  # fmt: skip
    return written(plane, tmp_path)


@pytest.fixture
def rack_down(tmp_path: Path) -> Path:
    plane = Plane().start(spares=3)
    plane.tell(*(joined(node, rack="r1") for node in ("n1", "n2", "n3", "n4")))
    for node in ("n2", "n3", "n4"):
        plane.tell(f.SignalSeen(resource=device(node, 0), signal="device.lost"))
    return written(plane, tmp_path)


def test_a_fault_is_one_line_with_its_two_verdicts(lost_card, keepstep):
    done = keepstep("faults", "--state-dir", lost_card, columns=200)
    assert done.returncode == 0
    for part in ("flt-0001", "n1/gpu/0000:9b:00", "gpu.fallen_off_bus", "(seen 3x)", "job: restart_elsewhere"):
        assert part in done.stdout


def test_faults_as_json_are_the_view(lost_card, keepstep):
    done = keepstep("faults", "--state-dir", lost_card, "--json")
    (fault,) = msgspec.json.decode(done.stdout, type=Faults).faults
    assert (fault.state, fault.scope, fault.verdict, fault.count) == ("open", "card", "faulty", 3)
    assert fault.held == ("device/n1/0",)
    assert fault.signals == ("xid.79",) and fault.nodes == ("n1",)


def test_fault_show_tells_evidence_holds_and_incidents(lost_card, keepstep):
    done = keepstep("fault", "show", "flt-0001", "--state-dir", lost_card)
    assert done.returncode == 0
    head = done.stdout.splitlines()[0]
    assert head.startswith("flt-0001 · n1/gpu/0000:9b:00 · open · ")
    for part in ("held: device/n1/0", "incidents: inc-0002", "3 signals (xid.79)"):
        assert part in done.stdout
    report = msgspec.json.decode(
        keepstep("fault", "show", "flt-0001", "--state-dir", lost_card, "--json").stdout, type=FaultReport
    )
    assert report.fault.incidents == ("inc-0002",) and len(report.entries) == 3


def test_the_incident_of_the_job_points_to_the_fault(lost_card, keepstep):
    shown = keepstep("incident", "show", "inc-0002", "--state-dir", lost_card).stdout
    assert "flt-0001" in shown


def test_a_fault_that_is_not_there_leads_to_those_that_are(lost_card, keepstep):
    done = keepstep("fault", "show", "flt-0009", "--state-dir", lost_card)
    assert done.returncode == 1
    assert "'flt-0009'" in done.stderr and "flt-0001" in done.stderr


def test_a_rack_that_fails_is_one_open_fault_and_its_members_are_under_all(rack_down, keepstep):
    (wide,) = msgspec.json.decode(keepstep("faults", "--state-dir", rack_down, "--json").stdout, type=Faults).faults
    assert (wide.resource, wide.scope) == ("rack/r1", "rack")
    assert len(wide.members) == 3
    everything = msgspec.json.decode(
        keepstep("faults", "--all", "--state-dir", rack_down, "--json").stdout, type=Faults
    ).faults
    assert sorted(x.state for x in everything) == ["grouped", "grouped", "grouped", "open"]
    shown = keepstep("fault", "show", wide.id, "--state-dir", rack_down).stdout
    assert f"explains {', '.join(wide.members)}" in shown
    assert f"explained by {wide.id}" in keepstep("fault", "show", wide.members[0], "--state-dir", rack_down).stdout


def test_nodes_say_who_hears_them_and_what_nobody_sees(lost_card, keepstep):
    found = {
        x.node: x
        for x in msgspec.json.decode(keepstep("nodes", "--state-dir", lost_card, "--json").stdout, type=Nodes).nodes
    }
    assert found["n2"].agent == "heard" and found["n2"].power == "on"
    assert {x.source: x.state for x in found["n2"].coverage} == {"kmsg": "seen", "nvml": "absent"}
    assert found["n1"].faults == ("flt-0001",)
    assert (found["n0"].agent, found["n0"].power, found["n0"].means) == ("none", "", "no_agent")
    text = keepstep("nodes", "--state-dir", lost_card, columns=160).stdout
    assert "nvml (absent)" in text and "no_agent" in text and "flt-0001" in text


@pytest.mark.parametrize("command", ["faults", "nodes"])
@pytest.mark.parametrize("columns", [80, 140])
def test_tables_fit_the_terminal(lost_card, keepstep, command, columns):
    done = keepstep(command, "--state-dir", lost_card, columns=columns)
    assert done.returncode == 0
    assert max(len(line) for line in done.stdout.splitlines()) <= columns


def test_a_journal_without_faults_has_none_open(recorded, keepstep):
    assert "no open fault" in keepstep("faults", "--state-dir", recorded).stdout
    assert keepstep("nodes", "--state-dir", recorded).returncode == 0


# ---- forecasts live in a server


def test_without_a_server_there_is_no_forecast(recorded, keepstep):
    done = keepstep("health", "--state-dir", recorded)
    assert done.returncode == 1
    assert "running server" in done.stderr


@pytest.fixture
def served(tmp_path: Path) -> Iterator[StateDir]:
    """A state directory that a real server leads."""
    state = StateDir(tmp_path / "state")
    server = ServerProcess(state).patient().start()
    yield state
    server.kill()
    Path(server.address.removeprefix("unix:")).unlink(missing_ok=True)


@pytest.fixture
def agent(served: StateDir) -> Iterator[Callable[[str], Client]]:
    """Connects as an agent of a node; the connections are closed with the test."""
    clients: list[Client] = []

    def connect(node: str) -> Client:
        server = ServerProcess(served)
        clients.append(Client(server, "agent", node=NodeId(node), session=agent_session(node)))
        assert isinstance(clients[-1].receive(), m.Welcome)
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def failing(part: str) -> m.Health:
    """The forecast of a node with a card whose corrected errors have grown for a day."""
    hours = range(25)
    errors = [Sample(counter="ecc_corrected", at_s=3600.0 * hour, value=500.0 * hour * hour) for hour in hours]
    return m.Health(report=assess({"": history([]), part: history(errors)}, 24 * 3600.0))


def test_a_forecast_of_an_agent_is_shown_with_its_riskiest_part(served, agent, keepstep):
    client = agent("n7")
    client.send(failing("gpu/0000:9b:00"))
    client.send(m.Report(number=1, fact=joined("n7")))
    client.expect(m.Ack)  # what came before it was taken as well
    done = keepstep("health", "--state-dir", served.path, "--json")
    assert done.returncode == 0, done.stderr
    (node,) = msgspec.json.decode(done.stdout, type=Health).nodes
    assert (node.node, node.riskiest, node.when) == ("n7", "gpu/0000:9b:00", "")
    assert 0 < node.p_1h < node.p_6h < node.p_24h < 1
    table = keepstep("health", "--state-dir", served.path, columns=140).stdout
    assert "n7" in table and "no job runs there" in table
    one = keepstep("health", "n7", "--state-dir", served.path).stdout
    assert one.startswith("risk index ") and "gpu/0000:9b:00" in one


def test_a_node_without_a_forecast_is_said_to_have_none(served, agent, keepstep):
    assert "no agent has told a forecast yet" in keepstep("health", "--state-dir", served.path).stdout
    done = keepstep("health", "n9", "--state-dir", served.path)
    assert done.returncode == 1
    assert "'n9'" in done.stderr
