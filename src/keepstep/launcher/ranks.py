"""The ranks of this node: their processes, cells, last words and ends. Owns them from order to proof of death.

Reports each rank's failure once, at the first sign of it: the notice that comes before the interpreter unwinds, or the
end of the process. Ends that we brought about ourselves are no news. It must not decide anything.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from keepstep.core.facts import STARTER_LOST, ErrorRecord, Launched, RankExited
from keepstep.core.intents import Launch, RankPlace
from keepstep.launcher import errors, pidfds, store
from keepstep.launcher.control import Exited, RankNotStarted, RankPlan, RankStarted
from keepstep.launcher.output import Output
from keepstep.launcher.rank_environment import Surroundings, rank_environment
from keepstep.launcher.settings import Settings
from keepstep.launcher.vitals import Watched
from keepstep.wire.progress import ProgressCell

log = logging.getLogger("keepstep.launcher")

_START_WAIT_S = 60.0
"""For all ranks to be born once the zygote is ready. A fork takes milliseconds; a node may be busy."""
_ERROR_FILE_LIMIT_BYTES = 1 << 20


class LaunchFailed(Exception):
    """Some rank could not be started. Says why."""


@dataclass
class Rank:
    """One process, or one that is being born (pid 0)."""

    plan: RankPlan
    cell: ProgressCell
    cell_fd: int
    notice_fd: int
    born: "asyncio.Future[RankStarted]"
    pid: int = 0
    pidfd: int = -1
    error: ErrorRecord | None = None
    reported: bool = False
    ended: bool = False

    @property
    def alive(self) -> bool:
        """Judged by the kernel, not by what was reported."""
        return self.pidfd >= 0 and not pidfds.has_ended(self.pidfd)


@dataclass
class Ranks:
    """The ranks of the newest generation that was launched here. Implements nursery.Births."""

    settings: Settings
    output: Output
    report: Callable[[RankExited], None]
    generation: int = 0
    by_rank: dict[int, Rank] = field(default_factory=dict)

    # ---- starting

    def prepare(self, launch: Launch, snapshots: str) -> list[tuple[RankPlan, tuple[int, int, int]]]:
        """Makes cells and pipes for a generation. The descriptors are the caller's to pass on and to close."""
        assert not self.by_rank, "a generation starts only when the older one is fenced"
        self.generation = launch.generation
        folder = self.settings.rank_dir(launch.generation)
        os.makedirs(folder, exist_ok=True)
        host, _, port = launch.store.rpartition(":")
        master = (
            (host.strip("[]"), int(port))
            if launch.store
            else (self.settings.address, store.free_port(self.settings.address))
        )
        return [self._prepare_one(launch, place, folder, master, snapshots) for place in launch.ranks]

    def _prepare_one(
        self, launch: Launch, place: RankPlace, folder: str, master: tuple[str, int], snapshots: str
    ) -> tuple[RankPlan, tuple[int, int, int]]:
        base = os.path.join(folder, f"rank{place.rank}")
        # Anonymous memory reached through our own descriptor table: no file that an end by SIGKILL could leave behind.
        cell_fd = os.memfd_create(f"keepstep-cell-{place.rank}", os.MFD_CLOEXEC)
        cell_path = f"/proc/{os.getpid()}/fd/{cell_fd}"
        cell = ProgressCell(cell_path, create=True)
        out, err = self.output.attach(place.rank, f"{base}.log")
        notice_reader, notice_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        plan = RankPlan(
            rank=place.rank,
            slot=place.slot,
            generation=launch.generation,
            node=self.settings.node,
            environment=rank_environment(
                launch, place, self.settings, Surroundings(master, cell_path, f"{base}.error.json", snapshots)
            ),
            argv=launch.argv,
            cell=cell_path,
            error_file=f"{base}.error.json",
            stack_file=f"{base}.stacks",
            state_dir=self.settings.state_dir,
        )
        loop = asyncio.get_running_loop()
        rank = Rank(plan, cell, cell_fd, notice_reader, loop.create_future())
        self.by_rank[place.rank] = rank
        loop.add_reader(notice_reader, self._noticed, rank)
        return plan, (out, err, notice_writer)

    async def births(self) -> Launched:
        """Waits until every prepared rank is born. Raises LaunchFailed."""
        waits = [rank.born for rank in self.by_rank.values()]
        try:
            async with asyncio.timeout(_START_WAIT_S):
                born = await asyncio.gather(*waits)
        except TimeoutError:
            raise LaunchFailed(
                f"not all ranks were started within {_START_WAIT_S:.0f} s; see the launcher's log"
            ) from None
        why_cold = next((one.why_cold for one in born if one.why_cold), "")
        return Launched(pids={one.rank: one.pid for one in born}, warm=all(one.warm for one in born), why_cold=why_cold)

    def rank_started(self, started: RankStarted, pidfd: int) -> None:
        rank = self.by_rank.get(started.rank)
        if rank is None or rank.plan.generation != started.generation:
            # It was fenced while it was being born.
            pidfds.kill(pidfd, signal.SIGKILL)
            os.close(pidfd)
            return
        rank.pid, rank.pidfd = started.pid, pidfd
        if not rank.born.done():
            rank.born.set_result(started)

    def rank_not_started(self, failed: RankNotStarted) -> None:
        rank = self.by_rank.get(failed.rank)
        if rank is not None and rank.plan.generation == failed.generation and not rank.born.done():
            rank.born.set_exception(LaunchFailed(failed.reason))

    # ---- ending

    def _noticed(self, rank: Rank) -> None:
        if self._take_notice(rank) and not rank.reported:
            self._report(rank, exit_code=None, number=None)

    def _take_notice(self, rank: Rank) -> bool:
        """Reads the rank's last words; False where there are none, or only the end of the pipe."""
        try:
            data = os.read(rank.notice_fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(rank.notice_fd)
            return False
        try:
            rank.error = msgspec.msgpack.decode(data, type=ErrorRecord)
        except msgspec.DecodeError as problem:
            log.warning("rank %d left an error that cannot be read: %s", rank.plan.rank, problem)
        return rank.error is not None

    def process_exited(self, exited: Exited) -> None:
        for rank in self.by_rank.values():
            if rank.pid == exited.pid and not rank.ended:
                self._ended(rank, exited.exit_code, exited.signal)

    def all_lost(self) -> None:
        """The zygote is gone: the kernel ends its children (PR_SET_PDEATHSIG)."""
        for rank in self.by_rank.values():
            if not rank.born.done():
                rank.born.set_exception(LaunchFailed("the zygote ended while the ranks were being started"))
            elif not rank.ended and rank.pid:
                if rank.error is None:
                    rank.error = ErrorRecord(
                        kind=STARTER_LOST, message="the process that started the rank ended", victim=True
                    )
                self._ended(rank, None, int(signal.SIGKILL))

    def _ended(self, rank: Rank, exit_code: int | None, number: int | None) -> None:
        self._take_notice(rank)
        rank.ended = True
        if rank.error is None and (exit_code or number):
            rank.error = _error_left_behind(rank.plan)
        if not rank.reported:
            self._report(rank, exit_code, number)

    def _report(self, rank: Rank, exit_code: int | None, number: int | None) -> None:
        rank.reported = True
        progress = rank.cell.read()
        self.report(
            RankExited(
                job=self.settings.job, node=self.settings.node, session=self.settings.session,
                generation=rank.plan.generation, rank=rank.plan.rank, slot=rank.plan.slot, exit_code=exit_code,
                signal=number, error=rank.error, step=progress.step, phase=progress.phase, pid=rank.pid,
            )
        )  # fmt: skip

    async def all_born(self, wait_s: float) -> bool:
        """Every birth that was asked for has happened or failed, within ``wait_s``."""
        waits = [rank.born for rank in self.by_rank.values() if not rank.born.done()]
        return not waits or not (await asyncio.wait(waits, timeout=wait_s))[1]

    # ---- looking

    def watched(self) -> list[Watched]:
        return [
            Watched(number, rank.pid, rank.cell) for number, rank in self.by_rank.items() if rank.pid and not rank.ended
        ]

    def running(self) -> list[Rank]:
        return [rank for rank in self.by_rank.values() if rank.alive]

    def silence(self) -> None:
        """From here on we end them ourselves: what happens to them is no news."""
        for rank in self.by_rank.values():
            rank.reported = True

    def forget(self) -> None:
        """Lets go of ranks that have ended, and of births that have not happened."""
        loop = asyncio.get_running_loop()
        for rank in self.by_rank.values():
            loop.remove_reader(rank.notice_fd)
            rank.cell.close()
            for fd in (rank.notice_fd, rank.cell_fd, rank.pidfd):
                if fd >= 0:
                    os.close(fd)
            if not rank.born.done():
                rank.born.set_exception(LaunchFailed("fenced while the ranks were being started"))
                rank.born.exception()
        self.by_rank.clear()


def _error_left_behind(plan: RankPlan) -> ErrorRecord | None:
    """What the files of a rank tell that ended without a notice: torchelastic's error file, or a crash of the interpreter."""
    try:
        with open(plan.error_file, "rb") as file:
            found = errors.from_torchelastic_file(file.read(_ERROR_FILE_LIMIT_BYTES))
        if found is not None:
            return found
    except FileNotFoundError:
        pass
    try:
        with open(plan.stack_file, encoding="utf-8", errors="replace") as stacks:
            text = stacks.read(errors.TRACEBACK_LIMIT_BYTES)
    except FileNotFoundError:
        return None
    at = text.rfind("Fatal Python error")
    if at < 0:
        return None
    head = text[at:].splitlines()[0]
    return ErrorRecord(kind="native crash", message=head, traceback=text[at:], signature=f"native crash: {head}")
