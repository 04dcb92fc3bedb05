"""Several real servers on one real PostgreSQL: one leads, whatever is done to it, and a recovery never starts twice."""

import contextlib
import itertools
import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.server.conftest import DEADLINE_S, Client, ScriptedLauncher, ServerProcess

from keepstep.adapters.database.opening import Database, open_database
from keepstep.core.decision import Decision
from keepstep.core.facts import ServerStarted
from keepstep.core.intents import Launch
from keepstep.server.replay import replay
from keepstep.server.state_dir import StateDir
from keepstep.server.status_queries import Status
from keepstep.wire import messages as m

LIFE = ["Launch", "Fence", "VerifyCheckpoint", "Launch", "EndJob"]
LEASE_S = 1.0
"""A machine that pauses a leader for longer than this changes the leader too: where a test wants one change and no other, or
none, it holds for LONG_S."""
LONG_S = 100 * DEADLINE_S
pytestmark = pytest.mark.timeout(600)


class Installation:
    """Two servers with one database and one secret. Looks to a launcher like one server that moves.

    The secret is nobody else's: a server of another test may get the port of one that was killed here."""

    def __init__(self, where: Path, url: str, lease_s: float = LEASE_S) -> None:
        self.url, self.lease_s = url, lease_s
        self.secret = secrets.token_hex(16)
        self.servers = [self._server(where / name) for name in ("a", "b")]
        self.state = self.servers[0].state
        self.clients: list[Client] = []

    def _server(self, where: Path) -> ServerProcess:
        state = StateDir(where)
        state.create()
        state.token_file.write_text(f"{self.secret}\n")
        options = ("--database", self.url, "--listen", "tcp:127.0.0.1:0", "--lease-s", str(self.lease_s))
        return ServerProcess(state, *options).patient()

    def client(self, role: str, **hello: object) -> Client:
        """Connected to whoever leads."""
        deadline = time.monotonic() + DEADLINE_S
        for server in itertools.cycle(self.servers):
            with contextlib.suppress(OSError):
                client = Client(server, role, **hello)
                self.clients.append(client)
                answer = client.receive(10.0)
                if isinstance(answer, m.Welcome):
                    client.welcome = answer
                    return client
                client.close()
            assert time.monotonic() < deadline, "nobody leads:\n" + self.logs()
            time.sleep(0.02)
        raise AssertionError

    def database(self) -> Database:
        """To look at."""
        return open_database(self.url, read_only=True, patience_s=DEADLINE_S)

    def leader(self) -> ServerProcess:
        """The one that the database names."""
        database = self.database()
        try:
            deadline = time.monotonic() + DEADLINE_S
            while time.monotonic() < deadline:
                known = database.leadership.leader()
                if known is not None and known.expires_in_s > 0:
                    for server in self.servers:
                        if server.state.address() == known.address and server.alive:
                            return server
                time.sleep(0.02)
        finally:
            database.close()
        raise AssertionError("nobody leads:\n" + self.logs())

    def terms(self) -> list[int]:
        """Of every server that led, the newest first."""
        database = self.database()
        try:
            entries = database.journal.mentioning(["fact:ServerStarted"])
            return [e.record.term for e in entries if isinstance(e.record, ServerStarted)]
        finally:
            database.close()

    def fail_over(self) -> None:
        """SIGKILL of the leader; the dead one comes back and follows."""
        dead = self.leader()
        dead.kill()
        dead.start(wait=False)

    def logs(self) -> str:
        return "\n".join(server.state.log.read_text() for server in self.servers)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.kill()


class MovingLauncher(ScriptedLauncher):
    """Finds the leader, and believes nobody with an older term than it has met."""

    term = 0

    def connect(self) -> None:
        client = self.server.client("launcher", job=self.job, node=self.node, session=self.session)
        assert client.welcome.term >= self.term, "an older leader let it in"
        self.term = client.welcome.term
        self.client = client
        self.acknowledge(client.welcome.acked)

    def servers(self) -> list[ServerProcess]:
        return self.server.servers


@pytest.fixture
def installation(tmp_path: Path, postgres_url: str) -> Iterator[Installation]:
    with contextlib.closing(Installation(tmp_path, postgres_url)) as made:
        for server in made.servers:
            server.start()
        yield made


@pytest.fixture
def steady(tmp_path: Path, postgres_url: str) -> Iterator[Installation]:
    """Nobody loses the lease."""
    with contextlib.closing(Installation(tmp_path, postgres_url, LONG_S)) as made:
        for server in made.servers:
            server.start()
        yield made


def live_through(launcher: ScriptedLauncher) -> None:
    """A whole life: start, a rank is killed, recovery from RAM, the end."""
    launcher.pump_until_steady(1, 6)
    launcher.hold_state_of(launcher.step - 1)
    launcher.rank_exits(1, signal=9)
    launcher.pump_until_steady(2, 14)
    for rank in range(launcher.nproc):
        launcher.rank_exits(rank, exit_code=0)
    launcher.ranks = ()
    launcher.pump_until(lambda: launcher.ended is not None, "the job ends")


def check(installation: Installation, launcher: ScriptedLauncher) -> int:
    """One recovery, one launch a generation, one chain; returns how many servers led."""
    assert launcher.ended.exit_code == 0
    assert launcher.kinds() == LIFE
    database = installation.database()
    try:
        entries = list(database.journal.read())
        books = replay(database.journal)
    finally:
        database.close()
    decided = [i for e in entries if isinstance(e.record, Decision) for i in e.record.intents]
    assert [i.generation for i in decided if isinstance(i, Launch)] == [1, 2]
    faults = [incident for incident in books.world.incidents.values() if incident.kind == "fault"]
    assert [incident.state.value for incident in faults] == ["recovered"]
    assert books.world.orders == {}
    terms = [e.record.term for e in entries if isinstance(e.record, ServerStarted)]
    assert terms == sorted(set(terms)), "two servers led under one term"
    return len(terms)


SLICE = {(1, True), (2, False), (3, True)}


@pytest.mark.parametrize(
    ("nth", "answered"),
    [
        pytest.param(
            nth, answered, id=f"{nth}-{kind}-{'after' if answered else 'before'}",
            marks=() if (nth, answered) in SLICE else pytest.mark.deep,
        )
        for nth, kind in enumerate(LIFE)
        for answered in (False, True)
    ],
)  # fmt: skip
def test_the_leader_is_killed_at_an_order(installation: Installation, nth: int, answered: bool) -> None:
    one = MovingLauncher(installation)
    seen, kill_now = itertools.count(), []

    def on_order(order):
        if order.number not in one.answers and next(seen) == nth:
            if answered:
                kill_now.append(order.number)
            else:
                installation.fail_over()

    one.on_order = on_order
    pump = one.pump

    def pump_and_kill(timeout_s: float = 0.02) -> None:
        pump(timeout_s)
        if kill_now:
            kill_now.clear()
            installation.fail_over()

    one.pump = pump_and_kill
    live_through(one)
    deadline = time.monotonic() + DEADLINE_S
    while len(installation.terms()) < 2:  # killed at its last word to the job, which therefore waited for nobody
        assert time.monotonic() < deadline, "nobody led again:\n" + installation.logs()
        time.sleep(0.05)
    check(installation, one)


def test_a_leader_that_was_stopped_wakes_up_as_a_follower(installation: Installation) -> None:
    one = MovingLauncher(installation)
    one.pump_until_steady(1, 6)
    first = installation.leader()
    os.kill(first.process.pid, signal.SIGSTOP)
    one.disconnect()
    other = next(server for server in installation.servers if server is not first)
    deadline = time.monotonic() + DEADLINE_S
    while installation.leader() is not other:
        assert time.monotonic() < deadline, installation.logs()
        time.sleep(0.02)
    os.kill(first.process.pid, signal.SIGCONT)
    live_through(one)
    assert check(installation, one) >= 2
    while "does not lead any more" not in first.state.log.read_text():
        assert time.monotonic() < deadline + DEADLINE_S, installation.logs()
        time.sleep(0.02)
    assert first.process.poll() is None
    while not turned_away(installation, one):
        assert time.monotonic() < deadline + DEADLINE_S, installation.logs()


def turned_away(installation: Installation, launcher: ScriptedLauncher) -> bool:
    """By whoever follows."""
    leader = installation.leader()
    follower = next(server for server in installation.servers if server is not leader)
    hello = {"job": launcher.job, "node": launcher.node, "session": launcher.session}
    with contextlib.closing(Client(follower, "launcher", **hello)) as late:
        return isinstance(late.receive(), m.NotLeader)


def test_a_leader_that_is_told_to_end_gives_the_lease_back(steady: Installation) -> None:
    """The lease holds for longer than anybody here waits: it cannot have run out."""
    first = steady.leader()
    first.process.terminate()
    first.process.wait(DEADLINE_S)
    assert steady.leader() is not first


def test_a_follower_answers_and_passes_on_what_is_asked(steady: Installation) -> None:
    installation, one = steady, MovingLauncher(steady)
    one.pump_until(lambda: one.step >= 3, "it runs")
    leader = installation.leader()
    follower = next(server for server in installation.servers if server is not leader)
    tool = Client(follower, "tool", user="ada")
    installation.clients.append(tool)
    assert isinstance(tool.receive(), m.Welcome)
    tool.send(m.Query(what="jobs"))
    deadline = time.monotonic() + DEADLINE_S
    while b"running" not in bytes(tool.expect(m.Reply).body):
        assert time.monotonic() < deadline
        tool.send(m.Query(what="jobs"))
    from keepstep.wire.requests import StopJob

    tool.send(m.Act(request=StopJob(job="j", reason="enough")))
    reply = tool.expect(m.Reply)
    assert reply.ok, reply.error
    one.pump_until(lambda: one.ended is not None, "the job ends")
    database = installation.database()
    try:
        (stop,) = database.journal.mentioning(["fact:JobStopRequested"])
    finally:
        database.close()
    assert stop.record.by == "ada"


def test_both_say_who_leads_and_the_follower_whom_it_follows(steady: Installation) -> None:
    leader = steady.leader()
    follower = next(server for server in steady.servers if server is not leader)
    said = [status_of(steady, server) for server in (leader, follower)]
    assert [one.leads for one in said] == [True, False]
    assert [one.leader for one in said] == [said[0].server] * 2 and said[1].server != said[0].server
    assert [one.leader_address for one in said] == [leader.address] * 2
    line = f"server {said[1].server} follows {said[0].server} at {leader.address}, term {said[0].term}"
    assert follower.state.log.read_text().count(line) == 1
    assert "follows" not in leader.state.log.read_text()


def status_of(installation: Installation, server: ServerProcess) -> Status:
    tool = Client(server, "tool")
    installation.clients.append(tool)
    assert isinstance(tool.receive(), m.Welcome)
    tool.send(m.Query(what="status"))
    reply = tool.expect(m.Reply)
    assert reply.ok, reply.error
    return msgspec.msgpack.decode(reply.body, type=Status)


def test_a_leader_without_its_database_decides_nothing_and_goes_on_when_it_is_back(
    tmp_path: Path, postgres: object, postgres_url: str
) -> None:
    installation = Installation(tmp_path, postgres_url)
    only = installation.servers[0].start()
    installation.servers = [only]
    try:
        one = MovingLauncher(installation)
        one.pump_until_steady(1, 6)
        one.hold_state_of(one.step - 1)
        postgres.stop()
        one.rank_exits(1, signal=9)
        time.sleep(2 * LEASE_S)  # it learns of the fault, cannot write it down, and steps down
        with contextlib.suppress(ConnectionError):
            while one.client is not None and (message := one.client.receive(0)) is not None:
                assert not isinstance(message, m.Command), "something was ordered that no journal knows"
        postgres.start()
        one.pump_until_steady(2, 14)
    finally:
        installation.close()
