"""Health of the drives, asked with ``smartctl``. A drive that hangs takes a child with it, not the agent."""

import asyncio
import json
import shutil
import time
from typing import Any

from msgspec.structs import replace

from keepstep.adapters.probe import Probes
from keepstep.adapters.sysfs.deltas import Standing
from keepstep.adapters.sysfs.watching import CLOCK
from keepstep.core.observation import Observation
from keepstep.evidence.storage import drive as drives_of
from keepstep.evidence.storage import smart_json
from keepstep.evidence.storage.drive import Drive
from keepstep.ports import Outlet

PERIOD_S = 3600.0
TIMEOUT_S = 60.0


class SmartSource:
    name = "smart"

    def __init__(self, program: str = "smartctl", period_s: float = PERIOD_S, timeout_s: float = TIMEOUT_S) -> None:
        self._program, self._period_s, self._timeout_s = program, period_s, timeout_s
        self._probes, self._told = Probes(), Standing()

    async def run(self, outlet: Outlet) -> None:
        while True:
            if shutil.which(self._program) is None:
                outlet.coverage("absent", f"there is no {self._program}")
                return
            answer = await self._probes.run((self._program, "--scan", "-j"), self._timeout_s, name="scan")
            devices = _devices(answer.stdout)
            state = "failing" if answer.outcome == "hung" else "seen" if devices else "absent"
            outlet.coverage(state, f"{len(devices)} drives")  # type: ignore[arg-type]
            await self._look(devices, outlet)
            await asyncio.sleep(self._period_s)

    async def _look(self, devices: list[str], outlet: Outlet) -> None:
        drives: list[Drive] = []
        for device in devices:
            # One after the other: the drives share a controller, and a health check must not load it.
            argv = (self._program, "-j", "-a", "-n", "standby", device)
            answer = await self._probes.run(argv, self._timeout_s, name=device)
            if self._told.begins(f"hung {device}", answer.outcome == "hung"):
                outlet.observe(self._hung(device))
            found = _json(answer.stdout)
            if smart_json.is_report(found):
                drives.append(smart_json.of_report(found))
        told = drives_of.judge(drives, "", self.name, "")
        for same in smart_json.serials(drives):
            outlet.same(same)
        standing = {(seen.part, seen.signal): seen for seen in told.observations}
        for drive in drives:
            _levels(drive, outlet)
            for signal in SIGNALS:
                seen = standing.get((drive.part, signal))
                if self._told.begins(f"{drive.part} {signal}", seen is not None) and seen is not None:
                    outlet.observe(replace(seen, at_s=time.monotonic(), clock=CLOCK))

    def _hung(self, device: str) -> Observation:
        detail = f"{device} has not answered {self._program} within {self._timeout_s:g} s"
        return Observation(
            signal="probe.hung", part=f"disk/{device.rpartition('/')[2]}", detail=detail,
            attributes={"probe": f"{self._program} {device}"}, source=self.name, at_s=time.monotonic(), clock=CLOCK,
        )  # fmt: skip


SIGNALS = (
    "smart.failed", "smart.read_only", "smart.media_errors", "smart.missing", "smart.worn", "smart.hot", "smart.errors",
    "smart.unreadable",
)  # fmt: skip


def _json(output: bytes) -> Any:
    try:
        return json.loads(output)
    except (ValueError, RecursionError):
        return None


def _devices(output: bytes) -> list[str]:
    found = _json(output)
    devices = found.get("devices") if isinstance(found, dict) else None
    return (
        [x["name"] for x in devices[:256] if isinstance(x, dict) and isinstance(x.get("name"), str)]
        if isinstance(devices, list)
        else []
    )


def _levels(drive: Drive, outlet: Outlet) -> None:
    for counter, value in (("media_errors", drive.media_errors), ("spare_percent", drive.spare), ("used_percent", drive.used),
                           ("temperature_c", drive.temperature), ("reallocated", drive.reallocated)):  # fmt: skip
        if value is not None:
            outlet.level(drive.part, counter, float(value))
