"""The embedded server as a run finds it, where the server is scripted: one that answers is not always one that stays."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from tests.scripted_server import Listening, read_message

from keepstep.adapters.server_link.errors import ServerGone
from keepstep.cli.embedded import EmbeddedServer, running_address
from keepstep.cli.front import REACH_TRIES, reach
from keepstep.core.ids import JobId
from keepstep.server.state_dir import StateDir
from keepstep.server.views import Jobs
from keepstep.wire.messages import PROTOCOL, Message, NotLeader, Reply, Welcome, encode

DEADLINE_S = 60.0
WELCOME = Welcome(protocol=PROTOCOL, server="scripted", acked=0, term=1)
NO_JOBS = Reply(ok=True, body=msgspec.Raw(msgspec.msgpack.encode(Jobs(jobs=()))))


class Scripted(Listening):
    """Gives each connection in turn the words of its own list, one for each that it hears, and hangs up. The last list is for
    all that come later."""

    def __init__(self, path: Path, *conversations: list[Message]) -> None:
        super().__init__(path)
        self.left = list(conversations)
        self.met = 0

    def converse(self, connection: socket.socket) -> None:
        words = self.left[min(self.met, len(self.left) - 1)]
        self.met += 1
        for word in words:
            read_message(connection)
            connection.sendall(encode(word))


@pytest.fixture
def scripted(tmp_path: Path):
    """Makes a state directory with a scripted server."""
    made: list[Scripted] = []

    def make(*conversations: list[Message]) -> tuple[StateDir, Scripted]:
        state = StateDir(tmp_path)
        state.token()
        state.publish(state.address_file, f"unix:{tmp_path / 's'}")
        made.append(Scripted(tmp_path / "s", *conversations))
        made[-1].start()
        return state, made[-1]

    yield make
    for server in made:
        server.stop()


Make = Callable[..., tuple[StateDir, Scripted]]


def test_a_server_that_does_not_lead_is_none_to_run_on(scripted: Make) -> None:
    """It reads its journal still, or is on its way out: a run that waits for one must not take that for a refusal."""
    state, _ = scripted([NotLeader()])
    assert running_address(state, 0.1) is None


def test_a_server_that_leaves_before_it_is_asked_is_looked_for_again(scripted: Make) -> None:
    state, server = scripted([WELCOME], [], [WELCOME], [WELCOME, NO_JOBS])
    assert reach(EmbeddedServer(state, DEADLINE_S), state, JobId("j")) == state.address()
    assert server.met == 4


def test_that_has_an_end(scripted: Make) -> None:
    state, server = scripted(*[[WELCOME], []] * REACH_TRIES)
    with pytest.raises(ServerGone):
        reach(EmbeddedServer(state, DEADLINE_S), state, JobId("j"))
    assert server.met == 2 * REACH_TRIES


def test_a_server_that_somebody_keeps_is_waited_for(scripted: Make) -> None:
    """It is started anew: one that a run made would have neither its dashboard nor its listeners."""
    state, server = scripted([WELCOME])
    embedded = EmbeddedServer(state, DEADLINE_S, kept_wait_s=DEADLINE_S)
    assert embedded.ensure() == state.address()
    server.stop()
    state.kept_file.touch()
    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(embedded.ensure)
        with pytest.raises(TimeoutError):
            looking.exception(timeout=0.3)
        scripted([WELCOME])
        assert looking.result(DEADLINE_S) == state.address()
    assert not state.log.exists(), "none was started"


def test_but_not_for_ever(scripted: Make) -> None:
    state, server = scripted([WELCOME])
    embedded = EmbeddedServer(state, DEADLINE_S, kept_wait_s=0.1)
    embedded.ensure()
    server.stop()
    state.kept_file.touch()
    try:
        assert embedded.ensure() == state.default_address()
        assert not state.kept_file.exists(), "the newest is a run's"
    finally:
        embedded.see_off()
