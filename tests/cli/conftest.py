"""A recorded journal (decisions included, so that it replays alike whatever the engine would decide today), and the CLI."""

import contextlib
import functools
import io
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.server.conftest import PATIENCE, ServerProcess
from typer.main import get_command

from keepstep.adapters.database.opening import open_journal
from keepstep.cli.app import app
from keepstep.core.decision import Record
from keepstep.core.facts import PolicySet
from keepstep.server.state_dir import StateDir

from .checkpoints import Job

RUN_DEADLINE_S = 120.0

HERE = Path(__file__).parent


class Line(msgspec.Struct):
    at_s: float
    record: Record


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded journal, to be copied."""
    path = tmp_path_factory.mktemp("recording")
    journal = open_journal(path / "journal.db")
    for text in (HERE / "recorded.jsonl").read_bytes().splitlines():
        line = msgspec.json.decode(text, type=Line)
        journal.append(line.at_s, [line.record])
    journal.close()
    return path


@pytest.fixture
def recorded(recording: Path, tmp_path: Path) -> Path:
    """A state directory with the recorded journal; no server runs for it."""
    shutil.copytree(recording, tmp_path, dirs_exist_ok=True)
    return tmp_path


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@functools.lru_cache
def _program(_commands: int, _groups: int) -> Any:
    """The commands, made once for as many as there are: some come late. To make them costs more than most of them do, which
    is why this is not Typer's own runner."""
    return get_command(app)


def _invoke(arguments: list[str]) -> Done:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    stdin, sys.stdin, code = sys.stdin, io.TextIOWrapper(io.BytesIO()), 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            _program(len(app.registered_commands), len(app.registered_groups)).main(arguments, prog_name="keepstep")
    except SystemExit as end:
        assert end.code is None or isinstance(end.code, int)
        code = end.code or 0
    finally:
        sys.stdin = stdin
    return Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


@pytest.fixture
def keepstep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Done]]:
    """Runs a command of the CLI to its end, in this process: these commands start none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KEEPSTEP_STATE_DIR", raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def call(*arguments: object, columns: int = 100) -> Done:
        for name, value in {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}.items():
            monkeypatch.setenv(name, value)
        return _invoke(list(map(str, arguments)))

    yield call
    monkeypatch.undo()
    time.tzset()


class Run:
    """``keepstep run`` as a process. Its embedded server is ended with the test."""

    def __init__(self, state: Path, *arguments: object) -> None:
        self.state = state
        self.output = state.with_name(f"{state.name}-{secrets.token_hex(3)}.out")
        argv = [sys.executable, "-m", "keepstep.cli", "run", "--state-dir", str(state), *map(str, arguments)]
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                argv, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, process_group=0
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, true: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + RUN_DEADLINE_S
        while not true():
            assert self.process.poll() is None, f"{what}: the run has ended\n{self.text()}"
            assert time.monotonic() < deadline, f"{what}: not within {RUN_DEADLINE_S} s\n{self.text()}"
            time.sleep(0.02)

    def end(self) -> int:
        try:
            return self.process.wait(timeout=RUN_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run does not end\n{self.text()}\n{self.server_log()}") from None

    def server_log(self) -> str:
        log = self.state / "server.log"
        return log.read_text() if log.exists() else ""

    def server_pid(self) -> int:
        """0 while nobody, or nobody yet, has written it."""
        return int((self.state / "server.lock").read_text() or 0)

    def launchers(self) -> dict[str, int]:
        """Node -> pid of the launchers that are children of this front."""
        found = {}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "--node" in words:
                found[words[words.index("--node") + 1]] = int(pid)
        return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs in one state directory, under a patient policy; at the end of the test nothing of them is left."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with contextlib.closing(open_journal(state / "journal.db")) as journal:
        journal.append(time.time(), [PolicySet(by="test", overrides=PATIENCE)])
    runs: list[Run] = []

    def start(*arguments: object) -> Run:
        runs.append(Run(state, *arguments))
        return runs[-1]

    yield start
    for one in runs:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
    lock = state / "server.lock"
    if lock.exists():
        _end_server(int(lock.read_text() or 0), state)


def _end_server(pid: int, state: Path) -> None:
    """The lock file names the last server; it is only ended where it is one of this state directory."""
    try:
        if str(state).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has left by itself


@pytest.fixture
def stepping(tmp_path: Path) -> Path:
    """A script that makes steps and no use of torch: ``stepping.py STEPS [pause]``. Logs `generation rank step`.
    STEPS with a + is without end in the first generation, so that what is done to it always meets it at work."""
    path = tmp_path / "stepping.py"
    path.write_text(
        textwrap.dedent(
            f"""
            import os, sys, time
            from keepstep.wire import environment
            from keepstep.wire.progress import ProgressCell
            cell = ProgressCell(os.environ[environment.PROGRESS])
            cell.enter("step")
            rank, generation = int(os.environ["RANK"]), int(os.environ[environment.GENERATION])
            endless = sys.argv[1].endswith("+") and generation == 1
            for step in range(1, 10**9 if endless else int(sys.argv[1].rstrip("+")) + 1):
                time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0.02)
                cell.step_done(step, 20_000_000, 1.0)
                with open({str(tmp_path / "steps.log")!r}, "a") as log:
                    log.write(f"{{generation}} {{rank}} {{step}} {{os.getpid()}}\\n")
            """
        )
    )
    return path


@pytest.fixture
def steps(tmp_path: Path) -> Callable[[], list[tuple[int, int, int, int]]]:
    """(generation, rank, step, pid) of every step that was made."""

    def read() -> list[tuple[int, int, int, int]]:
        path = tmp_path / "steps.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(map(int, line.split())) for line in lines if line.count(" ") == 3]  # type: ignore[misc]

    return read


# ---- checkpoints


@pytest.fixture
def ask(keepstep, monkeypatch):
    """Runs a command that must end with a code; gives its JSON."""
    monkeypatch.delenv("KEEPSTEP_CHECKPOINT_DIR", raising=False)

    def call(*arguments: object, code: int = 0) -> Any:
        done = keepstep("checkpoint", *arguments, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    return call


@pytest.fixture
def refused(keepstep):
    """Runs a command that must be refused with a code; gives what it says."""

    def call(code: int, *arguments: object) -> str:
        done = keepstep("checkpoint", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        assert done.stdout == ""
        assert done.stderr.startswith("keepstep: ")
        return done.stderr

    return call


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """Steps 100, 200 and 300 of two ranks. Not to be changed."""
    directory = tmp_path_factory.mktemp("checkpoints") / "store"
    job = Job(directory)
    for step in (100, 200, 300):
        job.save(step)
    return directory


@pytest.fixture
def store(original, tmp_path):
    shutil.copytree(original, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateDir]:
    """A state directory that a real server leads, for the tests of one file."""
    state = StateDir(tmp_path_factory.mktemp("served") / "state")
    server = ServerProcess(state).start()
    yield state
    server.kill()
    Path(server.address.removeprefix("unix:")).unlink(missing_ok=True)
