"""The node's forecast, made where its counters are: histories of a day, in memory, told to the server now and then.

Owns when it is made and which of our sources' counters mean what; the score is ``core.health``. It is no verdict and no fact.
"""

import time
from collections.abc import Mapping

import msgspec

from keepstep.core.health.level import COUNTERS, VENDOR_NAMES
from keepstep.core.health.report import HealthReport, assess
from keepstep.core.health.window import History, Sample, extended

SAMPLE_S = 300.0
TELL_S = 900.0
NEWS_INDEX = 5.0
"""A change of the index that is told at once."""
PARTS_TOLD = 8

OURS: dict[str, str] = {
    "gpu.ecc.corrected": "ecc_corrected",
    "gpu.ecc.volatile": "ecc_uncorrected",
    "gpu.remap.uncorrectable": "rows_remapped",
    "gpu.pcie.replay": "pcie_replays",
    "gpu.nvlink.crc": "nvlink_errors",
    "gpu.temperature": "temperature_c",
    "gpu.temperature.margin": "margin_c",
    "ce_count": "dram_corrected",
}
"""What our own sources call a counter -> its name in the score."""


class HealthWatch:
    def __init__(self) -> None:
        self._histories: dict[str, History] = {"": History()}
        self._sampled_s = self._told_s = float("-inf")
        self._told_index = 0.0

    def look(self, levels: Mapping[tuple[str, str], float]) -> HealthReport | None:
        """Called every second with the newest values: a report when one is due."""
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)  # durations only: a wall clock may jump
        if now_s - self._sampled_s < SAMPLE_S:
            return None
        self._sampled_s = now_s
        self._remember(levels, now_s)
        report = assess(self._histories, now_s)
        if now_s - self._told_s < TELL_S and abs(report.index - self._told_index) < NEWS_INDEX:
            return None
        self._told_s, self._told_index = now_s, report.index
        return msgspec.structs.replace(report, parts=report.parts[:PARTS_TOLD])

    def _remember(self, levels: Mapping[tuple[str, str], float], now_s: float) -> None:
        samples: dict[str, list[Sample]] = {}
        for (part, counter), value in levels.items():
            name = OURS.get(counter) or VENDOR_NAMES.get(counter) or (counter if counter in COUNTERS else None)
            if name is not None:
                samples.setdefault(part, []).append(Sample(counter=name, at_s=now_s, value=value))
        for part, some in samples.items():
            self._histories[part] = extended(self._histories.get(part, History()), some)
