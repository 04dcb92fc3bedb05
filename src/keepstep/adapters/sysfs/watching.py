"""Polling of kernel files: a thread that looks, and a source that hands on what it saw. Knows no file and no signal's meaning.

Reading an attribute may ask the device's firmware, and a dead one lets the reader wait for a minute. So the looks run in a
daemon thread: the loop goes on, and that a look does not come back is a signal itself.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct, field

from keepstep.core.figures import whole
from keepstep.core.observation import Observation, Same
from keepstep.ports import Outlet

log = logging.getLogger("keepstep.agent")

HANGS_AFTER_S = 20.0
CLOCK = "kernel"
"""The kernel's log and these looks are read from one clock: seconds since the start."""


class Batch(Struct, kw_only=True):
    """What one look saw."""

    observations: list[Observation] = field(default_factory=list)
    levels: list[tuple[str, str, float]] = field(default_factory=list)
    same: list[Same] = field(default_factory=list)
    coverage: tuple[Literal["seen", "absent", "failing"], str] = ("seen", "")


class Watch(Protocol):
    """Looks at once when asked; keeps what it needs to see changes."""

    name: str

    def look(self, now_s: float) -> Batch: ...


def listed(folder: Path) -> list[str]:
    """Names in a folder, sorted; none where it is not there or cannot be read now."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


class KeptFiles:
    """Files that are read again and again through descriptors that stay open."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def text(self, path: Path) -> str | None:
        """Its text, without the end of its line; None where it cannot be read now."""
        descriptor = self._open.get(path)
        try:
            if descriptor is None:
                descriptor = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(descriptor, 4096, 0).decode("utf-8", errors="replace").strip()
        except OSError:
            self.forget(path)
            return None

    def number(self, path: Path) -> int | None:
        text = self.text(path) or ""
        number = whole(text.removeprefix("-"))
        return -number if number is not None and text.startswith("-") else number

    def forget(self, path: Path) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            with contextlib.suppress(OSError):  # The device is gone: there is nothing to close any more.
                os.close(descriptor)

    def close(self) -> None:
        for path in list(self._open):
            self.forget(path)


class Polled:
    """The source of a watch."""

    def __init__(self, watch: Watch, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = watch.name
        self._watch, self._period_s, self._clock = watch, period_s, clock
        self._begun_s: float | None = None
        self._broken: Exception | None = None

    async def run(self, outlet: Outlet) -> None:
        loop = asyncio.get_running_loop()
        stop = threading.Event()
        self._begun_s = self._broken = None
        thread = threading.Thread(
            target=self._look_on, args=(loop, outlet, stop), name=f"watch-{self.name}", daemon=True
        )
        thread.start()
        hung = False
        try:
            while True:
                await asyncio.sleep(min(max(self._period_s, 1.0), HANGS_AFTER_S))
                if self._broken is not None:
                    raise self._broken
                begun = self._begun_s
                late_s = self._clock() - begun if begun is not None else 0.0
                if late_s > HANGS_AFTER_S and not hung:
                    hung = True
                    outlet.coverage("failing", f"a look has not come back for {late_s:.0f} s")
                    outlet.observe(self._hung(late_s))
                hung = hung and late_s > HANGS_AFTER_S
        finally:
            stop.set()

    def _hung(self, late_s: float) -> Observation:
        detail = f"reading {self.name} has not come back for {late_s:.0f} s"
        return Observation(
            signal="probe.hung", detail=detail, attributes={"probe": self.name}, source=self.name,
            at_s=self._clock(), clock=CLOCK,
        )  # fmt: skip

    def _look_on(self, loop: asyncio.AbstractEventLoop, outlet: Outlet, stop: threading.Event) -> None:
        try:
            self._look_again(loop, outlet, stop)
        except Exception as error:
            # A bug of the watch must not end in this thread unseen: whoever runs the source is told, and starts it again.
            log.exception("the watch %s broke", self.name)
            self._broken = error

    def _look_again(self, loop: asyncio.AbstractEventLoop, outlet: Outlet, stop: threading.Event) -> None:
        told: tuple[str, str] | None = None
        while not stop.is_set():
            self._begun_s = self._clock()
            batch = self._look()
            self._begun_s = None
            news, told = batch.coverage != told, batch.coverage
            if news or batch.observations or batch.levels or batch.same:
                try:
                    loop.call_soon_threadsafe(_hand_on, outlet, batch, news)
                except RuntimeError:  # The loop has ended while this thread was looking.
                    return
            stop.wait(self._period_s)

    def _look(self) -> Batch:
        try:
            return self._watch.look(self._clock())
        except OSError as error:
            return Batch(coverage=("failing", str(error)))


def _hand_on(outlet: Outlet, batch: Batch, news: bool) -> None:
    if news:
        outlet.coverage(*batch.coverage)
    for same in batch.same:
        outlet.same(same)
    for observation in batch.observations:
        outlet.observe(observation)
    for level in batch.levels:
        outlet.level(*level)
