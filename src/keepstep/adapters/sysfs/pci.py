"""PCI devices that a job needs: whether they are still there, how wide their links are, and which errors the bus counts.

Absence is told only against what was there before, after three complete enumerations in a row: one that fails, or that shows
nothing at all, is no enumeration.
"""

import os
from pathlib import Path

from keepstep.adapters.sysfs.deltas import Growth, Standing
from keepstep.adapters.sysfs.watching import CLOCK, Batch, KeptFiles
from keepstep.core.figures import whole
from keepstep.core.observation import pci_name
from keepstep.evidence.network.port import Origin

PERIOD_S = 10.0
DETAILS_EVERY_S = 60.0
COMPLETE = 3
CORRECTED_PER_HOUR = 1000
_CLASSES = {
    "0x0300": "gpu", "0x0302": "gpu", "0x1200": "gpu", "0x0200": "nic", "0x0207": "nic", "0x0208": "nic", "0x0108": "disk",
}  # fmt: skip
_AER = {"fatal": "TOTAL_ERR_FATAL", "nonfatal": "TOTAL_ERR_NONFATAL", "correctable": "TOTAL_ERR_COR"}


class PciWatch:
    name = "pci"

    def __init__(self, root: Path = Path("/sys")) -> None:
        self._base = root / "bus/pci/devices"
        self._files = KeptFiles()
        self._kinds: dict[str, str] = {}
        self._widest: dict[str, int] = {}
        self._known: set[str] = set()
        self._missing, self._narrow = Standing(COMPLETE), Standing(COMPLETE)
        self._errors: dict[tuple[str, str], Growth] = {}
        self._detailed_s = float("-inf")

    def look(self, now_s: float) -> Batch:
        batch = Batch()
        origin = Origin(source="pci", at_s=now_s, clock=CLOCK)
        try:
            there = set(os.listdir(self._base))
        except OSError as error:
            batch.coverage = ("absent" if not self._kinds else "failing", str(error))
            return batch
        if not there:
            batch.coverage = ("absent", "no PCI bus")
            return batch
        for address in sorted(there - self._known):
            self._learn(address)
        self._known |= there
        for address, kind in self._kinds.items():
            if self._missing.begins(address, address not in there):
                detail = f"{address} is missing from {COMPLETE} enumerations in a row"
                batch.observations.append(origin.seen(f"pci.missing.{kind}", f"{kind}/{pci_name(address)}", detail))
        if now_s - self._detailed_s >= DETAILS_EVERY_S:
            self._detailed_s = now_s
            for address, kind in self._kinds.items():
                if address in there:
                    self._details(address, kind, now_s, origin, batch)
        return batch

    def _learn(self, address: str) -> None:
        kind = _CLASSES.get((self._files.text(self._base / address / "class") or "")[:6], "")
        self._files.forget(self._base / address / "class")
        # A virtual function comes and goes with its setting.
        if kind and not (self._base / address / "physfn").exists():
            self._kinds[address] = kind
            self._widest[address] = self._files.number(self._base / address / "max_link_width") or 0
            self._files.forget(self._base / address / "max_link_width")

    def _details(self, address: str, kind: str, now_s: float, origin: Origin, batch: Batch) -> None:
        part = f"{kind}/{pci_name(address)}"
        widest, width = self._widest[address], self._files.number(self._base / address / "current_link_width")
        # A device that does not answer reads as all ones: no width at all.
        narrow = width is not None and 0 < width < widest
        if self._narrow.begins(address, narrow) and kind != "disk":
            batch.observations.append(origin.seen(f"pci.width.{kind}", part, f"x{width} of x{widest} lanes"))
        for sort, total in _AER.items():
            value = _total(self._files.text(self._base / address / f"aer_dev_{sort}"), total)
            if value is not None:
                self._aer(part, sort, value, now_s, origin, batch)

    def _aer(self, part: str, sort: str, value: int, now_s: float, origin: Origin, batch: Batch) -> None:
        growth = self._errors.get((part, sort))
        if growth is None:
            growth = self._errors[part, sort] = Growth(3600.0)
        grown = growth.feed(value, now_s)
        batch.levels.append((part, f"aer_{sort}", float(value)))
        kind = part.partition("/")[0]
        if sort == "fatal" and grown and kind != "disk":
            signal = f"pci.aer.fatal.{kind}"
        elif sort == "nonfatal" and grown:
            signal = "pci.aer.nonfatal"
        elif sort == "correctable" and grown >= CORRECTED_PER_HOUR:
            signal = "pci.aer.corrected"
        else:
            return
        growth.since_reset()
        batch.observations.append(
            origin.seen(signal, part, f"{grown} {sort} PCIe errors within the hour", value=str(grown))
        )


def _total(text: str | None, name: str) -> int | None:
    for line in (text or "").splitlines():
        word, _, value = line.strip().partition(" ")
        if word == name:
            return whole(value.strip())
    return None
