"""The counters and gauges that health is judged by, under names that no vendor owns.

Owns names, units, scales and how a vendor's name maps to ours. It reads no device and weighs nothing: weights are data of their
own (``weights.py``).
"""

import math
from typing import Literal

from msgspec import Struct

Shape = Literal["counter", "gauge"]
"""counter: only grows, until it is reset, wraps or is full. gauge: goes up and down."""

HIGHEST = 1.0e18
"""Readings above it are noise of a driver (all bits set), not a count."""
STRONGEST = math.log1p(1000.0)
"""No strength exceeds that of a thousand times the scale: one absurd reading must not decide alone."""


class Counter(Struct, frozen=True, kw_only=True):
    """One quantity: what it counts, in which unit, and how much of it is remarkable."""

    text: str
    unit: str
    shape: Shape = "counter"
    scale: float = 1.0
    """For a counter: this many a day are remarkable (strength ln 2). For a gauge: see ``features.py``."""
    wraps_at: tuple[float, ...] = (2.0**32, 2.0**64)
    """Where it starts again at 0. Only a fall from close below one of them counts as a wrap, else it was reset."""
    full_at: tuple[float, ...] = ()
    """Where it stands still for good (InfiniBand's narrow counters): from there on it is blind."""


COUNTERS: dict[str, Counter] = {
    "ecc_corrected": Counter(text="corrected memory errors", unit="errors", scale=20.0),
    "ecc_uncorrected": Counter(text="uncorrected memory errors", unit="errors"),
    "rows_remapped": Counter(text="memory rows or pages taken out of use", unit="rows"),
    "pcie_replays": Counter(text="PCIe packets sent again", unit="packets", scale=50.0),
    "pcie_resets": Counter(text="PCIe link recoveries and resets", unit="events"),
    "nvlink_errors": Counter(text="errors of the links between accelerators", unit="errors", scale=20.0),
    "throttle_s": Counter(text="time throttled by the hardware", unit="s", scale=600.0),
    "nic_symbol_errors": Counter(
        text="symbol errors of a network port", unit="errors", scale=120.0, full_at=(65535.0,)
    ),
    "link_downed": Counter(text="times a network link went down", unit="events", full_at=(255.0,)),
    "dram_corrected": Counter(text="corrected errors of host memory", unit="errors", scale=20.0),
    "temperature_c": Counter(text="temperature", unit="°C", shape="gauge"),
    "margin_c": Counter(text="distance to the slowdown temperature", unit="°C", shape="gauge"),
    "inlet_c": Counter(text="temperature of the inlet air or coolant", unit="°C", shape="gauge"),
    "step_time_ratio": Counter(text="step time against the median of the ranks", unit="", shape="gauge"),
}

VENDOR_NAMES: dict[str, str] = {
    # NVIDIA, as DCGM's exporter prints it: before and after the renaming.
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": "ecc_corrected",
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": "ecc_uncorrected",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "pcie_replays",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "nvlink_errors",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_GPU_TEMP_LIMIT": "margin_c",
    "DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS": "margin_c",
    # AMD, as its metrics exporter prints it.
    "gpu_ecc_correct_total": "ecc_corrected",
    "gpu_ecc_uncorrect_total": "ecc_uncorrected",
    "pcie_replay_count": "pcie_replays",
    "pcie_recovery_count": "pcie_resets",
    "gpu_junction_temperature": "temperature_c",
    # InfiniBand ports, as the kernel and node_exporter name them.
    "symbol_error": "nic_symbol_errors",
    "node_infiniband_symbol_error_total": "nic_symbol_errors",
    "link_downed": "link_downed",
    "node_infiniband_link_downed_total": "link_downed",
}
"""Only quantities that mean the same in the same unit; what needs arithmetic first is its adapter's work."""


def usable(value: float) -> bool:
    """Whether a reading can be true: finite, and of a size that a counter can have."""
    return math.isfinite(value) and -HIGHEST < value < HIGHEST


def strength(per_day: float, scale: float) -> float:
    """How remarkable an amount is: 0 for none, ln 2 at its scale, growing with the logarithm, never above STRONGEST."""
    return min(STRONGEST, math.log1p(max(0.0, per_day) / scale))
