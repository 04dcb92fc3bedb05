"""The zygote: a process that has imported the framework and forks ranks. Owns starting and reaping them.

It starts no thread and opens no device; where something it imported did, ranks are started afresh and it says why. It
lives by its launcher: it dies with it, and its ranks die with it. It must not judge anything.
"""

import argparse
import fcntl
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
from typing import NamedTuple

import msgspec

from keepstep.adapters.local import procfs
from keepstep.launcher import control, preload, store
from keepstep.launcher.process import die_with_parent, write_initial_environment
from keepstep.launcher.rank_main import COLD_FDS, RankFds, run_rank
from keepstep.wire.environment import GENERATION

_STORE_NEEDS = ("torch", "torch.distributed")


class Birth(NamedTuple):
    """In a new child: what it is to become."""

    plan: control.RankPlan
    fds: RankFds


class Zygote:
    """The loop of the process. ``run`` returns in the zygote when the launcher is gone, and in each child at its birth."""

    def __init__(self, link: socket.socket, address: str, *, cold: bool) -> None:
        self._link = link
        self._address = address
        self._why_cold = "--cold-start was given" if cold else ""
        self.pid = os.getpid()
        self._store_pids: set[int] = set()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)

    def preload(self, chosen: preload.Preload) -> None:
        """Imports, offers the first store as soon as its modules are there, then says Ready."""
        begun_s = time.monotonic()
        done: list[str] = []
        modules = chosen.modules if not self._why_cold else _STORE_NEEDS if chosen.wants_torch else ()
        store_due = chosen.wants_torch
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - whatever user code raises at import: a fresh process will show it
                self._why_cold = self._why_cold or f"import of {name} failed: {type(error).__name__}: {error}"
                continue
            done.append(name)
            if store_due and name == "torch.distributed":
                store_due = False
                self._start_store(self._address)
        if not chosen.wants_torch:
            control.send(self._link, control.StoreUp(address="", why="the script does not import torch"))
        elif store_due:
            control.send(self._link, control.StoreUp(address="", why="torch cannot be imported"))
        gc.collect()
        # The collector of a child shall not touch, and so copy, the pages that it shares with us.
        gc.freeze()
        seconds = time.monotonic() - begun_s
        control.send(
            self._link,
            control.Ready(
                wants_torch=chosen.wants_torch, preloaded=tuple(done), seconds=seconds, why_cold=self._fork_unsafe()
            ),
        )

    def run(self) -> Birth | None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self._wake_reader:
                        os.read(self._wake_reader, 4096)
                        self._reap()
                        continue
                    received = control.receive_order(self._link)
                    if received is None:
                        return None
                    birth = self._obey(*received)
                    if birth is not None:
                        return birth

    def _obey(self, order: control.ToZygote, fds: list[int]) -> Birth | None:
        match order:
            case control.StartStore(address=address):
                self._start_store(address)
                return None
            case control.StartRank(plan=plan, cold=cold):
                why_cold = "a cold start was asked for" if cold else self._fork_unsafe()
                return self._start_rank(plan, RankFds(*fds), why_cold)

    def _start_rank(self, plan: control.RankPlan, fds: RankFds, why_cold: str) -> Birth | None:
        """Returns a birth in the child, None in the zygote."""
        try:
            pid = self._spawn(plan, fds) if why_cold else self._fork(plan)
        except OSError as error:
            reason = f"cannot start a process: {error}"
            control.send(self._link, control.RankNotStarted(rank=plan.rank, generation=plan.generation, reason=reason))
        else:
            if pid == 0:
                self._leave_parent_behind()
                return Birth(plan, fds)
            self._announce(plan, pid, why_cold)
        for fd in fds:
            os.close(fd)
        return None

    def _fork(self, plan: control.RankPlan) -> int:
        # The mark is there before the child is: no sweep can meet a rank that does not carry its generation yet.
        write_initial_environment(GENERATION, plan.environment[GENERATION])
        try:
            return os.fork()
        finally:
            if os.getpid() == self.pid:
                write_initial_environment(GENERATION, control.NO_GENERATION)

    def _announce(self, plan: control.RankPlan, pid: int, why_cold: str) -> None:
        pidfd = os.pidfd_open(pid)
        started = procfs.start_ticks(pid) or 0
        message = control.RankStarted(
            rank=plan.rank, generation=plan.generation, pid=pid, started=started, warm=not why_cold, why_cold=why_cold
        )
        control.send(self._link, message, [pidfd])
        os.close(pidfd)

    def _fork_unsafe(self) -> str:
        """Why a fork of this very process would not be a faithful start of a rank; empty where it is."""
        return self._why_cold or self._threads_or_device()

    def _threads_or_device(self) -> str:
        threads = procfs.thread_names(self.pid)
        if len(threads) != 1:
            return f"the preloaded modules run {len(threads) - 1} threads of their own ({', '.join(threads[1:])})"
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            return "a preloaded module has opened a CUDA context"
        return ""

    def _spawn(self, plan: control.RankPlan, fds: RankFds) -> int:
        """A fresh interpreter, with the same descriptors in fixed places."""
        plan_fd = os.memfd_create("keepstep-plan", os.MFD_CLOEXEC)
        try:
            with open(plan_fd, "wb", closefd=False) as file:
                file.write(msgspec.msgpack.encode(plan))
            os.lseek(plan_fd, 0, os.SEEK_SET)
            actions = [
                (os.POSIX_SPAWN_DUP2, source, target)
                for source, target in zip((fds.out, fds.err, fds.notice, plan_fd), COLD_FDS, strict=True)
            ]
            command = [sys.executable, "-m", "keepstep.launcher.rank_main", str(self.pid)]
            return self._spawn_process(command, {**os.environ, **plan.environment}, actions)
        finally:
            os.close(plan_fd)

    def _start_store(self, address: str) -> None:
        if self._threads_or_device():
            actions = [(os.POSIX_SPAWN_DUP2, self._link.fileno(), COLD_FDS[-1])]
            command = [sys.executable, "-m", "keepstep.launcher.store", str(COLD_FDS[-1]), address, str(self.pid)]
            self._store_pids.add(self._spawn_process(command, dict(os.environ), actions))
            return
        pid = os.fork()
        if pid == 0:
            link = self._link.dup()
            self._leave_parent_behind()
            store.host(link, address, self.pid)
        self._store_pids.add(pid)

    def _spawn_process(
        self, command: list[str], environment: dict[str, str], actions: list[tuple[int, int, int]]
    ) -> int:
        # The sources go out of the way of the targets first: a target may be the number of another source.
        moved = [(kind, _high_copy(source), target) for kind, source, target in actions]
        try:
            return os.posix_spawn(
                sys.executable, command, environment, file_actions=moved, setpgroup=0, setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE),
            )  # fmt: skip
        finally:
            for _, source, _ in moved:
                os.close(source)

    def _leave_parent_behind(self) -> None:
        """In a child, before anything else: none of the zygote's descriptors and handlers."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        for fd in (self._wake_reader, self._wake_writer):
            os.close(fd)
        self._link.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            store = pid in self._store_pids
            self._store_pids.discard(pid)
            exit_code, number = (code, None) if code >= 0 else (None, -code)
            control.send(self._link, control.Exited(pid=pid, exit_code=exit_code, signal=number, store=store))


def _high_copy(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m keepstep.launcher.zygote")
    parser.add_argument("--link", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--preload", default="")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    die_with_parent(options.parent)
    argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    zygote = Zygote(socket.socket(fileno=options.link), options.address, cold=options.cold)
    extra = [name for name in options.preload.split(",") if name]
    try:
        zygote.preload(preload.choose(argv, extra))
        birth = zygote.run()
    except BrokenPipeError:
        return 0
    if birth is None:
        return 0
    return run_rank(birth.plan, birth.fds, zygote.pid)


if __name__ == "__main__":
    sys.exit(main())
