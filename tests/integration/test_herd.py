"""After the restart of a server a fleet comes back, nobody is refused, and the server answers others meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration import herd
from tests.ports import lasting_port

from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.server.state_dir import StateDir
from keepstep.server.views import Jobs

BACK_S = 400.0
"""Ends a failure; nothing is measured by it."""
DEADLINE_S = 120.0
ROUNDS = 4


class Herd:
    def __init__(self, server: "Server", count: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, herd.__file__, server.address, server.state.token(), str(count), server.identity_dir],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._line() == "up"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def look(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("look\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Server:
    """On one port, again and again."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.state = StateDir(folder / "state")
        self.state.create()
        self.address = f"{kind}:127.0.0.1:{lasting_port()}"
        self.identity_dir = str(self.state.path / "ca")
        """Its authority's certificate lies there; the clients here show the owner's token."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Since when it answers."""
        argv = [sys.executable, "-m", "keepstep.server", "--state-dir", str(self.state.path), "--listen", self.address]
        with self.state.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline_s = time.monotonic() + DEADLINE_S
        while not self.ask():
            assert time.monotonic() < deadline_s, self.state.log.read_text()[-2000:]
            time.sleep(0.05)
        return time.monotonic()

    def ask(self) -> bool:
        """Whether a new tool gets an answer."""
        try:
            with ToolClient(
                self.address, self.state.token(), identity_dir=self.identity_dir, timeout_s=DEADLINE_S
            ) as tool:
                tool.query("jobs", Jobs)
        except (ServerGone, ServerRefused):
            return False
        return True

    def kill(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    """Starts a server that listens on an address of the kind."""
    made: list[Server] = []

    def start_it(kind: str) -> Server:
        made.append(Server(tmp_path, kind))
        made[-1].start()
        return made[-1]

    yield start_it
    for one in made:
        one.kill()


@dataclass(frozen=True)
class Return:
    """How a fleet came back after a SIGKILL of its server."""

    outage_s: float
    """Until all were back."""
    vain: int
    """Connections to a server that led, and that ended without a welcome all the same."""
    knocks: int
    """Attempts to connect, of all of them."""
    passed: list[int]
    """For each answer that another client got meanwhile: how many of the fleet were welcomed while it waited."""


@pytest.mark.slow
def test_a_fleet_of_five_thousand_comes_back_and_nobody_is_turned_away(start: Callable[[str], Server]) -> None:
    """That they come spread out follows from their rule: see test_backoff.py."""
    count = 5_000

    def fits(seen: Return) -> bool:
        """Hardly anybody gives up waiting, and knocking at a closed door is rare, too."""
        return seen.vain <= count // 100 and seen.knocks <= count * (4 + seen.outage_s / 2.0)

    _in_one_of_some_rounds(start("tcp"), count, fits)


@pytest.mark.slow
def test_handshakes_of_a_fleet_do_not_starve_whoever_comes_with_them(start: Callable[[str], Server]) -> None:
    """Nobody who asks has to wait until a large part of the fleet has been shaken hands with."""
    count = 300
    _in_one_of_some_rounds(
        start("tls"), count, lambda seen: min(seen.passed) < count // 2 and seen.vain <= count // 100
    )


def _in_one_of_some_rounds(server: Server, count: int, fits: Callable[[Return], bool]) -> None:
    """Where the machine holds fleet, server or test up for seconds, that spoils a round. A fault of the server spoils each."""
    rounds = [_killed_and_back(server, count)]
    while not fits(rounds[-1]):
        assert len(rounds) < ROUNDS, rounds
        rounds.append(_killed_and_back(server, count))


def _killed_and_back(server: Server, count: int) -> Return:
    fleet = Herd(server, count)
    try:
        server.kill()
        down_s = time.monotonic()
        up_s = server.start()
        passed = [fleet.look()["up"]]
        while (seen := fleet.look())["up"] < count:
            assert time.monotonic() - up_s < BACK_S, f"{seen['up']} of {count} are back"
            assert server.ask(), "a tool finds the door closed"
            passed.append(fleet.look()["up"] - seen["up"])
            time.sleep(0.1)
        outage_s = time.monotonic() - down_s
    finally:
        fleet.close()
    assert seen["refused"] == []
    vain = sum(1 for made_s in seen["vain_s"] if made_s > up_s)
    return Return(outage_s=outage_s, vain=vain, knocks=seen["attempts"], passed=passed)
