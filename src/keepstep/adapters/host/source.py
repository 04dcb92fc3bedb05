"""The host as a source of signals: woken by the kernel where it offers that, a slow look where not.

Owns the rhythm and the limits; must not judge what a signal means for a job.
"""

import asyncio
import os
from collections.abc import Callable, Sequence

from keepstep.adapters.host import pressure, services
from keepstep.adapters.host.clock import STEP_S, ClockSteps, discipline, offset_s
from keepstep.adapters.host.services import Service
from keepstep.adapters.local import procfs
from keepstep.adapters.probe import Probes
from keepstep.core.observation import Observation
from keepstep.ports import Outlet

_LOOK_S = 5.0
_SLOW_LOOKS = 6
"""Every so many looks the dearer things: services, and the whole process table at every second of these."""
_STALL_LIMITS = {"memory": (0.1, 0.2), "io": (0.6, 0.4), "cpu": (1.1, 0.4)}
"""Full share over 10 s, some share over 300 s. A processor that is shared stalls nobody wholly."""
_RELEASED = 0.5
"""Pressure is over once it is below half of the limit: it must not be told again and again while it swings around it."""
_TELL_AGAIN_LOOKS = 360
_LUSTRE_DEADLINE_S = 5.0
_ZOMBIES_MAX = 500


class HostSource:
    name = "host"

    def __init__(
        self, declared: Sequence[Service] = (), *, boot_before: str = "", proc: str = "/proc",
        read_offset_s: Callable[[], float] = offset_s, lustre: str = "/sys/fs/lustre/health_check",
    ) -> None:  # fmt: skip
        """``boot_before``: the boot in which an agent of this node ran last, where one did."""
        self._services = declared
        self._boot_before = boot_before
        self._proc = proc
        self._read_offset_s = read_offset_s
        self._probes = Probes()
        self._oom_kills = -1
        self._stalled: dict[str, int] = {}
        self._down: set[str] = set()
        self._many_zombies = False
        self._skewed = False
        self._lustre = lustre
        self._lustre_ill = False

    async def run(self, outlet: Outlet) -> None:
        self._tell_reboot(outlet)
        clock = asyncio.get_running_loop().time
        steps, last_s = ClockSteps(self._read_offset_s), clock()
        woken = asyncio.Event()
        trigger, how = self._arm(woken)
        outlet.coverage("seen", how)
        number = 0
        try:
            while True:
                self._look_at_clock(steps, clock() - last_s, outlet)
                last_s = clock()
                self._look_at_pressure(number, outlet)
                self._look_at_kills(outlet)
                if number % _SLOW_LOOKS == 0:
                    self._look_at_skew(outlet)
                    await self._look_at_services(outlet)
                    await self._look_at_lustre(outlet)
                if number % (2 * _SLOW_LOOKS) == 0:
                    self._look_at_processes(outlet)
                number += 1
                await _pause(woken)
        finally:
            if trigger is not None:
                trigger.close()

    def _arm(self, woken: asyncio.Event) -> tuple[pressure.Trigger | None, str]:
        path = f"{self._proc}/pressure/memory"
        if pressure.read(self._proc, "memory") is None:
            return None, "this kernel does not measure pressure"
        try:
            return pressure.Trigger(path, woken.set), "memory pressure by the kernel's trigger"
        except OSError as error:
            return None, f"memory pressure by a look every {_LOOK_S:g} s: {error.strerror}"

    def _tell_reboot(self, outlet: Outlet) -> None:
        if self._boot_before and self._boot_before != procfs.boot_id():
            outlet.observe(_seen("host.reboot", f"boot {self._boot_before} is over", before=self._boot_before))

    def _look_at_clock(self, steps: ClockSteps, elapsed_s: float, outlet: Outlet) -> None:
        step_s = steps.step_s(elapsed_s)
        if step_s is not None:
            detail = f"the wall clock was moved by {step_s:+.3f} s"
            outlet.observe(_seen("host.clock_step", detail, value=f"{step_s:.3f}"))

    def _look_at_skew(self, outlet: Outlet) -> None:
        """A clock that nobody disciplines says nothing of its error: many nodes are like that, and it is no fault."""
        found = discipline()
        if found is None or not found.synchronised:
            return
        outlet.level("", "clock.offset_s", found.offset_s)
        skewed = abs(found.offset_s) > STEP_S
        if skewed and not self._skewed:
            detail = f"the wall clock is off by {found.offset_s:+.3f} s, as its own discipline says"
            outlet.observe(_seen("host.clock_skew", detail, value=f"{found.offset_s:.3f}"))
        self._skewed = skewed

    def _look_at_pressure(self, number: int, outlet: Outlet) -> None:
        for resource in pressure.RESOURCES:
            stall = pressure.read(self._proc, resource)
            if stall is None:
                continue
            outlet.level("", f"pressure.{resource}.some_300", stall.some_300)
            full_limit, some_limit = _STALL_LIMITS[resource]
            share = max(stall.full_10 / full_limit, stall.some_300 / some_limit)
            told = self._stalled.get(resource)
            if share < _RELEASED:
                self._stalled.pop(resource, None)
            elif share > 1 and (told is None or number - told >= _TELL_AGAIN_LOOKS):
                self._stalled[resource] = number
                some, full = f"{stall.some_300:.0%} of 5 min", f"{stall.full_10:.0%} of 10 s"
                detail = f"processes waited for {resource}: {some}, all of them {full}"
                outlet.observe(_seen(f"host.{resource}_pressure", detail, value=f"{stall.some_300:.3f}"))

    def _look_at_kills(self, outlet: Outlet) -> None:
        kills = _oom_kills(self._proc)
        if kills is None:
            return
        before, self._oom_kills = self._oom_kills, kills
        outlet.level("", "oom_kills", float(kills))
        if 0 <= before < kills:
            fresh = kills - before
            outlet.observe(_seen("host.oom_kill", f"{fresh} processes were ended for want of memory", value=str(fresh)))

    async def _look_at_services(self, outlet: Outlet) -> None:
        if not self._services:
            return
        for name, why in (await services.standing(self._services, self._probes)).items():
            if why and name not in self._down:
                self._down.add(name)
                outlet.observe(_seen("service.down", why, part=f"service/{name}"))
            elif not why and name in self._down:
                self._down.discard(name)
                outlet.observe(_seen("service.ok", "it runs again", part=f"service/{name}"))

    async def _look_at_lustre(self, outlet: Outlet) -> None:
        """The client's own word on its servers; asked by a child, since it asks code that may wait for them."""
        if not os.path.exists(self._lustre):
            return
        said = await self._probes.run(["cat", self._lustre], _LUSTRE_DEADLINE_S, name="lustre")
        text = said.stdout.decode("utf-8", "replace").strip()
        ill = said.outcome == "hung" or (said.outcome == "ok" and text != "healthy")
        if ill and not self._lustre_ill:
            outlet.observe(_seen("lustre.unhealthy", text or said.detail, part="dependency/lustre"))
        self._lustre_ill = ill

    def _look_at_processes(self, outlet: Outlet) -> None:
        states = [found.state for pid in procfs.pids() if (found := procfs.stat(pid)) is not None]
        zombies = states.count("Z")
        outlet.level("", "zombies", float(zombies))
        outlet.level("", "uninterruptible", float(states.count("D")))
        if zombies > _ZOMBIES_MAX and not self._many_zombies:
            outlet.observe(_seen("host.zombies", f"{zombies} ended processes are not collected", value=str(zombies)))
        self._many_zombies = zombies > _ZOMBIES_MAX


async def _pause(woken: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_LOOK_S):
            await woken.wait()
    except TimeoutError:
        return
    woken.clear()
    # The averages follow the trigger with a delay of up to two seconds.
    await asyncio.sleep(2.0)


def _oom_kills(proc: str) -> int | None:
    try:
        with open(f"{proc}/vmstat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    at = text.find(b"\noom_kill ")
    return int(text[at + 10 :].split(None, 1)[0]) if at >= 0 else None


def _seen(signal: str, detail: str, *, part: str = "", **attributes: str) -> Observation:
    return Observation(signal=signal, part=part, detail=detail[:500], attributes=attributes, source="host")


def boot_before(path: str, *, keep: bool = True) -> str:
    """The boot that an agent of this node wrote down last, empty for the first time; ``keep`` writes down the present one."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            before = file.read(64).strip()
    except OSError:
        before = ""
    now = procfs.boot_id()
    if keep and now != before:
        fresh = f"{path}.new"
        with open(fresh, "w", encoding="ascii") as file:
            file.write(now + "\n")
        os.replace(fresh, path)
    return before
