"""The demo's processes: the front it starts, the server it finds, the ones it kills. Owns every signal that is sent.

A process is signalled only if it is known to be ours: by pid and start time, or as our own child. Never by name.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from keepstep.adapters.local import procfs, sweep
from keepstep.demo.order import ORDER_VARIABLE
from keepstep.demo.plan import DemoPlan
from keepstep.server.state_dir import StateDir
from keepstep.wire.environment import TOKEN

END_WAIT_S = 25.0
"""For the front to see its launchers off, which give their ranks 5 s and their last checkpoint longer."""
KILL_WAIT_S = 30.0
_POLL_S = 0.02


class Process(NamedTuple):
    """A process, safe against reuse of its pid."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return procfs.is_alive(self.pid, self.started)

    def signal(self, number: signal.Signals) -> bool:
        """False where it is gone already."""
        pidfd = sweep.open_if_same(self.pid, self.started)
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True


def process(pid: int) -> Process | None:
    started = procfs.start_ticks(pid)
    return Process(pid, started) if started is not None else None


def kill_at_once(victims: Iterable[Process], number: signal.Signals = signal.SIGKILL) -> None:
    for victim in list(victims):
        victim.signal(number)


def wait_gone(victims: Iterable[Process], wait_s: float = KILL_WAIT_S) -> bool:
    """False where one is still there after ``wait_s``."""
    deadline = time.monotonic() + wait_s
    waiting = [victim for victim in victims if victim.alive]
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        waiting = [victim for victim in waiting if victim.alive]
    return not waiting


class Front:
    """One ``keepstep run`` as our child, in a session of its own: Ctrl-C in the terminal is for the demo to pass on."""

    def __init__(self, command: list[str], log: Path, order_file: Path) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="keepstep-demo-")
        # Sockets whose path would be too long go to the temporary directory; killed launchers cannot remove them.
        surroundings = {**os.environ, "TMPDIR": self._scratch.name, ORDER_VARIABLE: str(order_file)}
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=surroundings
            )
        self.process = process(self._child.pid)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._child.poll()

    def kill(self) -> None:
        """As a power cut would: no goodbye. Its launchers, and their ranks, die with it."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """End it, politely first. Nothing of it is left when this returns."""
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            if self._child.poll() is not None:
                break
            self._child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(END_WAIT_S)
        self._scratch.cleanup()


def server_process(state: StateDir) -> Process | None:
    """The server that holds the state directory now; None where none does."""
    try:
        found = process(int(state.lock_file.read_text()))
    except (FileNotFoundError, ValueError):
        return None
    return found if found is not None and str(state.path) in _arguments(found.pid) else None


def end_server(state: StateDir) -> None:
    """The embedded server would leave by itself after a while; the demo does not leave it behind."""
    server = server_process(state)
    if server is None:
        return
    server.signal(signal.SIGTERM)
    if not wait_gone([server]):
        server.signal(signal.SIGKILL)
        wait_gone([server])


def left_behind(plan: DemoPlan) -> list[Process]:
    """Processes that carry the job's token, or were started for its state directory."""
    mark, state = f"{plan.job}/".encode(), str(plan.state.path)
    found = []
    for pid in procfs.pids():
        if pid != os.getpid() and (
            procfs.environment(pid).get(TOKEN.encode(), b"").startswith(mark) or state in _arguments(pid)
        ):
            seen = procfs.stat(pid)
            if seen is not None and seen.state not in "ZX":
                found.append(Process(pid, seen.start_ticks))
    return found


def _arguments(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
