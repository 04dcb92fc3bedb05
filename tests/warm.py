"""Programs forked from an interpreter that has imported what they need: the seconds of an import are paid once, not for every
rank of every run. Owns that interpreter and how ranks are started in it. What they do is theirs.

Each program is a process of its own with its own environment, directory and output, and ends as any other does.
"""

import contextlib
import importlib
import io
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DEADLINE_S = 500.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""What the interpreter is started with: a process with threads cannot be forked."""


class Warm:
    """An interpreter with ``modules`` in it. Not for several threads."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | ONE_THREAD,
        )  # fmt: skip
        self._running: set[int] = set()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, command: Sequence[str], folder: Path, output: Path, environment: Mapping[str, str]) -> int:
        """The pid of a process that runs ``command``, a script and its arguments. Its standard output is appended to
        ``output``, its errors to a file beside it, with the suffix ``.err``."""
        pid = int(
            self._ask(command=list(command), folder=str(folder), output=str(output), environment=dict(environment))
        )
        self._running.add(pid)
        return pid

    def wait(self, pid: int) -> int:
        """The status with which a process ended, as in ``Popen.returncode``. Raises TimeoutError if it does not end."""
        watch = os.pidfd_open(pid)
        try:
            if not select.select([watch], [], [], DEADLINE_S)[0]:
                raise TimeoutError(f"process {pid} did not end within {DEADLINE_S:g} s")
        finally:
            os.close(watch)
        self._running.remove(pid)
        return int(self._ask(wait=pid))

    def kill(self, pid: int) -> None:
        """SIGKILL, if it was not waited for."""
        if pid in self._running:
            os.kill(pid, signal.SIGKILL)
            self.wait(pid)

    def run(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
        """What a program says that ends well."""
        return self.run_ranks([command], folder, [environment])

    def run_ranks(
        self, commands: Sequence[Sequence[str]], folder: Path, environments: Sequence[Mapping[str, str]]
    ) -> str:
        """What programs say that run together and end well."""
        with self.started(commands, folder, environments) as (pids, output):
            errors = output.with_suffix(".err")
            codes = [self.wait(pid) for pid in pids]
            assert not any(codes), f"{commands[0]} ended with {codes}:\n{output.read_text()}\n{errors.read_text()}"
            return output.read_text()

    @contextlib.contextmanager
    def started(
        self, commands: Sequence[Sequence[str]], folder: Path, environments: Sequence[Mapping[str, str]]
    ) -> Iterator[tuple[list[int], Path]]:
        """Their pids, and the file with all that they say. Who still runs at the end is killed."""
        output = folder / f"said-{uuid.uuid4().hex}"
        for path in (output, output.with_suffix(".err")):
            path.touch()
        pids = [self.start(each, folder, output, env) for each, env in zip(commands, environments, strict=True)]
        try:
            yield pids, output
        finally:
            for pid in pids:
                self.kill(pid)

    def _ask(self, **what: Any) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the warm interpreter has ended"
        return answer


@contextlib.contextmanager
def as_torchrun(ranks: int, environment: Mapping[str, str]) -> Iterator[list[dict[str, str]]]:
    """The environment of each rank, as ``torchrun --standalone`` gives it, with the store of their rendezvous beside them."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": uuid.uuid4().hex, "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
    }  # fmt: skip
    yield [{**environment, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    del store


def _serve() -> dict[str, Any] | None:
    """Answers until there is nobody left to answer to; None then. In a forked process it returns with what that is to run."""
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if "wait" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                return asked
        print(answer, flush=True)
    return None


def _become(asked: dict[str, Any]) -> None:
    """The process of a program."""
    output, appending = Path(asked["output"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(output, appending), 1)
    os.dup2(os.open(output.with_suffix(".err"), appending), 2)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    # A line of one rank goes out whole, also where PYTHONUNBUFFERED would have its end follow by itself.
    sys.stdout.reconfigure(write_through=False, line_buffering=True)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["command"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    for _module in sys.argv[1:]:
        importlib.import_module(_module)
    if (_asked := _serve()) is not None:
        _become(_asked)
