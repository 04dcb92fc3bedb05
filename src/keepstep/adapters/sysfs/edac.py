"""Errors of host memory as the kernel counts them, by controller and by DIMM where it can tell."""

from pathlib import Path

from keepstep.adapters.sysfs.deltas import Growth
from keepstep.adapters.sysfs.watching import CLOCK, Batch, KeptFiles, listed
from keepstep.evidence.network.port import Origin

PERIOD_S = 60.0
CORRECTED_PER_DAY = 1000


class EdacWatch:
    name = "edac"

    def __init__(self, root: Path = Path("/sys")) -> None:
        self._base = root / "devices/system/edac/mc"
        self._files = KeptFiles()
        self._growth: dict[str, Growth] = {}

    def look(self, now_s: float) -> Batch:
        batch = Batch()
        origin = Origin(source="edac", at_s=now_s, clock=CLOCK)
        controllers = [name for name in listed(self._base) if name.startswith("mc")]
        if not controllers:
            batch.coverage = ("absent", "no memory controller reports errors")
        for controller in controllers:
            folder = self._base / controller
            dimms = [name for name in listed(folder) if name.startswith(("dimm", "rank")) and name[4:].isdecimal()]
            for dimm in dimms:
                label = self._files.text(folder / dimm / "dimm_label") or f"{controller}/{dimm}"
                self._counts(folder / dimm, "dimm_", f"dimm/{label}", origin, batch)
            if not dimms:
                self._counts(folder, "", f"dimm/{controller}", origin, batch)
        return batch

    def _counts(self, folder: Path, prefix: str, part: str, origin: Origin, batch: Batch) -> None:
        for sort, signal, limit in (
            ("ue_count", "edac.uncorrected", 1),
            ("ce_count", "edac.corrected", CORRECTED_PER_DAY),
        ):
            value = self._files.number(folder / f"{prefix}{sort}")
            if value is None:
                continue
            growth = self._growth.setdefault(f"{part} {sort}", Growth(86_400.0))
            grown = growth.feed(value, origin.at_s or 0.0)
            batch.levels.append((part, sort, float(value)))
            if grown >= limit:
                growth.since_reset()
                batch.observations.append(origin.seen(signal, part, f"{grown} more, {value} in all", value=str(grown)))
