"""Runs real jobs and judges them by ground truth: the process table, the trace that the ranks write, shared memory.

``Run`` is one ``keepstep run`` as a person starts it; ``Cluster`` is a server and launchers that were started one by one, as
Slurm would. Both end everything that carries their job's name, whatever a test does.
"""

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import typer

import keepstep
from keepstep.adapters.database.journal import SqlJournal
from keepstep.adapters.database.opening import open_journal
from keepstep.adapters.local import procfs
from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.cli.reading import ask
from keepstep.core.facts import Launched
from keepstep.core.intents import Launch
from keepstep.core.site_facts import PolicySet
from keepstep.server import views
from keepstep.server.replay import replay
from keepstep.server.state_dir import StateDir
from keepstep.wire.environment import TOKEN

from .light import reference

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LIGHT = HERE / "light.py"
GPT = ROOT / "examples" / "train_gpt.py"
DEADLINE_S = 300.0
"""Generous: the machine may be busy. It bounds a failure; nothing is measured by it."""
PATIENT = """
[hang]
step_floor_s = 600
[silence]
lease_s = 60
[capacity]
start_settle_s = 120
[orders.timeout_s]
Fence = 120
CollectStacks = 60
AskWitness = 60
"""
"""A policy for jobs in which nothing hangs and nobody is silent but by a test's own hand: that the machine holds one process
up for seconds must not look like a fault."""
QUICK = PATIENT.replace("step_floor_s = 600", "")
"""The same with the built-in deadline of steps, for jobs that hang."""
BUILT_IN = ""
Seen = TypeVar("Seen")


class Line(NamedTuple):
    """One completed step (or, with step -1, the birth) of one rank."""

    at_s: float
    generation: int
    rank: int
    world_size: int
    step: int
    pid: int
    node: str
    slot: int
    digest: str


class Job:
    """What ``Run`` and ``Cluster`` have in common: a state directory, a trace, and how a job is looked at."""

    def __init__(
        self, folder: Path, *, state: Path | None = None, name: str | None = None, policy: str = PATIENT
    ) -> None:
        self.folder = folder
        self.name = name or f"it-{secrets.token_hex(4)}"
        # A short path: sockets below it then need no stand-in elsewhere, which a killed launcher would leave behind.
        self.own_state = None if state else Path(tempfile.mkdtemp(prefix="keepstep-it-"))
        self.state = StateDir(state or self.own_state)
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.output = folder / "output"
        self.processes: list[subprocess.Popen[bytes]] = []
        if policy and self.own_state is not None:
            self.state.create()
            journal = open_journal(self.state.journal)
            journal.append(time.time(), [PolicySet(overrides=policy, by="the test")])
            journal.close()

    # ---- starting

    def spawn(self, *argv: str, **environment: str) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *argv], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=clean_environment() | environment, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def light(self, *options: str) -> tuple[str, ...]:
        return (str(LIGHT), "--work", str(self.work), *options)

    def release(self, generation: int = 1) -> None:
        """Lets the ranks of a generation of ``light.py`` go on that wait at its hold; 0 as there: those of every one."""
        (self.work / f"go-{generation}").touch()

    # ---- looking

    def said(self) -> str:
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        server = self.state.log.read_text(errors="replace") if self.state.log.exists() else ""
        return f"--- output\n{text[-6000:]}\n--- server\n{server[-6000:]}"

    def eventually(self, what: str, found: Callable[[], Seen | None], wait_s: float = DEADLINE_S) -> Seen:
        """What ``found`` returns once that is true; fails after ``wait_s`` with all that was said."""
        deadline_s = time.monotonic() + wait_s
        while True:
            began_s = time.monotonic()
            if answer := found():
                return answer
            if began_s > deadline_s:
                raise AssertionError(f"waited {wait_s:.0f} s in vain for {what}\n{self.said()}")
            # To look at a journal or a long trace costs as much as the job itself: half of the time belongs to that.
            time.sleep(max(0.01, time.monotonic() - began_s))

    def trace(self) -> list[Line]:
        path = self.work / "trace"
        text = path.read_text() if path.exists() else ""
        # The last line may be half there: a write over the border of two pages is seen in two parts.
        return [_parse(line) for line in text.split("\n")[:-1]]

    def reached(self, step: int, generation: int | None = None) -> list[Line]:
        """Waits until every rank of a generation (any, by default) has completed ``step``; the newest line of each."""

        def there_is_hope() -> bool:
            return any(process.poll() is None for process in self.processes) or bool(self.trace())

        def found() -> list[Line] | None:
            newest = {line.rank: line for line in self.trace() if generation in (None, line.generation)}
            lines = [newest[rank] for rank in sorted(newest)]
            if not there_is_hope():
                raise AssertionError(f"everything has ended before step {step}\n{self.said()}")
            there = lines and len({line.generation for line in lines}) == 1 and len(lines) == lines[0].world_size
            return lines if there and all(line.step >= step for line in lines) else None

        return self.eventually(f"step {step} of every rank (generation {generation})", found)

    def settled(self) -> None:
        """Waits until no incident leads the job, that of its start included: what is done to it then is a fault of its own."""

        def quiet() -> bool:
            live = self.query("live", views.Live, job=self.name)
            return live is not None and live.state == "running" and not live.incident

        self.eventually("a job without an incident", quiet)

    def at_work(self, step: int) -> list[Line]:
        """As ``reached``, once its start is verified."""
        lines = self.reached(step)
        self.settled()
        return lines

    def query(self, what: str, kind: type[Seen], **args: object) -> Seen | None:
        """One answer of the live server; None where none answers now."""
        address = self.state.address()
        if address is None or not self.state.token_file.exists():
            return None
        try:
            with ToolClient(address, self.state.token(), timeout_s=60.0) as server:
                return server.query(what, kind, **args)
        except (ServerGone, ServerRefused):
            return None

    def ask(self, what: str, kind: type[Seen], **args: object) -> Seen:
        """An answer of the server, or of the journal where none answers; again where the disk stalls longer than a command
        waits."""

        def found() -> Seen | None:
            with contextlib.suppress(typer.Exit):
                return ask(str(self.state.path), what, kind, **args)
            return None

        return self.eventually(f"an answer about {what}", found)

    def open_journal(self) -> SqlJournal:
        """To read it."""
        return open_journal(self.state.journal, read_only=True, patience_s=60.0)

    def live(self) -> views.Live:
        return self.eventually(f"a look at {self.name}", lambda: self.query("live", views.Live, job=self.name))

    def launchers(self) -> dict[str, int]:
        """Node -> pid, of launchers that are not known to be gone."""
        return {view.node: view.pid for view in self.live().nodes if not view.gone}

    def server_pid(self) -> int:
        def found() -> int | None:
            text = self.state.lock_file.read_text().strip() if self.state.lock_file.exists() else ""
            return int(text) if text and not gone(int(text)) else None

        return self.eventually("a server", found)

    def job(self) -> views.JobView:
        (found,) = [job for job in self.ask("jobs", views.Jobs).jobs if job.id == self.name]
        return found

    def faults(self) -> list[views.IncidentLine]:
        return list(self.ask("incidents", views.Incidents, job=self.name).incidents)

    def incident(self, number: int = 0) -> views.IncidentReport:
        return self.ask("incident", views.IncidentReport, id=self.faults()[number].id)

    def resource(self, name: str) -> views.ResourceView:
        (found,) = [x for x in self.ask("resources", views.Resources).resources if x.id == name]
        return found

    def closed(self, count: int = 1) -> list[views.IncidentLine]:
        """Waits for ``count`` closed faults."""

        def found() -> list[views.IncidentLine] | None:
            known = self.query("incidents", views.Incidents, job=self.name)
            faults = [line for line in known.incidents if line.closed_s is not None] if known else []
            return faults if len(faults) >= count else None

        return self.eventually(f"{count} closed incidents", found)

    def waiting(self) -> views.Live:
        """Waits until an incident waits for something."""

        def found() -> views.Live | None:
            live = self.query("live", views.Live, job=self.name)
            return live if live is not None and (live.waits_for or "needs" in live.last_reason) else None

        return self.eventually("an incident that waits", found)

    def processes_left(self) -> list[str]:
        """Living processes that carry the name of this job."""
        mark = f"{self.name}/".encode()
        return [f"{pid}: {_command(pid)}" for pid in _marked(mark)]

    def pids(self, generation: int | None = None) -> dict[int, int]:
        """Rank -> pid of a generation (the newest by default), as its launchers told."""
        journal = self.open_journal()
        try:
            orders = [o for o in replay(journal).history.orders.values() if isinstance(o.intent, Launch)]
        finally:
            journal.close()
        mine = [o for o in orders if o.intent.job == self.name and isinstance(o.outcome, Launched)]
        wanted = generation or max(o.intent.generation for o in mine)
        return {r: pid for o in mine if o.intent.generation == wanted for r, pid in o.outcome.pids.items()}

    def live_step(self, step: int, generation: int | None = None) -> views.Live:
        """Waits until the server has seen every rank complete ``step``: for jobs that write no trace."""

        def found() -> views.Live | None:
            if all(process.poll() is not None for process in self.processes):
                raise AssertionError(f"everything has ended before step {step}\n{self.said()}")
            live = self.query("live", views.Live, job=self.name)
            return live if live and live.step >= step and generation in (None, live.generation) else None

        return self.eventually(f"step {step} of generation {generation}", found)

    def helpers(self, module: str) -> list[int]:
        """Pids of processes of this job that run a module of Keepstep."""
        return [pid for pid in _marked(f"{self.name}/".encode()) if module in _command(pid)]

    def everything(self) -> list[int]:
        """Pids of all that belongs to the job on this machine, the server apart."""
        return [*(process.pid for process in self.processes if process.poll() is None), *self.launchers().values(),
                *_marked(f"{self.name}/".encode())]  # fmt: skip

    # ---- judging

    def check_trace(self, *, bit_equal: bool = True) -> None:
        """No two generations at the same time; every step the same, to the last bit, as without a fault."""
        lines = self.trace()
        spans: dict[int, tuple[float, float]] = {}
        for line in lines:
            begin, end = spans.get(line.generation, (line.at_s, line.at_s))
            spans[line.generation] = min(begin, line.at_s), max(end, line.at_s)
        ordered = [spans[generation] for generation in sorted(spans)]
        for (_, end), (begin, _) in itertools.pairwise(ordered):
            assert end < begin, f"two generations overlap: {spans}"
        for generation in spans:
            whole = [(x.rank, x.step) for x in lines if x.generation == generation]
            assert len(whole) == len(set(whole)), f"a (rank, step) came twice in generation {generation}"
        if bit_equal:
            wanted = reference(max(x.world_size for x in lines), max(x.step for x in lines) + 1)
            wrong = [x for x in lines if x.step >= 0 and x.digest != wanted[x.step]]
            assert not wrong, f"{len(wrong)} steps differ from an unfaulted run, first {wrong[0]}"

    def check_nothing_left(self) -> None:
        left: list[str] = []
        with contextlib.suppress(AssertionError):
            self.eventually("the end of every process", lambda: not self.processes_left())
        left = self.processes_left()
        assert not left, f"processes are left: {left}"

    # ---- the end

    def stop_server(self) -> None:
        if self.state.lock_file.exists() and (text := self.state.lock_file.read_text().strip()):
            pid = int(text)
            if str(self.state.path) in _command(pid):
                _end(pid, signal.SIGCONT, signal.SIGTERM)

    def close(self) -> None:
        """Nothing of a test survives it, whatever went wrong."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.stop_server()
        for pid in _marked(f"{self.name}/".encode()):
            _end(pid, signal.SIGKILL)
        if self.own_state is not None:
            _remove(self.own_state)


class Run(Job):
    """``keepstep run``, with its embedded server."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.shared_memory = set(os.listdir("/dev/shm"))

    def start(self, *script: str, nproc: int = 2, nodes: str = "1", options: tuple[str, ...] = ()) -> "Run":
        self.spawn(
            "keepstep.cli", "run", "--state-dir", str(self.state.path), "--job", self.name,
            "--nproc-per-node", str(nproc), "--nodes", nodes, *options, *script,
        )  # fmt: skip
        return self

    @property
    def front(self) -> subprocess.Popen[bytes]:
        return self.processes[-1]

    def finish(self, exit_code: int | None = 0, *, bit_equal: bool = True) -> int:
        """Waits for the end, and checks what must hold after every run."""
        self.eventually("the end of keepstep run", lambda: self.front.poll() is not None)
        code = self.front.returncode
        assert exit_code in (None, code), f"exit code {code}\n{self.said()}"
        self.check_nothing_left()
        if (self.work / "trace").exists():
            self.check_trace(bit_equal=bit_equal)
        ours = {name for name in os.listdir("/dev/shm") if "keepstep" in name} - self.shared_memory
        assert not ours, f"left in shared memory: {ours}"
        return int(code)


class Cluster(Job):
    """A server and one launcher per node, each started by itself: nobody starts either of them again."""

    def serve(self) -> int:
        """Starts a server; its pid once it answers."""
        self.state.create()
        before = self.state.address()
        self.state.address_file.unlink(missing_ok=True)
        with self.state.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "keepstep.cli", "server", "--state-dir", str(self.state.path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_environment(), start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        self.eventually("the server", lambda: self.state.address() is not None)
        assert before in (None, self.state.address())
        return process.pid

    def launch(self, node: str, *script: str, nproc: int = 1, nodes: str = "2", options: tuple[str, ...] = ()) -> int:
        address = self.state.address()
        assert address is not None, "a server comes first"
        return self.spawn(
            "keepstep.cli", "run", "--server", address, "--node", node, "--state-dir", str(self.state.path),
            "--job", self.name, "--nproc-per-node", str(nproc), "--nodes", nodes, *options, *script,
        ).pid  # fmt: skip

    def process(self, pid: int) -> subprocess.Popen[bytes]:
        (found,) = [process for process in self.processes if process.pid == pid]
        return found

    def exit_code(self, pid: int) -> int:
        process = self.process(pid)
        self.eventually(f"the end of process {pid}", lambda: process.poll() is not None)
        return int(process.returncode)


def _parse(line: str) -> Line:
    at_s, generation, rank, world_size, step, pid, node, slot, digest = line.split()
    return Line(
        float(at_s), int(generation), int(rank), int(world_size), int(step), int(pid), node, int(slot), digest
    )  # fmt: skip


def _marked(mark: bytes) -> Iterator[int]:
    for pid in procfs.pids():
        if procfs.environment(pid).get(TOKEN.encode(), b"").startswith(mark):
            found = procfs.stat(pid)
            if found is not None and found.state not in "ZX":
                yield pid


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(bytes(1), b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _end(pid: int, *signals: int) -> None:
    for number in signals:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    deadline_s = time.monotonic() + 60.0
    while (found := procfs.stat(pid)) is not None and found.state not in "ZX":
        if time.monotonic() > deadline_s:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _remove(folder: Path) -> None:
    """Launchers die with their front, a moment later: until then one may write there."""
    deadline_s = time.monotonic() + 60.0
    while folder.exists() and time.monotonic() < deadline_s:
        shutil.rmtree(folder, ignore_errors=True)


def kill_hard(*pids: int) -> None:
    """SIGKILL, as the kernel's memory killer would."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def kill_all(pids: Iterable[int]) -> None:
    """Of several that die with each other: one may be gone before its turn comes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is None or found.state in "ZX"


def clean_environment() -> dict[str, str]:
    """Ours, without what a launcher or torchrun around the tests may have set; the package under test on the path."""
    dropped = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith(("KEEPSTEP_", "TORCHELASTIC_", "PYTEST_"))
    }
    source = str(Path(keepstep.__file__).parent.parent)
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (source, kept.get("PYTHONPATH", ""))))}
