"""The kernel log as a source of signals. Owns which feed is used, when a record is complete, and what was lost.

What a line means is ``keepstep.evidence.kernel``'s, the same code that reads a saved log.
"""

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence

import msgspec

from keepstep.adapters.kmsg.feeds import Batch, DeviceFeed, Feed, FileFeed, JournalFeed, Unavailable
from keepstep.adapters.kmsg.position import Position
from keepstep.core.catalog import CATALOG, Verdict
from keepstep.core.observation import Observation
from keepstep.evidence.kernel.bursts import Bursts
from keepstep.evidence.kernel.reader import KernelLog
from keepstep.ports import Outlet

log = logging.getLogger("keepstep.agent")

_QUIET_S = 0.15
"""After so long without a line, a record of several lines is taken as complete."""
_KEEP_S = 5.0
_TRY_AGAIN_S = 10.0


class KernelLogSource:
    """Reads what was there before once, marked ``old``; then follows."""

    name = "kmsg"

    def __init__(
        self, *, path: str = "", position: Position | None = None, may_keep: Callable[[], bool] = lambda: True
    ) -> None:
        """``path``: a file or another device instead of this node's own. ``may_keep``: whether all that was seen so far is
        safe, so that the next life of the agent may go on from here."""
        self._path = path
        self._position = position or Position()
        self._may_keep = may_keep
        self._log = _reader()
        self._lines = 0
        self._mark = ("", 0)
        self._lost = 0
        self._broken = 0
        self._has_worked = False

    async def run(self, outlet: Outlet) -> None:
        keeping = asyncio.ensure_future(self._keep_position())
        try:
            while True:
                if not await self._follow_first_that_works(outlet):
                    return
                await asyncio.sleep(_TRY_AGAIN_S)
        finally:
            keeping.cancel()

    async def _follow_first_that_works(self, outlet: Outlet) -> bool:
        """True where a feed has worked, now or before: it may come back. False where there never was one."""
        reasons = []
        for feed in self._feeds():
            try:
                await self._follow(feed, outlet)
            except Unavailable as problem:
                reasons.append(str(problem))
            except OSError as error:
                outlet.coverage("failing", f"{feed.name}: {error}")
                return True
        outlet.coverage("failing" if self._has_worked else "absent", "; ".join(reasons))
        return self._has_worked

    def _feeds(self) -> Iterable[Feed]:
        if self._path:
            yield DeviceFeed(self._path, self._position) if _is_device(self._path) else FileFeed(self._path)
            return
        yield DeviceFeed("/dev/kmsg", self._position)
        if (program := shutil.which("journalctl")) is not None:
            yield JournalFeed(program, self._position)

    async def _follow(self, feed: Feed, outlet: Outlet) -> None:
        kind = "device" if isinstance(feed, DeviceFeed) else "journal" if isinstance(feed, JournalFeed) else ""
        flushing: asyncio.TimerHandle | None = None
        was_old = False
        seen = False
        loop = asyncio.get_running_loop()
        async for batch in feed.batches():
            if not seen:
                seen = self._has_worked = True
                outlet.coverage("seen", feed.name)
            if was_old and not batch.old:
                self._flush(outlet, True)
            was_old = batch.old
            self._take(batch, outlet)
            if kind:
                self._mark = (kind, batch.mark)
            if flushing is not None:
                flushing.cancel()
            flushing = loop.call_later(_QUIET_S, self._flush, outlet, was_old)
        raise OSError("the log ended")

    def _take(self, batch: Batch, outlet: Outlet) -> None:
        if batch.lost:
            self._lost += batch.lost
            outlet.level("", "kmsg.lost", float(self._lost))
        for record in batch.lines:
            for line in record.split("\n"):
                self._lines += 1
                _tell(self._read(line, outlet), outlet, batch.old)
        self._tell_names(outlet)

    def _read(self, line: str, outlet: Outlet) -> list[Observation]:
        try:
            return self._log.feed(self._lines, line)
        except Exception:
            # A line that breaks the reader stands in the ring for days: it must cost itself, and not all that comes after it.
            self._broken += 1
            outlet.level("", "kmsg.unreadable", float(self._broken))
            if self._broken == 1:
                log.exception("a line of the kernel log broke its reader")
            self._log = _reader()
            return []

    def _flush(self, outlet: Outlet, old: bool) -> None:
        _tell(self._log.flush(), outlet, old)
        self._tell_names(outlet)

    def _tell_names(self, outlet: Outlet) -> None:
        """Hands on which names are one part, and forgets what only a reader of a file wants to know."""
        for same in self._log.reading.same:
            outlet.same(same)
        self._log.reading.same.clear()
        self._log.reading.fine.clear()

    async def _keep_position(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_S)
            kind, mark = self._mark
            if not kind or not self._may_keep():
                continue
            try:
                self._position.keep(kind, mark)
            except OSError as error:
                # The next life tells more as old than it need; that a disk is full must not blind this one.
                log.warning("how far the kernel log was read cannot be kept: %s", error)
                return


class _EachOne(Bursts):
    """Every record is told: joining repeated signals is the outlet's, which counts them and forgets in time."""

    def add(self, seen: Observation) -> bool:
        return True


def _reader() -> KernelLog:
    reader = KernelLog()
    reader.bursts = _EachOne()
    return reader


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def _tell(observations: Sequence[Observation], outlet: Outlet, old: bool) -> None:
    """What was old before we came is told where it matters, and says so: nothing is to be done for it now."""
    for seen in observations:
        if old:
            if CATALOG.row(seen.signal).verdict is Verdict.BENIGN:
                continue
            seen = msgspec.structs.replace(seen, attributes={**seen.attributes, "old": "yes"})
        outlet.observe(msgspec.structs.replace(seen, source="kmsg", line=0, file=""))
