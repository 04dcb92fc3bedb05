"""After the restart of a server a fleet comes back spread out, nobody is refused, and the server answers others meanwhile."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration import herd

from keepstep.adapters.server_link.backoff import AGENT
from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.server.state_dir import StateDir
from keepstep.server.views import Jobs

BACK_S = 30.0
"""Bound for a busy machine; an idle one needs little more than the last window."""
DEADLINE_S = 60.0


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
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"{kind}:127.0.0.1:{probe.getsockname()[1]}"
        self.identity_dir = str(self.state.path / "ca")
        """Its authority's certificate lies there; the clients here show the owner's token."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """When it answered."""
        argv = [sys.executable, "-m", "keepstep.server", "--state-dir", str(self.state.path), "--listen", self.address]
        with self.state.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline_s = time.monotonic() + DEADLINE_S
        while self.ask() is None:
            assert time.monotonic() < deadline_s, self.state.log.read_text()[-2000:]
            time.sleep(0.05)
        return time.monotonic()

    def ask(self) -> float | None:
        """Seconds that a new tool waits for an answer; None where nobody listens."""
        began_s = time.monotonic()
        try:
            with ToolClient(
                self.address, self.state.token(), identity_dir=self.identity_dir, timeout_s=DEADLINE_S
            ) as tool:
                tool.query("jobs", Jobs)
        except (ServerGone, ServerRefused):
            return None
        return time.monotonic() - began_s

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


@pytest.mark.slow
def test_five_thousand_agents_come_back_spread_out(start: Callable[[str], Server]) -> None:
    count = 5_000
    seen, _ = _killed_and_back(start("tcp"), count)
    assert len(seen["arrivals_s"]) <= 1.1 * count, "hardly anybody gave up waiting, or came before there was a leader"
    # Twice the even share of the first window, which a server that is back at once would meet.
    assert _peak(seen["arrivals_s"], 0.25) <= 2 * count * 0.25 / AGENT.first_s
    assert seen["attempts"] <= 6 * count, "knocking at a closed door is rare, too"


@pytest.mark.slow
def test_handshakes_of_a_fleet_do_not_starve_whoever_is_connected(start: Callable[[str], Server]) -> None:
    seen, longest_s = _killed_and_back(start("tls"), 300)
    assert len(seen["arrivals_s"]) <= 450, "some come before there is a leader"
    assert longest_s < 5.0


def _killed_and_back(server: Server, count: int) -> tuple[dict[str, Any], float]:
    """What the fleet saw after a SIGKILL, once all are back; and how long other clients waited at most meanwhile."""
    fleet = Herd(server, count)
    try:
        server.kill()
        up_s = server.start()
        waits_s = [0.0]
        while (seen := fleet.look())["up"] < count:
            assert time.monotonic() - up_s < BACK_S, f"{seen['up']} of {count} are back"
            answered = server.ask()
            assert answered is not None, "a tool finds the door closed"
            waits_s.append(answered)
            time.sleep(0.1)
    finally:
        fleet.close()
    took_s = max(seen["welcomes_s"]) - up_s
    peak_s = _peak(seen["arrivals_s"], 0.25) * 4
    print(
        f"{count} back {took_s:.1f} s after the start; {peak_s}/s at most; a tool waited {max(waits_s):.2f} s at most"
    )
    assert seen["refused"] == []
    return seen, max(waits_s)


def _peak(times_s: list[float], slice_s: float) -> int:
    """The most arrivals in any span of this length."""
    ordered, first, most = sorted(times_s), 0, 0
    for last, at_s in enumerate(ordered):
        while at_s - ordered[first] > slice_s:
            first += 1
        most = max(most, last - first + 1)
    return most
