"""Snapshot servers as real processes, a blocking driver for their control connection, and small states."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keepstep.checkpoint import SnapshotClient
from keepstep.checkpoint.snapshot.messages import (
    Begin,
    Committed,
    Control,
    Flush,
    FrameBuffer,
    Hold,
    ListDisk,
    Notice,
    Quit,
    SaveError,
    Stock,
    TakeInventory,
    VerifyDisk,
    VerifyRam,
    frame,
    receive,
    to_launcher,
)

if TYPE_CHECKING:
    from tests.checkpoint.libraries import Runs

DEADLINE_S = 120.0
PROGRAMS = Path(__file__).parent / "programs"


class Node:
    """One snapshot server process and its control connection."""

    def __init__(
        self,
        socket_path: Path,
        directory: Path | None,
        *,
        job: str = "job",
        limit_bytes: int = 0,
        options: tuple[str, ...] = (),
    ) -> None:
        command = [sys.executable, "-m", "keepstep.checkpoint.snapshot"]
        command += ["--socket", str(socket_path), "--job", job, "--parent", str(os.getpid())]
        command += [*(["--directory", str(directory)] if directory is not None else []), *options]

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=limit if limit_bytes else None)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.address, self.path, self.job = ready["address"], str(socket_path), job
        self.events: list[Committed | SaveError] = []
        self._clients: list[SnapshotClient] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_S)
        self._socket.connect(self.path)
        self._buffer: FrameBuffer = FrameBuffer(to_launcher)
        self._number = 0
        self._socket.sendall(frame(Control(job=job)))
        receive(self._socket, self._buffer)

    def ask(self, kind: Any, **fields: Any) -> Any:
        self._number += 1
        self._socket.sendall(frame(kind(request=self._number, **fields)))
        while True:
            message = receive(self._socket, self._buffer)
            if getattr(message, "request", None) == self._number:
                return message
            self.events.append(message)

    def begin(self, generation: int, world_size: int, peers: list[str] | None = None) -> None:
        self.ask(Begin, generation=generation, world_size=world_size, peers=tuple(peers or []))

    def inventory(self) -> Stock:
        stock: Stock = self.ask(TakeInventory)
        return stock

    def list_disk(self) -> Stock:
        stock: Stock = self.ask(ListDisk)
        return stock

    def verify_ram(self, step: int, digests: tuple[str, ...]) -> Any:
        return self.ask(VerifyRam, step=step, digests=digests)

    def verify_disk(self, key: str) -> Any:
        return self.ask(VerifyDisk, key=key)

    def hold(self, step: int) -> None:
        self.ask(Hold, step=step)

    def flush(self, step: int) -> None:
        self.ask(Flush, step=step)

    def quit(self) -> None:
        self.ask(Quit)
        self.process.wait(DEADLINE_S)

    def event(self, kind: type[Committed] | type[SaveError] | type[Notice], step: int) -> Any:
        """The event of a step; waits for it."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and event.step == step:
                    return event
            self.events.append(receive(self._socket, self._buffer))

    def client(self, rank: int, world_size: int, generation: int = 1) -> SnapshotClient:
        """A rank's client, closed at the end of the test if not before."""
        client = SnapshotClient(
            self.path, job=self.job, generation=generation, rank=rank, world_size=world_size, patience_s=DEADLINE_S
        )
        self._clients.append(client)
        return client

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def close(self, within_s: float = DEADLINE_S) -> None:
        """Ends as a launcher's end ends it. ``within_s``: after that it is killed, which is no end to be proud of."""
        for client in self._clients:
            client.close()
        self._socket.close()
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def start(*, disk: bool = True, limit_bytes: int = 0, options: tuple[str, ...] = ()) -> Node:
        directory = tmp_path / "checkpoints" if disk else None
        nodes.append(Node(tmp_path / f"s{len(nodes)}", directory, limit_bytes=limit_bytes, options=options))
        return nodes[-1]

    yield start
    for node in nodes:
        # One may have been stopped.
        node.close(within_s=5.0)


@pytest.fixture
def start_program() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a script of ``programs/``; whatever still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAMS / name), *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any], str], Any]:
    """Ask until the answer is true; fails with what was waited for."""

    def wait(ask: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not (answer := ask()):
            assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s for {what}"
            time.sleep(0.01)
        return answer

    return wait


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of one run of tests have in common."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@pytest.fixture(scope="session")
def runs_of(shared: Path) -> "Callable[[str], Runs]":
    """What was run of a library, by its name. Skips where it is not installed."""
    from tests.checkpoint.libraries import runs_of

    return lambda library: runs_of(library, shared)
