"""Drives a real agent process: a scripted server on a unix socket that speaks the wire, and a folder for its files."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.scripted_server import Listening, read_message

import keepstep
from keepstep.core.facts import SignalSeen
from keepstep.core.intents import Intent, Order
from keepstep.wire import messages
from keepstep.wire.messages import Ack, Beat, Command, Hello, Message, Report, Welcome

DEADLINE_S = 150.0
"""Generous: the machine may be busy. A test that runs into it fails with what it waited for."""
TOKEN = "test-token"
Found = TypeVar("Found")


class ScriptedServer(Listening):
    """Accepts one agent after another, and journals reports as a server does: each number of a session once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.acks = True
        self.acked: dict[str, int] = {}
        self.reports: list[Report] = []
        """As they would stand in the journal."""
        self.repeated = 0
        self.beats: list[Beat] = []
        self.hellos: list[Hello] = []
        self._news = threading.Condition()

    def converse(self, connection: socket.socket) -> None:
        hello = read_message(connection)
        assert isinstance(hello, Hello)
        assert (hello.token, hello.role) == (TOKEN, "agent")
        session = str(hello.session)
        welcome = Welcome(protocol=messages.PROTOCOL, server="scripted", acked=self.acked.get(session, 0))
        self.say(connection, welcome)
        self._connection = connection
        self.hellos.append(hello)
        while True:
            message = read_message(connection)
            with self._news:
                self._keep(session, message)
                self._news.notify_all()
            if isinstance(message, Report) and self.acks:
                self.say(connection, Ack(number=message.number))

    def _keep(self, session: str, message: Message) -> None:
        if isinstance(message, Beat):
            self.beats.append(message)
        elif isinstance(message, Report) and message.number <= self.acked.get(session, 0):
            self.repeated += 1
        elif isinstance(message, Report):
            self.acked[session] = message.number
            self.reports.append(message)

    def order(self, number: int, intent: Intent) -> None:
        assert self._connection is not None, "no agent is connected"
        self.say(self._connection, Command(order=Order(number=number, intent=intent)))

    def facts(self, kind: type[Found]) -> list[Found]:
        return [report.fact for report in self.reports if isinstance(report.fact, kind)]

    def wait(self, what: str, found: Callable[[], Found | None]) -> Found:
        """The first answer of ``found`` that is one, asked again whenever something was heard."""
        deadline_s = time.monotonic() + DEADLINE_S
        with self._news:
            while not (answer := found()):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._news.wait(left_s):
                    told = [type(report.fact).__name__ for report in self.reports]
                    raise AssertionError(f"waited {DEADLINE_S} s in vain for {what}; heard {told}")
            return answer

    def signal(self, key: str) -> SignalSeen:
        return self.wait(
            f"signal {key}", lambda: next((seen for seen in self.facts(SignalSeen) if seen.signal == key), None)
        )

    def fact(self, kind: type[Found], fits: Callable[[Found], bool] = lambda _: True) -> Found:
        return self.wait(kind.__name__, lambda: next((one for one in self.facts(kind) if fits(one)), None))


class Bench:
    """An agent under test, its server, its kernel log in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir()
        (self.state / "token").write_text(TOKEN)
        self.server = ScriptedServer(folder / "s.sock")
        self.log = folder / "kern.log"
        self.log.write_text("<6>[    1.000000] Linux version 6.1\n")
        self.process: subprocess.Popen[bytes] | None = None
        self.output = folder / "agent.out"

    def start(self, config: str = "", sources: str = "kmsg") -> None:
        """``config`` is text of the configuration file, beside the kernel log's path."""
        path = self.folder / "agent.toml"
        path.write_text(f'[source.kmsg]\npath = "{self.log}"\n{config}')
        command = [
            sys.executable, "-m", "keepstep.agent", "--config", str(path), "--server", f"unix:{self.folder}/s.sock",
            "--node", "n0", "--state-dir", str(self.state), "--sources", sources,
        ]  # fmt: skip
        with open(self.output, "ab") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment(), cwd=self.folder
            )

    def write(self, *lines: str) -> None:
        with open(self.log, "a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def follows(self) -> bool:
        """Whether the agent has its kernel log open and stands at its end: what is written from now on, it reads."""
        assert self.process is not None
        size = self.log.stat().st_size
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(link) == str(self.log):
                    told = Path(f"/proc/{self.process.pid}/fdinfo/{link.name}").read_text()
                    return told.split()[:2] == ["pos:", str(size)]
        return False

    def end(self) -> int:
        """In good order; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.server.stop()


def environment() -> dict[str, str]:
    """Nothing of an agent or launcher that these tests run under."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KEEPSTEP_")}
    return {**kept, "PYTHONPATH": str(Path(keepstep.__file__).parents[1])}
