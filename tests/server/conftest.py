"""A real server process, and a scripted launcher that speaks the wire to it. The launcher drives; it is no part of Keepstep."""

import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from keepstep.adapters.server_link.address import parse_address
from keepstep.core import facts as f
from keepstep.core import intents as i
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.server.state_dir import StateDir
from keepstep.server.views import JobView
from keepstep.wire import messages as m

DEADLINE_S = 90.0
"""Bounds a failure; nothing is measured by it."""
PATIENCE = """
[hang]
step_floor_s = 300.0
[silence]
lease_s = 300.0
agent_lease_s = 300.0
presume_s = 300.0
[orders.timeout_s]
AskWitness = 300.0
CollectStacks = 300.0
Fence = 300.0
Inject = 300.0
Launch = 300.0
[incident_deadline_s]
isolating = 900.0
[capacity]
start_settle_s = 300.0
[drills]
detect_s = 120.0
"""
"""A policy for tests that are not about silence: where the machine pauses a process, this one with its scripted launchers too,
nobody has failed. A connection that breaks, and a process that ends, are noticed as ever."""


class ServerProcess:
    """``python -m keepstep.server`` on a state directory; start, kill, start again."""

    def __init__(self, state: StateDir, *options: str) -> None:
        self.state = state
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        state.create()

    def patient(self) -> "ServerProcess":
        """It will be: see PATIENCE."""
        file = self.state.path / "patience.toml"
        file.write_text(PATIENCE)
        self.options = (*self.options, "--policy", str(file))
        return self

    def start(self, wait: bool = True) -> "ServerProcess":
        """``wait``: until it answers as what it is, leading or following."""
        before = self.state.address_file.stat().st_mtime_ns if self.state.address_file.exists() else 0
        with self.state.log.open("ab") as log:
            argv = [sys.executable, "-m", "keepstep.server", "--state-dir", str(self.state.path), *self.options]
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + DEADLINE_S
        if not wait:
            return self
        while not self.state.address_file.exists() or self.state.address_file.stat().st_mtime_ns == before:
            assert self.process.poll() is None, f"the server ended: {self.state.log.read_text()}"
            assert time.monotonic() < deadline, f"the server does not come up: {self.state.log.read_text()}"
            time.sleep(0.005)
        return self

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def address(self) -> str:
        text = self.state.address()
        assert text is not None
        return text

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=DEADLINE_S)

    def restart(self) -> None:
        self.kill()
        self.start()


class Client:
    """One connection that says Hello and then whatever the test wants."""

    def __init__(self, server: ServerProcess, role: str, **hello: object) -> None:
        self.socket: socket.socket = parse_address(server.address).connect(60.0)
        self.buffer = bytearray()
        words = {"protocol": m.PROTOCOL, "token": server.state.token(), "role": role} | hello
        try:
            self.send(m.Hello(**words))
        except OSError:
            self.close()
            raise

    def send(self, message: m.Message) -> None:
        self.socket.sendall(m.encode(message))

    def receive(self, timeout_s: float = DEADLINE_S) -> m.Message | None:
        """The next message; None where none comes in time. Raises ConnectionError at the end of the connection."""
        deadline = time.monotonic() + timeout_s
        while True:
            if len(self.buffer) >= 4:
                size = int.from_bytes(self.buffer[:4], "big")
                if len(self.buffer) >= 4 + size:
                    body = bytes(self.buffer[4 : 4 + size])
                    del self.buffer[: 4 + size]
                    return m.decode(body)
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self.socket], [], [], left_s)[0]:
                return None
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                raise ConnectionError("closed by the server")
            self.buffer += chunk

    def expect(self, kind: type, timeout_s: float = DEADLINE_S) -> m.Message:
        """The next message of a kind; others are passed over."""
        deadline = time.monotonic() + timeout_s
        while (message := self.receive(max(0.0, deadline - time.monotonic()))) is not None:
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} within {timeout_s} s")

    def close(self) -> None:
        self.socket.close()


class ScriptedLauncher:
    """A launcher without ranks: it makes up their progress. Reconnects, repeats reports, repeats answers by number."""

    def __init__(
        self, server: ServerProcess, job: str = "j", node: str = "n0", *, nproc: int = 2, nodes: int = 1
    ) -> None:
        self.server = server
        self.job, self.node, self.nproc, self.nodes = JobId(job), NodeId(node), nproc, nodes
        self.session = Session(f"s-{secrets.token_hex(4)}")
        self.client: Client | None = None
        self.reports: dict[int, m.Report] = {}
        self.next_report = 1
        self.orders: list[i.Order] = []
        """Every order as it arrived, repetitions included."""
        self.answers: dict[int, f.Outcome] = {}
        self.generation = 0
        self.ranks: tuple[int, ...] = ()
        self.step = -1
        self.halted = False
        """A rank is gone: the others wait for it."""
        self.stores = 0
        self.inventory: f.Inventory | None = None
        self.ended: m.JobEnded | None = None
        self.superseded: list[int] = []
        self.boot_id, self.pid, self.pid_start = "boot", 0, 0
        """Which process a witness is to look for."""
        self.on_order: Callable[[i.Order], None] = lambda order: None
        """Called before an order is answered."""
        self.joined = False

    def fresh_store(self) -> str:
        self.stores += 1
        return f"127.0.0.1:{10000 + self.stores}"

    def submit_and_join(self) -> None:
        elasticity = f.Elasticity(min_nodes=self.nodes, max_nodes=self.nodes)
        spec = f.JobSpec(argv=("train.py",), nproc_per_node=self.nproc, elasticity=elasticity)
        self.report(f.JobSubmitted(job=self.job, spec=spec))
        self.join()

    def join(self) -> None:
        devices = tuple(f.Device(slot=slot, serial=f"{self.node}-{slot}") for slot in range(self.nproc))
        self.report(
            f.NodeJoined(
                job=self.job, node=self.node, session=self.session, devices=devices, address="127.0.0.1",
                boot_id=self.boot_id, pid=self.pid, pid_start=self.pid_start,
                running_generation=self.generation, store=self.fresh_store(), inventory=self.inventory,
            )
        )  # fmt: skip

    def report(self, fact: f.Fact) -> None:
        message = m.Report(number=self.next_report, fact=fact)
        self.next_report += 1
        self.reports[message.number] = message
        self.send(message)

    def send(self, message: m.Message) -> None:
        if self.client is not None:
            with contextlib.suppress(OSError):
                self.client.send(message)

    def connect(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.client is None:
            with contextlib.suppress(OSError):
                self.client = Client(self.server, "launcher", job=self.job, node=self.node, session=self.session)
                welcome = self.client.receive()
                assert isinstance(welcome, m.Welcome), welcome
                self.acknowledge(welcome.acked)
                return
            assert time.monotonic() < deadline, f"cannot connect: {self.server.state.log.read_text()}"
            time.sleep(0.005)

    def acknowledge(self, number: int) -> None:
        self.reports = {n: report for n, report in self.reports.items() if n > number}

    def pump(self, timeout_s: float = 0.02) -> None:
        """Take what arrives for a while, and send one beat."""
        if not self.joined:
            self.joined = True
            self.submit_and_join()
        if self.client is None:
            leaving = any(isinstance(order.intent, i.EndJob) for order in self.orders)
            again = (self.next_report > 3 or bool(self.orders)) and not leaving
            self.connect()
            for report in list(self.reports.values()):
                self.send(report)
            if again:
                self.join()
        assert self.client is not None
        try:
            self.beat()
            message = self.client.receive(timeout_s)
            while message is not None:
                self.take(message)
                message = self.client.receive(0) if self.client is not None else None
        except OSError:
            self.disconnect()

    def disconnect(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    def beat(self) -> None:
        ranks = tuple(
            m.RankVitals(
                rank=rank, phase="step", step=self.step, idle_s=0.0, phase_s=0.01, step_time_s=0.01, loss=1.0, state="R",
                cpu_s=0.0,
            )
            for rank in self.ranks
        )  # fmt: skip
        self.send(m.Beat(generation=self.generation, running_s=0.02, ranks=ranks))
        if self.ranks and not self.halted:
            self.step += 1

    def take(self, message: m.Message) -> None:
        match message:
            case m.Ack():
                self.acknowledge(message.number)
            case m.Command(order=order):
                self.orders.append(order)
                self.on_order(order)
                if order.number not in self.answers:
                    self.answers[order.number] = self.carry_out(order.intent)
                self.report(f.Answered(intent=order.number, outcome=self.answers[order.number]))
            case m.JobEnded():
                self.ended = message
            case m.Superseded():
                self.superseded.append(message.generation)
            case _:
                raise AssertionError(f"a launcher was sent {message}")

    def carry_out(self, intent: i.Intent) -> f.Outcome:
        match intent:
            case i.Fence():
                killed, self.ranks = len(self.ranks), ()
                return f.Fenced(
                    generation=intent.generation,
                    proof="killed",
                    killed=killed,
                    inventory=self.inventory,
                    store=self.fresh_store(),
                )
            case i.Launch():
                assert not self.ranks, f"launched generation {intent.generation} beside {self.generation}"
                assert intent.generation > self.generation, "the same generation was launched twice"
                self.generation = intent.generation
                self.ranks = tuple(place.rank for place in intent.ranks)
                self.step, self.halted = intent.restore.step if intent.restore else -1, False
                return f.Launched(pids={rank: 1000 + rank for rank in self.ranks})
            case i.VerifyCheckpoint():
                return f.CheckpointVerified(key=intent.restore.key)
            case i.CollectStacks():
                return f.StacksTaken(stacks=())
            case _:
                return f.Done()

    def hold_state_of(self, step: int) -> None:
        """Offer a sealed RAM snapshot of every rank from now on."""
        parts = {rank: (f"d{rank}",) for rank in range(self.nproc)}
        offer = f.RamOffer(
            step=step,
            generation=self.generation,
            world_size=self.nproc,
            parts=parts,
            held=tuple(f"d{rank}" for rank in range(self.nproc)),
        )
        self.inventory = f.Inventory(ram=(offer,))

    def rank_exits(self, rank: int, *, signal: int | None = None, exit_code: int | None = None) -> None:
        self.halted = True
        self.report(
            f.RankExited(
                job=self.job, node=self.node, session=self.session, generation=self.generation, rank=rank, slot=rank,
                signal=signal, exit_code=exit_code, step=self.step,
            )
        )  # fmt: skip

    def pump_until(self, true: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not true():
            assert time.monotonic() < deadline, (
                f"{what}: not within {DEADLINE_S} s\n{self.server.state.log.read_text()}"
            )
            self.pump()

    def pump_until_steady(self, generation: int, step: int) -> None:
        """The generation has made the step, and the server knows that all is well: it may be behind what it was told."""
        self.pump_until(
            lambda: self.generation == generation and self.step >= step and self._is_steady(),
            f"generation {generation} makes steps",
        )

    def _is_steady(self) -> bool:
        for server in self.servers():
            with contextlib.suppress(OSError), contextlib.closing(Client(server, "tool")) as tool:
                if not isinstance(tool.receive(), m.Welcome):
                    continue
                tool.send(m.Query(what="job", args={"id": self.job}))
                job = msgspec.msgpack.decode(tool.expect(m.Reply).body, type=JobView)
                return (job.generation, job.state, job.incident) == (self.generation, "running", None)
        return False

    def servers(self) -> list[ServerProcess]:
        """Any of them answers a question."""
        return [self.server]

    def kinds(self) -> list[str]:
        """Distinct orders, in order of their first arrival."""
        first = {order.number: type(order.intent).__name__ for order in reversed(self.orders)}
        return [first[number] for number in sorted(first)]


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "state")


@pytest.fixture
def server(state: StateDir) -> Iterator[ServerProcess]:
    running = ServerProcess(state).patient()
    running.start()
    yield running
    running.kill()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(running.address.removeprefix("unix:"))


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a module that neither end it nor mind what others have asked of it."""
    running = ServerProcess(StateDir(tmp_path_factory.mktemp("lasting") / "state"))
    running.start()
    yield running
    running.kill()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(running.address.removeprefix("unix:"))


@pytest.fixture
def reach(lasting: ServerProcess) -> Iterator[Callable[..., Client]]:
    """Opens clients to the lasting server; closes them at the end."""
    yield from _clients_of(lasting)


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Callable[..., Client]]:
    """Opens clients to the server; closes them at the end."""
    yield from _clients_of(server)


def _clients_of(server: ServerProcess) -> Iterator[Callable[..., Client]]:
    opened: list[Client] = []

    def open_it(role: str = "tool", **hello: object) -> Client:
        opened.append(Client(server, role, **hello))
        return opened[-1]

    yield open_it
    for client in opened:
        client.close()


@pytest.fixture
def launcher(server: ServerProcess) -> Iterator[Callable[..., ScriptedLauncher]]:
    """Makes scripted launchers; disconnects them at the end."""
    made: list[ScriptedLauncher] = []

    def make(*names: str, **options: int) -> ScriptedLauncher:
        made.append(ScriptedLauncher(server, *names, **options))
        return made[-1]

    yield make
    for one in made:
        one.disconnect()
