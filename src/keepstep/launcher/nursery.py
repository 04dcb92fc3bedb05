"""The launcher's side of the zygote: starts it, keeps one rendezvous store ahead, passes births and deaths on.

Owns the zygote process and its stores. It must not know what a rank is for.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from keepstep.launcher import control, pidfds
from keepstep.launcher.control import Exited, RankNotStarted, RankStarted, Ready, StoreUp
from keepstep.launcher.settings import Settings
from keepstep.wire import environment

log = logging.getLogger("keepstep.launcher")

_RESTART_PAUSE_S = 0.5
_STORE_END_WAIT_S = 5.0
_ROOM_WAIT_S = 20.0
"""For a zygote that is busy, or has lost its CPU, to take the orders that are waiting for it."""
_STORE_FAILURES_MAX = 5


class Births(Protocol):
    """Who is told of births and deaths. ``pidfd`` is owned by the receiver."""

    def rank_started(self, started: RankStarted, pidfd: int) -> None: ...

    def rank_not_started(self, failed: RankNotStarted) -> None: ...

    def process_exited(self, exited: Exited) -> None: ...

    def all_lost(self) -> None:
        """The zygote is gone, and with it every rank."""


@dataclass
class _Store:
    address: str
    pid: int
    pidfd: int
    offered_under: int | None = None
    """The newest generation that was known when its address was given away; None while nobody has it."""


@dataclass
class Nursery:
    """One zygote at a time; a dead one is replaced."""

    settings: Settings
    births: Births
    _link: socket.socket | None = None
    _process: "subprocess.Popen[bytes] | None" = None
    _stores: list[_Store] = field(default_factory=list)
    _store_news: asyncio.Event = field(default_factory=asyncio.Event)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _no_store: str = ""
    _store_asked: bool = False
    _store_failures: int = 0
    _store_pids: set[int] = field(default_factory=set)
    """Announced, and not reaped yet."""
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    """The zygote takes orders again, or is gone."""
    _closing: bool = False
    _later: "set[asyncio.Task[None]]" = field(default_factory=set)
    why_cold: str = ""

    def start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        command = [
            sys.executable, "-m", "keepstep.launcher.zygote", "--link", str(theirs.fileno()), "--parent",
            str(os.getpid()), "--address", self.settings.address, "--preload", ",".join(self.settings.preload),
            *(["--cold"] if self.settings.cold_start else []), "--", *self.settings.argv,
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0, env=self._environment()
            )
        finally:
            theirs.close()
        self._link = ours
        self._ready.clear()
        self._no_store, self._store_asked = "", True
        asyncio.get_running_loop().add_reader(ours, self._readable)

    def _environment(self) -> dict[str, str]:
        own = {
            environment.TOKEN: self.settings.token,
            environment.GENERATION: control.NO_GENERATION,
            environment.JOB: self.settings.job,
            environment.NODE: self.settings.node,
        }
        # One thread per rank unless the user says otherwise, as torchrun does; a pool of OpenBLAS would forbid forking.
        return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ, **own}

    async def ready(self) -> None:
        """Preloading is over."""
        await self._ready.wait()

    async def start_rank(self, plan: control.RankPlan, fds: Sequence[int]) -> None:
        """The birth is told to ``births``. Raises OSError where the zygote is gone, or takes no orders."""
        while self._link is not None:
            try:
                control.send(self._link, control.StartRank(plan=plan), fds)
                return
            except BlockingIOError:
                await self._wait_for_room(self._link)
        raise ConnectionError("the zygote is being restarted")

    async def _wait_for_room(self, link: socket.socket) -> None:
        self._room.clear()
        asyncio.get_running_loop().add_writer(link, self._look_no_more)
        try:
            async with asyncio.timeout(_ROOM_WAIT_S):
                await self._room.wait()
        finally:
            self._look_no_more()

    def _look_no_more(self) -> None:
        if self._link is not None:
            asyncio.get_running_loop().remove_writer(self._link)
        self._room.set()

    async def offer_store(self, newest_generation: int) -> str:
        """An address that no generation can have used: never given away, or only since ``newest_generation`` is known.

        Empty where this job has no store of ours. Waits for a store that is being started.
        """
        while True:
            for store in self._stores:
                if store.offered_under in (None, newest_generation):
                    store.offered_under = newest_generation
                    return store.address
            if self._no_store:
                return ""
            self._ask_for_store()
            self._store_news.clear()
            await self._store_news.wait()

    async def retire_stores(self, generation: int) -> None:
        """Ends the stores that a generation up to this one may have used; nobody can reach them when it returns."""
        old = [one for one in self._stores if one.offered_under is not None and one.offered_under < generation]
        for store in old:
            pidfds.kill(store.pidfd, signal.SIGKILL)
        if not await pidfds.all_ended([store.pidfd for store in old], _STORE_END_WAIT_S):
            log.error("a rendezvous store of generation %d or older does not end", generation)
        for store in old:
            self._end(store)

    def keep_one_ahead(self) -> None:
        """Starts a store if no fresh one waits. Called where there is time: a start takes the zygote some milliseconds."""
        if not self._no_store and all(store.offered_under is not None for store in self._stores):
            self._ask_for_store()

    def _ask_for_store(self) -> None:
        if self._link is None or self._store_asked:
            return
        self._store_asked = True
        try:
            control.send(self._link, control.StartStore(address=self.settings.address))
        except OSError:
            # The zygote is gone; its end is read from the same socket, and the next one brings a store.
            return

    def _end(self, store: _Store) -> None:
        if store not in self._stores:
            return
        pidfds.kill(store.pidfd, signal.SIGKILL)
        os.close(store.pidfd)
        self._stores.remove(store)

    def _readable(self) -> None:
        assert self._link is not None
        try:
            while (received := control.receive_report(self._link)) is not None:
                self._take(*received)
        except BlockingIOError:
            return
        except ConnectionError as error:
            log.warning("the zygote's connection broke: %s", error)
        self._lost()

    def _take(self, report: control.ToLauncher, fds: list[int]) -> None:
        match report:
            case RankStarted():
                self.births.rank_started(report, fds[0])
            case RankNotStarted():
                self.births.rank_not_started(report)
            case Exited(store=True):
                self._store_ended(report.pid)
            case Exited():
                self.births.process_exited(report)
            case StoreUp(address=address, pid=pid, why=why):
                self._store_asked = False
                if address:
                    self._store_failures = 0
                    self._store_pids.add(pid)
                    self._stores.append(_Store(address, pid, fds[0]))
                else:
                    self._no_store = why
                self._store_news.set()
            case Ready(why_cold=why_cold, seconds=seconds, preloaded=preloaded):
                self.why_cold = why_cold
                log.info(
                    "zygote ready after %.1f s, %d modules%s",
                    seconds,
                    len(preloaded),
                    why_cold and f"; cold: {why_cold}",
                )
                self._ready.set()

    def _store_ended(self, pid: int) -> None:
        """One that was up is no longer offered; one that never came up is asked for again, but not for ever."""
        if pid in self._store_pids:
            self._store_pids.discard(pid)
            for store in [store for store in self._stores if store.pid == pid]:
                log.warning("the rendezvous store at %s ended by itself", store.address)
                self._end(store)
            return
        self._store_asked = False
        self._store_failures += 1
        if self._store_failures >= _STORE_FAILURES_MAX and not self._no_store:
            self._no_store = "its process ends by itself"
            log.error("no rendezvous store: %s", self._no_store)
        self._store_news.set()

    def _lost(self) -> None:
        assert self._link is not None and self._process is not None
        self._look_no_more()
        asyncio.get_running_loop().remove_reader(self._link)
        self._link.close()
        self._link = None
        self._ready.clear()
        for store in list(self._stores):
            self._end(store)
        if self._closing:
            return
        log.error("the zygote (pid %d) ended; its ranks end with it, a new one is started", self._process.pid)
        self.births.all_lost()
        task = asyncio.ensure_future(self._start_again(self._process))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _start_again(self, old: "subprocess.Popen[bytes]") -> None:
        await asyncio.to_thread(old.wait)
        await asyncio.sleep(_RESTART_PAUSE_S)
        if not self._closing:
            self.start()

    def kill(self) -> None:
        """Ends a zygote that no longer does its work; its children end with it, and a new one is started."""
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """Ends the zygote and its stores."""
        self._closing = True
        for store in list(self._stores):
            self._end(store)
        self._look_no_more()
        if self._link is not None:
            asyncio.get_running_loop().remove_reader(self._link)
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
