"""Temperatures, fans and power of the host: sensors against their own critical limits, fans that stop, limits that are lowered.

A limit is the sensor's own; one that has none is only passed on as a level. Readings that cannot be (-128 °C, above 150 °C)
are a sensor's way to say that it has none.
"""

import re
from pathlib import Path

from keepstep.adapters.sysfs.deltas import Growth, Standing
from keepstep.adapters.sysfs.watching import CLOCK, Batch, KeptFiles, listed
from keepstep.evidence.network.port import Origin

PERIOD_S = 30.0
SURE = 3
_TEMPERATURE = re.compile(r"^(temp\d+)_input$")
_FAN = re.compile(r"^(fan\d+)_input$")


class ThermalWatch:
    name = "thermal"

    def __init__(self, root: Path = Path("/sys")) -> None:
        self._root = root
        self._files = KeptFiles()
        self._sensors: list[tuple[str, str, Path, int | None]] | None = None
        """(part, ``temp`` or ``fan``, file, critical limit in millidegrees)"""
        self._limits: dict[Path, int] = {}
        self._turned: set[str] = set()
        self._hot, self._still, self._lowered = Standing(SURE), Standing(SURE), Standing()
        self._energy: dict[Path, tuple[Growth, float]] = {}

    def look(self, now_s: float) -> Batch:
        batch = Batch()
        origin = Origin(source="thermal", at_s=now_s, clock=CLOCK)
        if self._sensors is None:
            self._sensors = self._find()
        for part, kind, path, critical in self._sensors:
            value = self._files.number(path)
            if value is None:
                continue
            if kind == "fan":
                self._fan(part, value, origin, batch)
            elif -40_000 < value < 150_000:
                batch.levels.append((part, "temperature_c", value / 1000))
                hot = critical is not None and value >= critical
                if self._hot.begins(part, hot) and critical is not None:
                    detail = f"{value / 1000:g} C, critical at {critical / 1000:g} C"
                    batch.observations.append(origin.seen("thermal.critical", part, detail, value=f"{value / 1000:g}"))
        self._power(now_s, origin, batch)
        if not self._sensors and not self._limits:
            batch.coverage = ("absent", "no sensor of the host is shown")
        return batch

    def _fan(self, part: str, value: int, origin: Origin, batch: Batch) -> None:
        batch.levels.append((part, "rpm", float(value)))
        if value > 0:
            self._turned.add(part)
        if self._still.begins(part, value == 0 and part in self._turned):
            batch.observations.append(origin.seen("thermal.fan", part, "stands still and was turning"))

    def _find(self) -> list[tuple[str, str, Path, int | None]]:
        found: list[tuple[str, str, Path, int | None]] = []
        base = self._root / "class/hwmon"
        for monitor in listed(base):
            name = self._files.text(base / monitor / "name") or monitor
            for file in listed(base / monitor):
                if match := _TEMPERATURE.match(file):
                    critical = self._files.number(base / monitor / f"{match.group(1)}_crit")
                    label = self._files.text(base / monitor / f"{match.group(1)}_label") or match.group(1)
                    found.append(
                        (
                            f"sensor/{name}.{label}",
                            "temp",
                            base / monitor / file,
                            critical if critical and critical > 0 else None,
                        )
                    )
                elif match := _FAN.match(file):
                    found.append((f"fan/{name}.{match.group(1)}", "fan", base / monitor / file, None))
        for domain in listed(self._root / "class/powercap"):
            path = self._root / "class/powercap" / domain / "constraint_0_power_limit_uw"
            limit = self._files.number(path)
            if limit:
                self._limits[path] = limit
            energy = self._root / "class/powercap" / domain / "energy_uj"
            if self._files.number(energy) is not None:
                self._energy[energy] = (Growth(PERIOD_S * 4), 0.0)
        return found

    def _power(self, now_s: float, origin: Origin, batch: Batch) -> None:
        for path, first in self._limits.items():
            value = self._files.number(path)
            lower = value is not None and value < first
            if self._lowered.begins(str(path), lower) and value is not None:
                detail = f"{path.parent.name}: {value / 1e6:g} W after {first / 1e6:g} W"
                batch.observations.append(origin.seen("power.host_limit", f"cpu/{path.parent.name}", detail))
        for path, (growth, before_s) in self._energy.items():
            value = self._files.number(path)
            if value is not None and growth.value is not None and value >= growth.value and now_s > before_s:
                watts = (value - growth.value) / 1e6 / (now_s - before_s)
                batch.levels.append((f"cpu/{path.parent.name}", "power_w", watts))
            if value is not None:
                growth.feed(value, now_s)
                self._energy[path] = (growth, now_s)
