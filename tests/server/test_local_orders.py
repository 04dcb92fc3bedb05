"""What the server carries out itself: the host's word on a dead launcher, the end of what it left, repair orders."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.server.conftest import DEADLINE_S

from keepstep.adapters.database.opening import open_journal
from keepstep.adapters.local import LocalHost
from keepstep.core import facts as f
from keepstep.core import intents as i
from keepstep.core.ids import IncidentId, JobId, NodeId, ResourceId, Session
from keepstep.ports import BmcReading
from keepstep.server import views
from keepstep.server.local_orders import LocalOrders, is_local, session_of
from keepstep.wire import messages as m

SESSION = Session(f"s-{secrets.token_hex(4)}")
"""Of this run of the tests only: processes are found by it on the whole machine, those of the tests beside it too."""


def start_time(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.fixture
def process():
    """Starts sleeping processes; none is left at the end."""
    started = []

    def start(**env):
        argv = [sys.executable, "-c", "import time; time.sleep(3600)"]
        started.append(subprocess.Popen(argv, env=os.environ | env))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


class Controller:
    """Meets ports.Bmc: a controller whose power is switched one look after the order, as hardware does."""

    def __init__(self, power="on", refuses="", obeys=True):
        self.says, self.refuses, self.obeys, self.orders = [power], refuses, obeys, []

    def power(self):
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]

    def switch(self, to):
        self.orders.append(to)
        if not self.refuses and self.obeys:
            self.says += ["on", to]
        return self.refuses

    def look(self, cursor):
        return BmcReading(reachable=True, power=self.power())

    def close(self):
        pass


def carry_out(tmp_path, order, processes, bmcs=None):
    """Everything observed until the order is answered."""
    seen = []

    async def go():
        answered = asyncio.Event()

        def observe(*facts):
            seen.extend(facts)
            if any(isinstance(fact, f.Answered) for fact in facts):
                answered.set()

        local = LocalOrders(LocalHost(), tmp_path / "repairs.jsonl", processes.get, observe, bmcs or {})
        local.submit([order])
        await asyncio.wait_for(answered.wait(), 60)

    asyncio.run(go())
    return seen


def fence(session):
    intent = i.Fence(job=JobId("j"), node=NodeId("n0"), session=session, generation=3, via="witness")
    return i.Order(number=5, intent=intent)


def test_a_living_launcher_is_not_fenced_by_the_witness(tmp_path, process):
    launcher = process(KEEPSTEP_TOKEN=f"j/n0/{SESSION}")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (answer,) = carry_out(tmp_path, fence(SESSION), {SESSION: (boot, launcher.pid, start_time(launcher.pid))})
    assert isinstance(answer.outcome, f.Failed)
    assert "alive" in answer.outcome.reason
    assert launcher.poll() is None


@pytest.mark.parametrize("known", [{}, {SESSION: ("another boot", 1, 1)}], ids=["unknown", "another machine"])
def test_nothing_is_proven_of_a_launcher_elsewhere(tmp_path, process, known):
    stray = process(KEEPSTEP_TOKEN=f"j/n0/{SESSION}")
    (answer,) = carry_out(tmp_path, fence(SESSION), known)
    assert isinstance(answer.outcome, f.Failed)
    assert stray.poll() is None


def test_what_a_dead_launcher_left_is_ended_and_strangers_are_not(tmp_path, process):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    launcher = process()
    known = {SESSION: (boot, launcher.pid, start_time(launcher.pid))}
    stray = process(KEEPSTEP_TOKEN=f"j/n0/{SESSION}", KEEPSTEP_GENERATION="0000000002")
    stranger = process(KEEPSTEP_TOKEN=f"j/n0/{SESSION}-other")
    launcher.kill()
    launcher.wait()
    (answer,) = carry_out(tmp_path, fence(SESSION), known)
    assert answer == f.Answered(intent=5, outcome=f.Fenced(generation=3, proof="process_gone", killed=1))
    assert stray.wait(timeout=60) == -signal.SIGKILL
    assert stranger.poll() is None


def test_a_repair_is_opened_once(tmp_path):
    intent = i.OpenRepair(
        resource=ResourceId("device/n0/1"), serial="x", incident=IncidentId("inc-1"), reason="fails again and again"
    )
    for _ in range(2):
        (answer,) = carry_out(tmp_path, i.Order(number=9, intent=intent), {})
        assert answer.outcome == f.Done(detail="inc-1:device/n0/1")
    (line,) = (tmp_path / "repairs.jsonl").read_text().splitlines()
    assert json.loads(line)["reason"] == "fails again and again"


def test_power_off_without_power_control_fails(tmp_path):
    intent = i.PowerOff(job=JobId("j"), node=NodeId("n0"), session=SESSION, generation=1)
    (answer,) = carry_out(tmp_path, i.Order(number=1, intent=intent), {})
    assert isinstance(answer.outcome, f.Failed)


def power_off():
    intent = i.PowerOff(job=JobId("j"), node=NodeId("n0"), session=SESSION, generation=4)
    return i.Order(number=1, intent=intent)


def test_power_off_is_proven_only_when_the_controller_says_off(tmp_path):
    controller = Controller()
    (answer,) = carry_out(tmp_path, power_off(), {}, {NodeId("n0"): controller})
    assert answer.outcome == f.Fenced(generation=4, proof="powered_off")
    assert controller.orders == ["off"]


def test_a_controller_that_refuses_is_told_of(tmp_path):
    (answer,) = carry_out(tmp_path, power_off(), {}, {NodeId("n0"): Controller(refuses="403 Forbidden")})
    assert answer.outcome == f.Failed(reason="the BMC of n0 refused: 403 Forbidden")


def test_a_node_without_power_is_fenced(tmp_path):
    (answer,) = carry_out(tmp_path, fence(SESSION), {}, {NodeId("n0"): Controller("off")})
    assert answer.outcome == f.Fenced(generation=3, proof="powered_off")


@pytest.mark.parametrize(("power", "verdict"), [("off", "host_off"), ("on", "no_answer"), ("unknown", "no_answer")])
def test_the_controller_is_the_second_witness_of_a_node_elsewhere(tmp_path, power, verdict):
    intent = i.AskWitness(
        job=JobId("j"), node=NodeId("n0"), session=SESSION, boot_id="another machine", pid=1, pid_start=1
    )
    seen = carry_out(tmp_path, i.Order(number=2, intent=intent), {}, {NodeId("n0"): Controller(power)})
    words = [fact for fact in seen if isinstance(fact, f.Witnessed)]
    assert [(word.witness, word.verdict) for word in words] == [("host", "no_answer"), ("bmc", verdict)]


def test_which_orders_are_local():
    notify = i.Order(number=1, intent=i.Notify(subject="j", level="info", message=""))
    assert is_local(notify)
    assert session_of(notify) is None
    assert is_local(fence(SESSION))
    through_launcher = i.Fence(job=JobId("j"), node=NodeId("n0"), session=SESSION, generation=3)
    assert not is_local(i.Order(number=1, intent=through_launcher))
    assert session_of(i.Order(number=1, intent=through_launcher)) == SESSION


def test_server_finds_a_dead_launcher_by_itself(server, launcher, process):
    """No front is there to tell: the connection breaks, the host is asked, the job goes on elsewhere."""
    one, two = launcher("j", "n0", nodes=1), launcher("j", "n1", nodes=1)
    body = process()
    one.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    one.pid, one.pid_start = body.pid, start_time(body.pid)
    one.pump_until_steady(1, 4)
    two.pump_until(lambda: not two.reports, "n1 has joined")
    assert two.ranks == ()
    body.kill()
    body.wait()
    one.disconnect()
    two.pump_until(lambda: two.generation == 2 and two.step > 5, "n1 takes over")
    journal = open_journal(server.state.journal, read_only=True)
    witnessed = [entry.record for entry in journal.read() if isinstance(entry.record, f.Witnessed)]
    journal.close()
    assert [(w.node, w.verdict, w.witness) for w in witnessed] == [("n0", "process_gone", "host")]


def test_live_view(server, launcher, connect):
    one = launcher()
    tool = connect()
    tool.expect(m.Welcome)
    one.pump_until_steady(1, 5)
    tool.send(m.Query(what="live", args={"job": "j"}))
    reply = tool.expect(m.Reply)
    live = msgspec.msgpack.decode(reply.body, type=views.Live)
    assert (live.state, live.generation, live.loss) == ("running", 1, 1.0)
    assert [rank.rank for rank in live.ranks] == [0, 1]
    assert all(rank.phase == "step" and rank.step >= 0 for rank in live.ranks)
    assert [node.node for node in live.nodes] == ["n0"]
    assert live.incident is None
    one.on_order = lambda order: time.sleep(0.3)
    one.rank_exits(0, signal=9)
    seen = set()
    deadline = time.monotonic() + DEADLINE_S
    while "isolating" not in seen:
        assert time.monotonic() < deadline, seen
        tool.send(m.Query(what="live", args={"job": "j"}))
        live = msgspec.msgpack.decode(tool.expect(m.Reply).body, type=views.Live)
        if live.incident is not None:
            seen.add(live.incident_stage)
            assert live.last_reason
