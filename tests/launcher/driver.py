"""Drives a real launcher process: a scripted server on a unix socket that speaks the wire, and shorthands for orders.

The server here decides nothing by itself; each test says what it orders and what it expects to hear.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.scripted_server import Listening, read_message

import keepstep
from keepstep.adapters.local import procfs, sweep
from keepstep.core.facts import Answered, Fenced, Launched, NodeJoined, RankExited
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import EndJob, Fence, Intent, Launch, Order, RankPlace
from keepstep.wire import messages
from keepstep.wire.messages import Ack, Beat, Command, Hello, Message, Report, Welcome

DEADLINE_S = 150.0
"""Generous: the machine may be busy. A test that runs into it fails with what it waited for."""
TOKEN = "test-token"
Kind = TypeVar("Kind")


class ScriptedServer(Listening):
    """Accepts one launcher after another; keeps everything it said."""

    def __init__(self, path: Path, *, acks: bool = True) -> None:
        super().__init__(path)
        self.acks = acks
        self.acked = 0
        self.said: list[Message] = []
        self.hellos: list[Hello] = []
        self._news = threading.Condition()
        self.start()

    def converse(self, connection: socket.socket) -> None:
        hello = read_message(connection)
        assert isinstance(hello, Hello)
        assert hello.token == TOKEN
        self.say(connection, Welcome(protocol=messages.PROTOCOL, server="scripted", acked=self.acked))
        self._connection = connection
        self.hellos.append(hello)
        while True:
            message = read_message(connection)
            # Kept before it is acknowledged: a launcher that leaves then has been heard, whatever becomes of this thread.
            with self._news:
                self.said.append(message)
                self._news.notify_all()
            if isinstance(message, Report) and self.acks:
                self.acked = max(self.acked, message.number)
                self.say(connection, Ack(number=message.number))

    def send(self, message: Message) -> None:
        assert self._connection is not None, "no launcher is connected"
        self.say(self._connection, message)

    def wait(self, what: str, found: Callable[[list[Message]], Kind | None], wait_s: float = DEADLINE_S) -> Kind:
        """The first thing that ``found`` makes of all that was said so far, and of what comes."""
        deadline_s = time.monotonic() + wait_s
        with self._news:
            while True:
                answer = found(self.said)
                if answer is not None:
                    return answer
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._news.wait(left_s):
                    told = [type(m.fact).__name__ for m in self.said if isinstance(m, Report)]
                    raise AssertionError(f"waited {wait_s} s in vain for {what}; heard {told}")

    def facts(self, kind: type[Kind]) -> list[Kind]:
        with self._news:
            return [m.fact for m in self.said if isinstance(m, Report) and isinstance(m.fact, kind)]

    def beats(self) -> list[Beat]:
        with self._news:
            return [m for m in self.said if isinstance(m, Beat)]

    def next_fact(self, kind: type[Kind], already: int = 0) -> Kind:
        """Fact number ``already`` + 1 of its kind."""
        return self.wait(kind.__name__, lambda _: next(iter(self.facts_locked(kind)[already:]), None))

    def facts_locked(self, kind: type[Kind]) -> list[Kind]:
        return [m.fact for m in self.said if isinstance(m, Report) and isinstance(m.fact, kind)]


class Bench:
    """A launcher under test, its server, and the orders that tests give."""

    job = JobId("job")
    node = NodeId("n0")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir()
        (self.state / "token").write_text(TOKEN)
        self.server = ScriptedServer(self.state / "s.sock")
        self.process: subprocess.Popen[bytes] | None = None
        self.output = folder / "launcher.out"
        self._numbers = 0
        self.argv: tuple[str, ...] = ()

    def script(self, text: str, name: str = "script.py") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def start(self, script: str, *options: str, nproc: int = 2, argv: tuple[str, ...] | None = None) -> NodeJoined:
        """Starts a launcher and waits until it has joined. ``script`` is program text."""
        self.argv = argv if argv is not None else (self.script(script),)
        command = [
            sys.executable, "-m", "keepstep.launcher", "--server", f"unix:{self.state}/s.sock", "--job", self.job,
            "--node", self.node, "--nproc-per-node", str(nproc), "--state-dir", str(self.state), *options, "--",
            *self.argv,
        ]  # fmt: skip
        already = len(self.server.facts(NodeJoined))
        with open(self.output, "ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=clean_environment(),
                cwd=self.folder,
            )
        return self.server.next_fact(NodeJoined, already)

    @property
    def session(self) -> Session:
        session = self.server.hellos[-1].session
        assert session is not None
        return session

    @property
    def token(self) -> str:
        return f"{self.job}/{self.node}/{self.session}"

    @property
    def logs(self) -> Path:
        return self.state / "logs" / self.job / self.node

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def order(self, intent: Intent, number: int | None = None) -> int:
        number = self.number() if number is None else number
        self.server.send(Command(order=Order(number=number, intent=intent)))
        return number

    def answer(self, number: int, nth: int = 1) -> Any:
        """The outcome in answer number ``nth`` to an order."""

        def found(said: list[Message]) -> Any:
            answers = [
                m.fact
                for m in said
                if isinstance(m, Report) and isinstance(m.fact, Answered) and m.fact.intent == number
            ]
            return answers[nth - 1].outcome if len(answers) >= nth else None

        return self.server.wait(f"answer {nth} to order {number}", found)

    def launch_intent(
        self, generation: int = 1, nproc: int = 2, store: str = "", group_world_size: int = 1, **more: Any
    ) -> Launch:
        return Launch(
            job=self.job, node=self.node, session=self.session, generation=generation, argv=self.argv,
            ranks=tuple(RankPlace(rank=r, local_rank=r, slot=r) for r in range(nproc)), world_size=nproc,
            group_rank=0, group_world_size=group_world_size, store=store, **more,
        )  # fmt: skip

    def launch(self, generation: int = 1, nproc: int = 2, store: str = "", **more: Any) -> Launched:
        outcome = self.answer(self.order(self.launch_intent(generation, nproc, store, **more)))
        assert isinstance(outcome, Launched), outcome
        return outcome

    def fence(self, generation: int = 1, grace_s: float = 0.0) -> Fenced:
        intent = Fence(job=self.job, node=self.node, session=self.session, generation=generation, grace_s=grace_s)
        outcome = self.answer(self.order(intent))
        assert isinstance(outcome, Fenced), outcome
        return outcome

    def end(self, exit_code: int = 0) -> int:
        """Ends the job and returns the launcher's exit code."""
        self.order(EndJob(job=self.job, node=self.node, session=self.session, exit_code=exit_code, message="test over"))
        return self.wait_exit()

    def wait_exit(self) -> int:
        assert self.process is not None
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end within {DEADLINE_S} s:\n{self.said()}") from None

    def exits(self, count: int, generation: int | None = None) -> list[RankExited]:
        """So many at least, of one generation or of all."""

        def found(_: list[Message]) -> list[RankExited] | None:
            ends = [e for e in self.server.facts_locked(RankExited) if generation in (None, e.generation)]
            return ends if len(ends) >= count else None

        return self.server.wait(f"{count} ends of ranks", found)

    def log_text(self, rank: int, generation: int = 1) -> str:
        path = self.logs / f"g{generation}" / f"rank{rank}.log"
        return path.read_text() if path.exists() else ""

    def wait_log(self, rank: int, text: str, generation: int = 1) -> str:
        """The rank's log once it holds ``text``."""
        eventually(
            lambda: text in self.log_text(rank, generation),
            lambda: f"{text!r} in the log of rank {rank}:\n{self.said()}",
        )
        return self.log_text(rank, generation)

    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def close(self) -> None:
        """Nothing of a test survives it, whatever went wrong."""
        session = self.server.hellos[-1].session if self.server.hellos else None
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
        self.server.stop()
        if session is not None:
            sweep.sweep(f"{self.job}/{self.node}/{session}", wait_s=DEADLINE_S)


def clean_environment() -> dict[str, str]:
    """Ours, without what a launcher or torchrun around the tests may have set; the package under test on the path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KEEPSTEP_", "TORCHELASTIC_", "PYTEST_"))}
    for name in (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
    ):
        kept.pop(name, None)
    source = str(Path(keepstep.__file__).parent.parent)
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (source, kept.get("PYTHONPATH", ""))))}


def eventually(condition: Callable[[], bool], what: Callable[[], str] | str, wait_s: float = DEADLINE_S) -> None:
    deadline_s = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {wait_s} s in vain for {what() if callable(what) else what}")
        time.sleep(0.01)


def alive(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is not None and found.state not in "ZX"
