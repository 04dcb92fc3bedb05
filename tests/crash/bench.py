"""One program under one fault: a warm process that forks for each case. Owns the processes and directories of a case.

Must run in a process that has the fault layer preloaded.
"""

import os
import select
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from tests.crash.layer import HARMLESS, KILLS, Fault, Layer
from tests.crash.power import Tree, write_tree
from tests.crash.scenario import Scenario, Tell, teller
from tests.crash.trace import Call, read_trace

_PASSED, _RAISED = 0, 3
_PATIENCE_S = 300.0
"""For what runs without a fault, however short a time is given to what runs with one: a slow machine is no finding."""
_GLANCE_S = 0.001
"""Between two looks at whether a child stands still: the system tells of an end by itself, and not of this."""


class Ended(Struct, frozen=True):
    """How a child ended."""

    how: str
    """``passed``, ``killed``, or what went wrong."""
    said: str = ""

    @property
    def passed(self) -> bool:
        return self.how == "passed"


class Ran(Struct, frozen=True):
    """What became of a program under a fault."""

    ended: Ended
    told: list[str]
    struck: str
    """The boundary at which the fault struck, in words; empty if it did not."""


class Bench:
    """Directories below ``scratch``: what was there before (``start``), and where it is broken (``work``)."""

    def __init__(self, scenario: Scenario, scratch: Path, deadline_s: float) -> None:
        """A child under a fault that takes longer than ``deadline_s`` hangs, and that is a finding."""
        self._scenario = scenario
        self._deadline_s = deadline_s
        self._layer = Layer()
        self._scratch = scratch.resolve()
        self._scratch.mkdir(parents=True)
        self.start, self.work = self._scratch / "start", self._scratch / "work"
        self._told, self._struck = self._scratch / "told", self._scratch / "struck"
        self._children = 0
        self.other_calls: list[Call] = []
        self.trace = self._scratch / "trace"
        self.start.mkdir()
        self._must_pass(lambda: scenario.prepare(self.start), self.start)
        shutil.copytree(self.start, self.work)
        # Here, not in a child: what is imported and made on first use is then there in all of them.
        scenario.afterwards(self.work)
        if threading.active_count() > 1:
            raise AssertionError("the program leaves threads behind: a process with threads cannot be forked")
        scenario.clean = scenario.footprint(self.work)

    def _must_pass(self, action: Callable[[], None], root: Path) -> None:
        ended = self._child(action, root)
        if not ended.passed:
            raise AssertionError(f"without any fault, the program {ended.how}:\n{ended.said}")

    def reset(self) -> None:
        """``work`` is as ``start`` again."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.start, self.work)
        for path in (self._told, self._struck, self.trace):
            path.unlink(missing_ok=True)

    def put(self, tree: Tree) -> None:
        """``work`` is as a power cut left it."""
        shutil.rmtree(self.work, ignore_errors=True)
        write_tree(tree, self.work)

    def run(self, fault: Fault, *, record: bool = False, stop: bool = False) -> Ran:
        """The program in ``work`` with a fault; it goes on when the fault is over, unless it was killed.

        ``stop``: it is killed as soon as it has said something after the fault, before it can do anything about it.
        """
        return self._in_work(self._scenario.run, fault, record=record, stop=stop)

    def resume(self) -> Ran:
        """Another process goes on in ``work``, without a fault; its calls are added to the trace."""
        return self._in_work(self._scenario.resume, Fault(), record=True)

    def pause(self, fault: Fault, other: Fault) -> tuple[Ran, Ran]:
        """The program stands still at a boundary, another one runs in ``work`` with a fault of its own, it goes on.

        What the other one did is in ``other_calls`` then.
        """
        others: list[Ran] = []
        self.other_calls = []

        def meanwhile() -> None:
            before = len(self.calls())
            others.append(self._in_work(self._scenario.meanwhile, other, record=True))
            self.other_calls = self.calls()[before:]

        first = self._in_work(self._scenario.run, fault, record=True, meanwhile=meanwhile)
        return first, others[0] if others else Ran(Ended("passed"), [], "")

    def _in_work(
        self,
        program: Callable[[Path, Tell], None],
        fault: Fault,
        *,
        record: bool = False,
        stop: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> Ran:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        trace = os.open(self.trace, flags) if record else -1
        struck = os.open(self._struck, flags)

        def action() -> None:
            said = teller(self._told, self._layer.mark)

            def tell(line: str) -> None:
                said(line)
                if stop and os.fstat(struck).st_size:
                    os.kill(os.getpid(), signal.SIGKILL)

            self._layer.arm(self.work, fault, trace=trace, report=struck)
            program(self.work, tell)
            self._layer.clear()
            if fault.kind not in KILLS | HARMLESS:
                self._scenario.recover(self.work, tell)

        within_s = _PATIENCE_S if fault.kind in HARMLESS else self._deadline_s
        ended = self._child(action, meanwhile=meanwhile, within_s=within_s)
        for fd in (trace, struck):
            if fd >= 0:
                os.close(fd)
        told = self._told.read_text().splitlines() if self._told.exists() else []
        return Ran(ended, told, " then ".join(self._struck.read_text().splitlines()))

    def calls(self) -> list[Call]:
        return read_trace(self.trace)

    def check(self, told: list[str]) -> Ended:
        """The oracle on ``work``, then normal use, then whether anything is left that does not belong there."""

        def action() -> None:
            self._layer.arm(self.work, Fault())
            self._scenario.check(self.work, told)
            self._scenario.afterwards(self.work)
            left = self._scenario.footprint(self.work)
            assert left == self._scenario.clean, f"left behind: {left}, where a clean run leaves {self._scenario.clean}"

        return self._child(action)

    def _child(
        self,
        action: Callable[[], None],
        root: Path | None = None,
        *,
        meanwhile: Callable[[], None] | None = None,
        within_s: float = _PATIENCE_S,
    ) -> Ended:
        """``meanwhile``: what to do when the child stands still, before it is let go on."""
        number = self._children = self._children + 1
        said = self._scratch / f"said-{number}"
        pid = os.fork()
        if pid == 0:
            self._in_child(action, root, said)
        status = self._wait(pid, meanwhile, within_s)
        words = said.read_text() if said.exists() else ""
        said.unlink(missing_ok=True)
        if status is None:
            return Ended(f"did not end within {within_s:g} s", words)
        if os.WIFSIGNALED(status):
            killed = os.WTERMSIG(status)
            return Ended("killed" if killed == signal.SIGKILL else f"died of {signal.Signals(killed).name}", words)
        return Ended("passed" if os.WEXITSTATUS(status) == _PASSED else "raised", words)

    def _wait(self, pid: int, meanwhile: Callable[[], None] | None, within_s: float) -> int | None:
        """The status of a child that has ended; None if it did not, and was killed."""
        deadline = time.monotonic() + within_s
        while meanwhile is not None and time.monotonic() < deadline:
            found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
            if found and not os.WIFSTOPPED(status):
                return status
            if found:
                meanwhile()
                os.kill(pid, signal.SIGCONT)
                break
            time.sleep(_GLANCE_S)
        watch = os.pidfd_open(pid)
        try:
            ended, _, _ = select.select([watch], [], [], within_s)
        finally:
            os.close(watch)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        return status if ended else None

    def _in_child(self, action: Callable[[], None], root: Path | None, said: Path) -> None:
        """Does not return."""
        code = _RAISED
        try:
            if root is not None:
                self._layer.arm(root, Fault())
            action()
            code = _PASSED
        except BaseException:  # noqa: BLE001  whatever it is belongs into the report, and the fork must not go on
            said.write_text(traceback.format_exc())
        finally:
            os._exit(code)
