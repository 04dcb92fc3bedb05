"""A real server process on one core, and what it uses of it."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keepstep.server.state_dir import StateDir

UP_WAIT_S = 60.0
_TICK = os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, state: StateDir, process: "subprocess.Popen[bytes]") -> None:
        self.state = state
        self.process = process

    @property
    def address(self) -> str:
        text = self.state.address()
        assert text is not None
        return text

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def rss_bytes(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0


def cpu_s(pid: int) -> float:
    """Of a process and all of its threads, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


@contextmanager
def server(*options: str, core: int = 0) -> Iterator[Server]:
    """On a state directory of its own and one core. Ends with the block."""
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder:
        state = StateDir(Path(folder) / "state")
        state.create()
        with running(state, "tcp:127.0.0.1:0", *options, core=core) as one:
            yield one


@contextmanager
def running(state: StateDir, listen: str, *options: str, core: int = 0) -> Iterator[Server]:
    """On that state directory, whatever a life before left there. Ends with the block."""
    state.address_file.unlink(missing_ok=True)
    with state.log.open("ab") as log:
        argv = ["taskset", "-c", str(core), sys.executable, "-m", "keepstep.server", "--state-dir", str(state.path)]
        process = subprocess.Popen(
            [*argv, "--listen", listen, *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        until_s = time.monotonic() + UP_WAIT_S
        while state.address() is None:
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"the server does not come up:\n{state.log.read_text()[-2000:]}")
            time.sleep(0.01)
        yield Server(state, process)
    finally:
        process.terminate()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def quantile(values: list[float], share: float) -> float:
    """The value that so many are not above; nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
