"""What a rank does before and after user code. Owns the process from its birth to its exit code.

A rank begins either as a fork of the zygote (warm) or as ``python -m keepstep.launcher.rank_main`` (cold); both run
``run_rank``. It must leave the script alone: same ``sys.argv``, ``sys.path``, ``__main__``, signals, exit code and
traceback as under plain ``python``.
"""

import faulthandler
import os
import random
import runpy
import signal
import sys
from typing import NamedTuple, NoReturn, TextIO

import msgspec

from keepstep.launcher import errors, virtual_device
from keepstep.launcher.control import RankPlan
from keepstep.launcher.process import die_with_parent
from keepstep.launcher.progress_hook import OptimizerTicks
from keepstep.wire.progress import ProgressCell

COLD_FDS = (1, 2, 3, 4)
"""Where a fresh interpreter finds its stdout, stderr, notice pipe and plan."""
STACK_SIGNAL = signal.SIGRTMIN + 7
"""Writes all Python stacks to the stack file. A real-time signal: scripts use SIGUSR1 and SIGUSR2 themselves."""


class RankFds(NamedTuple):
    out: int
    err: int
    notice: int


class _Witnesses:
    """What tells the launcher of this rank's life and last words."""

    def __init__(self, plan: RankPlan, notice: int) -> None:
        self._plan = plan
        self._notice = notice
        self.cell = ProgressCell(plan.cell)
        # Kept open for the life of the process: faulthandler writes to the descriptor from a signal handler.
        self._stacks: TextIO = open(plan.stack_file, "a", encoding="utf-8")  # noqa: SIM115
        faulthandler.enable(self._stacks)
        faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=True, chain=False)
        OptimizerTicks(self.cell).install()

    def tell(self, error: BaseException) -> None:
        """Error file, failed flag, and a notice that reaches the launcher before the interpreter has unwound."""
        record = errors.describe(error)
        try:
            with open(self._plan.error_file, "wb") as file:
                file.write(errors.torchelastic_file(error, record))
        except OSError as problem:
            # A full disk must not hide the error: the notice below carries it as well.
            print(f"keepstep: cannot write {self._plan.error_file}: {problem}", file=sys.stderr)
        self.cell.fail()
        os.write(self._notice, msgspec.msgpack.encode(record))


def run_rank(plan: RankPlan, fds: RankFds, parent: int) -> NoReturn:
    """Never returns: ends with the exit code of the script."""
    die_with_parent(parent)
    _reset_signals()
    _take_stdio(fds)
    os.environ.update(plan.environment)
    _reseed()
    witnesses = _Witnesses(plan, fds.notice)
    try:
        virtual_device.strike(virtual_device.read_fault(plan.state_dir, plan.node, plan.slot))
        _run_user_code(plan.argv)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything; it is reported and ends us
        witnesses.tell(error)
        # Shown as without a launcher: from the script's first frame on.
        sys.excepthook(type(error), error.with_traceback(errors.user_traceback(error)), error.__traceback__)
        sys.exit(1)
    sys.exit(0)


def _run_user_code(argv: tuple[str, ...]) -> None:
    if argv[0] == "-m":
        sys.argv[:] = list(argv[1:])
        sys.path[0] = os.getcwd()
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = list(argv)
    sys.path[0] = os.path.dirname(os.path.realpath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


def _reset_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _take_stdio(fds: RankFds) -> None:
    for source, target in ((fds.out, 1), (fds.err, 2)):
        if source != target:
            os.dup2(source, target)
            os.close(source)
    os.set_inheritable(fds.notice, False)
    os.set_blocking(fds.notice, False)
    for stream in (sys.stdout, sys.stderr):
        # A line that a killed rank has printed must not die in its buffer.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _reseed() -> None:
    """As in a fresh interpreter: no two ranks, and no two generations, share the zygote's random state."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def main() -> NoReturn:
    with open(COLD_FDS[3], "rb") as file:
        plan = msgspec.msgpack.decode(file.read(), type=RankPlan)
    run_rank(plan, RankFds(*COLD_FDS[:3]), int(sys.argv[1]))


if __name__ == "__main__":
    main()
