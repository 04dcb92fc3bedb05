"""A real job and two real servers on one real PostgreSQL, over TLS: the leader dies, twice, and the job hardly hears of it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ports import lasting_port
from tests.server.conftest import ServerProcess
from typer.testing import CliRunner

from keepstep.adapters.database.opening import open_database
from keepstep.cli.app import add_late, app
from keepstep.core.decision import Decision
from keepstep.core.facts import ServerStarted
from keepstep.core.intents import Launch
from keepstep.server.replay import replay
from keepstep.server.state_dir import StateDir

from .driver import PATIENT, Job, clean_environment, kill_hard

add_late(("join", "token"))


class Pair(Job):
    """Two servers with one database and one authority, and launchers that have joined and know both."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, policy="")
        policy = folder / "policy.toml"
        policy.write_text(PATIENT)
        first, second = StateDir(folder / "a"), StateDir(folder / "b")
        options = ("--database", url, "--policy", str(policy), "--lease-s", "2")
        self.servers = {address: ServerProcess(state, "--listen", address, *options)
                        for state, address in ((first, _address()), (second, _address()))}  # fmt: skip
        for server in self.servers.values():
            server.start()
            if server.state is first:
                shutil.copy(first.token_file, second.token_file)
                shutil.copytree(first.path / "ca", second.path / "ca", dirs_exist_ok=True)
        self.database = open_database(url, read_only=True, patience_s=60.0)

    def launch(self, node: str) -> None:
        token = self.command("token", "create", "--join", "--role", "launcher", "--name", node, state=self.any_state())
        own = StateDir(self.folder / node)
        self.command("join", next(iter(self.servers)), token, state=own)
        # The state directory is one that the nodes share, as is usual; the identities are their own.
        self.spawn(
            "keepstep.cli", "run", "--server", ",".join(self.servers), "--node", node, "--state-dir",
            str(self.state.path), "--job", self.name, "--nproc-per-node", "1", "--nodes", "2", *self.light("--steps", "100000"),
            KEEPSTEP_IDENTITY_DIR=str(own.path / "identity"),
        )  # fmt: skip

    def command(self, *words: str, state: StateDir) -> str:
        """In this process: these start none."""
        dropped = dict.fromkeys(os.environ.keys() - clean_environment().keys())
        done = CliRunner().invoke(app, [*words, "--state-dir", str(state.path)], env=dropped)
        assert done.exit_code == 0, done.stderr + self.said()
        return done.stdout.strip()

    def any_state(self) -> StateDir:
        return next(iter(self.servers.values())).state

    def leader(self) -> ServerProcess:
        def found() -> ServerProcess | None:
            known = self.database.leadership.leader()
            return self.servers[known.address] if known is not None else None

        return self.eventually("a leader", found)

    def another(self, than: ServerProcess) -> ServerProcess:
        """Waits until it leads."""
        return self.eventually("another leader", lambda: found if (found := self.leader()) is not than else None)

    def terms(self) -> int:
        """How many there were, each led by one server. A leader that the machine holds up for a lease makes one more."""
        entries = self.database.journal.mentioning(["fact:ServerStarted"])
        found = sorted(entry.record.term for entry in entries if isinstance(entry.record, ServerStarted))
        assert found == list(range(1, len(found) + 1))
        return len(found)

    def faults_closed(self) -> list[tuple[str, bool]]:
        """(State, closed) of every fault."""
        incidents = replay(self.database.journal).world.incidents.values()
        return [(x.state.value, x.closed_s is not None) for x in incidents if x.kind == "fault"]

    def launches(self) -> list[tuple[int, str]]:
        records = [entry.record for entry in self.database.journal.read()]
        orders = [intent for record in records if isinstance(record, Decision) for intent in record.intents]
        return sorted((i.generation, i.node) for i in orders if isinstance(i, Launch))

    def said(self) -> str:
        logs = (server.state.log.read_text() for server in self.servers.values())
        return super().said() + "\n--- servers\n" + "\n---\n".join(text[-3000:] for text in logs)

    def close(self) -> None:
        super().close()
        for server in self.servers.values():
            server.kill()
        self.database.close()


def _address() -> str:
    return f"tls:127.0.0.1:{lasting_port()}"


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str) -> Iterator[Pair]:
    made = Pair(tmp_path, postgres_url)
    yield made
    made.close()


def test_B16_the_leader_dies_while_training_and_the_next_one_in_the_middle_of_a_recovery(pair: Pair) -> None:
    for node in ("one", "two"):
        pair.launch(node)
    at = max(line.step for line in pair.reached(15))
    first = pair.leader()
    first.kill()
    pair.another(than=first)
    pair.eventually("its term", lambda: pair.terms() >= 2)
    pair.reached(at + 50, generation=1)
    assert pair.faults_closed() == []
    first.start()
    before = pair.reached(0)
    kill_hard(before[1].pid)
    second = pair.leader()
    second.kill()
    pair.eventually("the end of the recovery", lambda: pair.faults_closed() == [("recovered", True)])
    assert pair.leader() is not second and pair.terms() >= 3
    pair.reached(max(line.step for line in before) + 20, generation=2)
    assert {line.generation for line in pair.trace()} == {1, 2}
    assert pair.launches() == [(1, "one"), (1, "two"), (2, "one"), (2, "two")]
    resumed = min(line.step for line in pair.trace() if line.generation == 2 and line.step >= 0)
    assert resumed >= max(line.step for line in before) - 1, "more than the step in flight was lost"
    pair.check_trace()
    assert all(process.poll() is None for process in pair.processes), "a launcher left"
