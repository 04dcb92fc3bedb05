"""A real snapshot server as a process, its launcher's connection, and what it uses. Owns its end."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keepstep.checkpoint import SnapshotClient
from keepstep.checkpoint.snapshot.messages import (
    Begin,
    Committed,
    Control,
    FrameBuffer,
    Hold,
    SaveError,
    Stock,
    TakeInventory,
    frame,
    receive,
    to_launcher,
)
from keepstep.checkpoint.snapshot.policy import SnapshotPolicy

JOB = "bench"
PATIENCE_S = 60.0


class Server:
    """Use as a context manager. ``directory``: None for memory only."""

    def __init__(self, folder: Path, directory: Path | None, *, keep: int = 1) -> None:
        self.path = str(folder / f"socket-{os.urandom(4).hex()}")
        command = [sys.executable, "-m", "keepstep.checkpoint.snapshot", "--socket", self.path, "--job", JOB]
        command += ["--parent", str(os.getpid()), "--keep", str(keep)]
        command += ["--directory", str(directory)] if directory is not None else []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.address: str = ready["address"]
        self.pid: int = ready["pid"]
        self._events: list[Any] = []
        self._buffer: FrameBuffer = FrameBuffer(to_launcher)
        self._request = 0
        self._generation = 0
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(self.path)
        self._socket.sendall(frame(Control(job=JOB)))
        receive(self._socket, self._buffer)

    def begin(self, policy: SnapshotPolicy | None = None, peers: Sequence[str] = ()) -> int:
        """A new generation of one rank; returns its number."""
        self._generation += 1
        self._ask(
            Begin, generation=self._generation, world_size=1, policy=policy or SnapshotPolicy(), peers=tuple(peers)
        )
        return self._generation

    def client(self) -> SnapshotClient:
        return SnapshotClient(
            self.path, job=JOB, generation=self._generation, rank=0, world_size=1, patience_s=PATIENCE_S
        )

    def _ask(self, kind: Any, **fields: Any) -> Any:
        self._request += 1
        self._socket.sendall(frame(kind(request=self._request, **fields)))
        while True:
            message = receive(self._socket, self._buffer)
            if getattr(message, "request", None) == self._request:
                return message
            self._events.append(message)

    def stock(self) -> Stock:
        """What it has, once everything that was sealed is digested."""
        found: Stock = self._ask(TakeInventory)
        return found

    def hold(self, step: int) -> None:
        self._ask(Hold, step=step)

    def committed(self, step: int) -> Committed:
        """The event of a durable step; waits for it. Raises RuntimeError with the reason if the save failed."""
        while True:
            for event in self._events:
                if isinstance(event, SaveError):
                    raise RuntimeError(event.reason)
                if isinstance(event, Committed) and event.step == step:
                    self._events.remove(event)
                    return event
            self._events.append(receive(self._socket, self._buffer))

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()


def memory_bytes(pid: int) -> int:
    """What a process has resident beyond shared memory: slots are shared memory."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile"))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def available_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
