"""What the vendor's diagnostic and health watch mean by their codes. Data only.

Three kinds: a fault that names its class; a warning below a threshold that is disputed; the tool's own trouble, which says
nothing about the device.
"""

CODES: dict[int, str] = {
    3: "gpu.pcie.replay", 4: "gpu.ecc.dbe", 5: "gpu.ecc.sbe", 6: "gpu.retired.pending", 7: "gpu.retired.limit",
    8: "gpu.retired.limit",
    9: "gpu.inforom", 10: "gpu.throttle.sw_thermal", 12: "gpu.throttle.sw_power", 13: "gpu.nvlink.errors",
    14: "gpu.nvlink.down",
    20: "gpu.count", 30: "gpu.diag.warning", 31: "gpu.diag.warning", 33: "gpu.diag.warning", 34: "gpu.diag.warning",
    35: "gpu.diag.warning", 36: "gpu.diag.warning", 38: "gpu.diag.warning", 39: "gpu.diag.warning",
    40: "gpu.throttle.sw_thermal",
    41: "gpu.throttle.sw_thermal", 42: "gpu.temperature.high", 43: "gpu.diag.warning", 45: "gpu.diag.warning",
    46: "gpu.pcie.width",
    50: "gpu.diag.warning", 52: "gpu.diag.memory", 55: "gpu.config.drift", 57: "gpu.ecc.dbe", 58: "gpu.diag.memory",
    29: "gpu.config.drift",
    62: "gpu.diag.warning", 63: "gpu.diag.warning", 70: "gpu.nvlink.errors", 71: "gpu.nvlink.recovery_failed",
    72: "gpu.config.drift",
    79: "gpu.diag.memory", 80: "gpu.remap.failed", 81: "gpu.poison.fatal", 83: "gpu.retired.pending", 84: "gpu.remap.some",
    85: "gpu.remap.pending", 86: "gpu.diag.failed", 87: "gpu.diag.failed", 88: "gpu.nvlink.down", 95: "gpu.diag.failed",
    98: "gpu.diag.warning", 99: "gpu.nvlink.down", 100: "gpu.nvlink.down", 101: "gpu.diag.warning", 102: "gpu.ecc.sbe",
    103: "gpu.ecc.dbe", 104: "gpu.pcie.replay", 105: "gpu.ecc.sbe", 106: "gpu.ecc.dbe", 107: "gpu.pcie.replay",
    108: "gpu.fabric.state",
    110: "gpu.diag.warning", 111: "gpu.diag.failed", 112: "gpu.fabric.state", 113: "gpu.diag.failed", 114: "gpu.diag.failed",
    115: "gpu.diag.failed", 116: "gpu.diag.failed", 118: "gpu.ecc.sram", 119: "gpu.nvlink.ber", 120: "gpu.lost",
    121: "gpu.nvlink.ber",
    122: "gpu.imex", 123: "gpu.fabric.state", 125: "gpu.recovery_action.reset", 126: "gpu.recovery_action.reboot",
    127: "gpu.recovery_action.drain_p2p", 128: "gpu.recovery_action.drain_reset", 131: "gpu.poison", 132: "gpu.remap.many",
}  # fmt: skip

TOOL = frozenset((
    1, 2, 11, 18, 19, 21, 22, 23, 24, 25, 26, 27, 28, 32, 37, 44, 47, 48, 49, 51, 53, 54, 56, 59, 60, 61, 64, 65, 66,
    67, 68, 69, 73,
    74, 75, 76, 77, 78, 82, 89, 90, 91, 92, 93, 94, 96, 97, 117, 124, 129, 130,
))  # fmt: skip

WORDS: tuple[tuple[str, str], ...] = (
    ("pending page retirement", "gpu.retired.pending"), ("pending retired page", "gpu.retired.pending"),
    ("row remap failure", "gpu.remap.failed"), ("row remapping failure", "gpu.remap.failed"), ("failed row remap",
    "gpu.remap.failed"),
    ("pending row remap", "gpu.remap.pending"), ("row remapping is pending", "gpu.remap.pending"), ("uncorrectable row",
    "gpu.remap.some"),
    ("double-bit", "gpu.ecc.dbe"), ("double bit", "gpu.ecc.dbe"), ("dbe", "gpu.ecc.dbe"),
    ("memory mismatch", "gpu.diag.memory"), ("faulty memory", "gpu.diag.memory"), ("miscompare", "gpu.diag.memory"),
    ("uncontained", "gpu.poison.fatal"), ("inforom", "gpu.inforom"), ("sram", "gpu.ecc.sram"),
    ("retired pages", "gpu.retired.limit"), ("fallen off", "gpu.lost"), ("gpu is lost", "gpu.lost"),
    ("is currently down", "gpu.nvlink.down"), ("fabric manager", "gpu.fabric.state"), ("power violation",
    "gpu.throttle.sw_power"),
    ("thermal violation", "gpu.throttle.sw_thermal"), ("nvlink errors", "gpu.nvlink.errors"), ("nvlink error",
    "gpu.nvlink.errors"),
    ("replays per minute", "gpu.pcie.replay"), ("single-bit", "gpu.ecc.sbe"), ("single bit", "gpu.ecc.sbe"), ("sbe",
    "gpu.ecc.sbe"),
    ("skipped", ""), ("persistence mode", "gpu.config.drift"), ("below the minimum", "gpu.diag.warning"),
    ("exceeds the maximum", "gpu.diag.warning"), ("does not meet", "gpu.diag.warning"), ("gflops", "gpu.diag.warning"),
    ("dcgm_st_", "gpu.driver.tool"), ("couldn't find", "gpu.driver.tool"), ("cannot be run", "gpu.driver.tool"),
    ("could not be loaded", "gpu.driver.tool"), ("unable to allocate", "gpu.driver.tool"), ("api call", "gpu.driver.tool"),
    ("busy or unavailable", "gpu.driver.tool"), ("using cuda api", "gpu.driver.tool"), ("cuda context", "gpu.driver.tool"),
    ("timed out", "gpu.driver.tool"), ("in use", "gpu.driver.tool"),
)  # fmt: skip


def meaning(code: int | None, text: str) -> str:
    """The signal of one finding: by its code where there is one, by its words otherwise; empty where nothing is said."""
    if code is not None and code in CODES:
        return CODES[code]
    if code is not None and code in TOOL:
        return "gpu.driver.tool"
    low = text.lower()
    return next((signal for words, signal in WORDS if words in low), "gpu.diag.failed")
