"""A vendor's driver as a source of signals: owns the child's life, its deadline, and what its silence means."""

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Mapping

import msgspec

from keepstep.adapters.devices.child import TalkingChild
from keepstep.adapters.devices.sweeps import Line, Sweeps
from keepstep.core.observation import Observation
from keepstep.evidence.gpu.driver_words import trouble
from keepstep.ports import Outlet

_DECODER = msgspec.json.Decoder(Line)
_BACK_OFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)
_ENOUGH = 2
"""Hangs in a row after which it is said: one may be a reset that somebody else does."""


class Hung(Exception):
    """The child did not say in time what it owes."""


class DeviceSource:
    """Follows one child that describes devices. Another library's source names its own child and its own name."""

    name = ""
    module = ""
    """What is run as the child."""
    library = ""
    """Python module of the vendor's library, which the child imports."""

    def __init__(self, *, interval_s: float = 10.0, deadline_s: float = 30.0, expected: int = 0) -> None:
        """``expected``: devices by the inventory; 0 where nobody says. Raises ValueError."""
        if interval_s <= 0 or deadline_s <= 0 or expected < 0:
            raise ValueError("interval_s and deadline_s must be above 0, expected 0 or more")
        self._interval_s, self._deadline_s, self._expected = interval_s, deadline_s, expected
        self._left: TalkingChild | None = None
        self._hangs = 0
        self._told_failed = ""
        self._swept = False
        self._module = ""

    def child(self) -> str:
        """The module that is run; empty where nothing that it needs is here."""
        return self.module if importlib.util.find_spec(self.library) is not None else ""

    def environ(self) -> Mapping[str, str]:
        """What the child is started with: where the vendor's library lies is told by it."""
        return os.environ

    async def run(self, outlet: Outlet) -> None:
        self._module = self.child()
        if not self._module:
            outlet.coverage("absent", f"the Python package {self.library} is not installed")
            return
        sweeps = Sweeps(self.name, outlet, self._expected)
        tries = 0
        while True:
            if self._left is not None and not self._left.ended():
                self._say_hung(outlet, f"pid {self._left.pid} does not even die of SIGKILL")
                again = True
            else:
                self._left, self._swept = None, False
                again = await self._once(sweeps, outlet)
                tries = 0 if self._swept else tries
            if not again:
                return
            await asyncio.sleep(_BACK_OFF_S[min(tries, len(_BACK_OFF_S) - 1)])
            tries += 1

    async def _once(self, sweeps: Sweeps, outlet: Outlet) -> bool:
        """One life of the child; False where there is nothing to see."""
        try:
            # -P -s: what lies about in the working directory is not imported beside the library.
            argv = [sys.executable, "-P", "-m", self._module, f"{self._interval_s:g}"]
            child = TalkingChild(argv, self.environ())
        except OSError as error:
            outlet.coverage("failing", f"{self.name}: the child was not started: {error.strerror or error}")
            return True
        try:
            return await self._follow(child, sweeps, outlet)
        except Hung as hung:
            self._hangs += 1
            if not await child.end():
                self._left = child
            if self._hangs >= _ENOUGH or self._left is not None:
                self._say_hung(outlet, str(hung))
            outlet.coverage("failing", f"{self.name}: {hung}")
            return True
        finally:
            if self._left is None:
                child.end_now()

    async def _follow(self, child: TalkingChild, sweeps: Sweeps, outlet: Outlet) -> bool:
        due_s = time.monotonic() + self._deadline_s
        sweeping = True
        while True:
            left_s = due_s - time.monotonic()
            try:
                text = await child.line(max(0.01, left_s))
            except TimeoutError:
                where = "a look at the devices" if sweeping else "the wait for events"
                raise Hung(f"no end of {where} within {self._deadline_s:g} s") from None
            if not text:
                outlet.coverage("failing", f"{self.name}: the child ended")
                return True
            line = _line(text)
            if line is None:
                continue
            if line.absent:
                return self._absent(line, outlet)
            if line.failed:
                self._failed(line.failed, outlet)
            elif line.begin is not None:
                sweeping, due_s = True, time.monotonic() + self._deadline_s
                sweeps.begin()
            elif line.card is not None:
                sweeps.card(line.card)
            elif line.end is not None:
                sweeping, due_s = False, time.monotonic() + self._interval_s + self._deadline_s
                self._hangs, self._told_failed, self._swept = 0, "", True
                outlet.coverage("seen", f"{line.end} devices")
                sweeps.end(time.monotonic())
            elif line.event is not None:
                sweeps.event(line.event)

    def _absent(self, line: Line, outlet: Outlet) -> bool:
        """Nothing of this kind is here; unless the inventory says that there must be."""
        outlet.coverage("absent", line.absent)
        if not self._expected:
            return False
        outlet.observe(
            Observation(
                signal="gpu.driver.down",
                detail=line.absent,
                source=self.name,
                attributes={"expected": str(self._expected)},
            )
        )
        return False

    def _failed(self, text: str, outlet: Outlet) -> None:
        outlet.coverage("failing", text)
        found = trouble(text)
        if found is None or text == self._told_failed:
            return
        self._told_failed = text
        outlet.observe(Observation(signal=found.signal, detail=text[:500], source=self.name))

    def _say_hung(self, outlet: Outlet, why: str) -> None:
        if self._told_failed == "hung":
            return
        self._told_failed = "hung"
        outlet.observe(
            Observation(
                signal=f"probe.hung.{self.name}", detail=f"the driver does not answer: {why}", source=self.name,
                attributes={"probe": self.name, "deadline_s": f"{self._deadline_s:g}"},
            )
        )  # fmt: skip


def _line(text: bytes) -> Line | None:
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError:
        # The library itself prints to standard output at times.
        return None
