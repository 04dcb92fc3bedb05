"""Rows of gpu signals: what the state of an accelerator means, whoever reads it. Data only."""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_MONITOR = "field reports and the vendor's monitoring defaults"
_VENDOR = "vendor documentation"
_NOW, _CKPT, _END = Urgency.NOW, Urgency.NEXT_CHECKPOINT, Urgency.JOB_END
_DEVICE, _POWER, _HOST = Cause.DEVICE, Cause.POWER, Cause.HOST_SOFTWARE
_CARD, _NODE = Scope.CARD, Scope.NODE
_BENIGN, _WATCH, _SUSPECT, _FAULTY = Verdict.BENIGN, Verdict.WATCH, Verdict.SUSPECT, Verdict.FAULTY

MEMORY: dict[str, Row] = {
    "gpu.ecc.dbe": row(
        _DEVICE, "gpu.memory.dbe", _CARD, _FAULTY, "uncorrectable memory errors since the driver loaded",
        urgency=_NOW, remedy=Remedy.RESET_DEVICE, confidence=0.9, source=_MONITOR,
        corroborate="a contained error (Xid 94) without a pending remap needs only the program restarted",
    ),
    "gpu.ecc.dbe.history": row(
        _DEVICE, "gpu.memory.dbe", _CARD, _WATCH,
        "uncorrectable memory errors in the card's life, none since the driver loaded",
        confidence=0.6, source=_MONITOR,
    ),
    "gpu.ecc.sbe": row(
        _DEVICE, "gpu.memory.sbe_rate", _CARD, _BENIGN,
        "corrected memory errors: the level counts into the score, not by itself",
        confidence=0.5, source=_MONITOR,
    ),
    "gpu.ecc.sbe.many": row(
        _DEVICE, "gpu.memory.sbe_rate", _CARD, _WATCH, "more than twenty million corrected memory errors",
        confidence=0.6, source=_MONITOR, corroborate="never a reason to isolate by itself",
    ),
    "gpu.ecc.sram": row(
        _DEVICE, "gpu.memory.sram", _CARD, _FAULTY, "the uncorrectable SRAM error threshold is exceeded",
        urgency=_CKPT, remedy=Remedy.REPLACE, confidence=0.9, source=_VENDOR,
    ),
    "gpu.ecc.sram.history": row(
        _DEVICE, "gpu.memory.sram", _CARD, _WATCH, "more than four uncorrectable SRAM errors in the card's life",
        confidence=0.7, source="field reports", remedy=Remedy.VALIDATE,
    ),
    "gpu.remap.pending": row(
        _DEVICE, "gpu.memory.remap", _CARD, _FAULTY, "a row remap waits for a device reset",
        urgency=_CKPT, remedy=Remedy.RESET_DEVICE, confidence=0.9, source=_VENDOR,
        corroborate="a reset of the device is enough; no reboot",
    ),
    "gpu.remap.failed": row(
        _DEVICE, "gpu.memory.remap_failed", _CARD, _FAULTY, "a row remap failed: no spare row is left where it is needed",
        urgency=_NOW, remedy=Remedy.REPLACE, confidence=0.95, source=_VENDOR,
    ),
    "gpu.remap.many": row(
        _DEVICE, "gpu.memory.remap", _CARD, _WATCH, "many rows were remapped because of uncorrectable errors",
        confidence=0.7, source=_MONITOR, remedy=Remedy.VALIDATE,
    ),
    "gpu.remap.some": row(
        _DEVICE, "gpu.memory.remap", _CARD, _BENIGN, "rows were remapped and are out of use: repaired", confidence=0.7,
        source=_VENDOR,
    ),
    "gpu.remap.spares": row(
        _DEVICE, "gpu.memory.remap", _CARD, _WATCH, "a memory bank has no spare rows left", confidence=0.7, source=_MONITOR,
    ),
    "gpu.retired.pending": row(
        _DEVICE, "gpu.memory.remap", _CARD, _FAULTY, "retired pages wait for a device reset",
        urgency=_CKPT, remedy=Remedy.RESET_DEVICE, confidence=0.9, source=_VENDOR,
    ),
    "gpu.retired.limit": row(
        _DEVICE, "gpu.memory.remap", _CARD, _FAULTY, "more than sixty memory pages retired: the card's limit",
        urgency=_CKPT, remedy=Remedy.REPLACE, confidence=0.95, source="vendor's return rule",
    ),
    "gpu.retired.dbe": row(
        _DEVICE, "gpu.memory.remap", _CARD, _WATCH, "more than fifteen pages retired for uncorrectable errors",
        confidence=0.7, source="vendor's return rule", corroborate="a fault when another one follows within a week",
    ),
    "gpu.retired.some": row(
        _DEVICE, "gpu.memory.remap", _CARD, _BENIGN, "pages were retired and are out of use", confidence=0.7, source=_VENDOR,
    ),
    "gpu.memory.unrepairable": row(
        _DEVICE, "gpu.memory", _CARD, _FAULTY, "the card's memory cannot be repaired any more",
        urgency=_NOW, remedy=Remedy.REPLACE, confidence=0.95, source=_VENDOR,
    ),
    "gpu.memory.repair_pending": row(
        _DEVICE, "gpu.memory.remap", _CARD, _FAULTY, "a channel or processor repair waits for a device reset",
        urgency=_CKPT, remedy=Remedy.RESET_DEVICE, confidence=0.85, source=_VENDOR,
    ),
    "gpu.poison": row(
        _DEVICE, "gpu.memory.contained", _CARD, _WATCH, "poisoned data was consumed and contained",
        urgency=_END, confidence=0.7, source=_VENDOR,
    ),
    "gpu.poison.fatal": row(
        _DEVICE, "gpu.memory.uncontained", _CARD, _FAULTY, "poisoned data was consumed and not contained",
        urgency=_NOW, remedy=Remedy.RESET_DEVICE, confidence=0.9, source=_VENDOR,
    ),
    "gpu.retirement": row(
        _DEVICE, "gpu.memory.remap", _CARD, _WATCH, "the driver took a page or row out of use",
        urgency=_END, confidence=0.7, source=_VENDOR,
    ),
}  # fmt: skip

STATE: dict[str, Row] = {
    "gpu.recovery_action.reset": row(
        _DEVICE, "gpu.recovery_action", _CARD, _FAULTY, "the driver asks for a reset of the device",
        urgency=_NOW, remedy=Remedy.RESET_DEVICE, confidence=0.95, source="driver",
    ),
    "gpu.recovery_action.reboot": row(
        _DEVICE, "gpu.recovery_action", _NODE, _FAULTY, "the driver asks for a reboot of the node",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.95, source="driver",
    ),
    "gpu.recovery_action.drain_p2p": row(
        _DEVICE, "gpu.recovery_action", _CARD, _SUSPECT, "the driver asks that peer traffic of the device be drained",
        urgency=_CKPT, remedy=Remedy.VALIDATE, confidence=0.85, source="driver",
    ),
    "gpu.recovery_action.drain_reset": row(
        _DEVICE, "gpu.recovery_action", _CARD, _FAULTY, "the driver asks that the device be drained and reset",
        urgency=_CKPT, remedy=Remedy.RESET_DEVICE, confidence=0.95, source="driver",
    ),
    "gpu.recovery_action.imex": row(
        Cause.NETWORK, "nvlink.fabric", Scope.RACK, _FAULTY, "the driver asks that the domain's memory exchange be recovered",
        urgency=_NOW, remedy=Remedy.RESTART_SERVICE, confidence=0.9, source="driver",
    ),
    "gpu.reset_required": row(
        _DEVICE, "gpu.recovery_action", _CARD, _FAULTY, "the device answers nothing until it is reset",
        urgency=_NOW, remedy=Remedy.RESET_DEVICE, confidence=0.95, source="driver",
    ),
    "gpu.lost": row(
        _DEVICE, "gpu.lost", _CARD, _FAULTY, "the driver has lost the device",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.95, source="driver",
    ),
    "gpu.unreadable": row(
        _DEVICE, "gpu.lost", _CARD, _SUSPECT, "the driver answers for the device with an error",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.7, source="driver",
        corroborate="a container without rights on the device prints the same",
    ),
    "gpu.count": row(
        _DEVICE, "gpu.lost", _NODE, _SUSPECT, "fewer devices answer than there are",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.8, source=_MONITOR,
        corroborate="the expected number comes from the inventory; a container sees only its own devices",
    ),
    "gpu.none": row(
        _DEVICE, "gpu.lost", _NODE, _SUSPECT, "the driver is loaded and finds no device",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.7, source="driver",
    ),
    "gpu.xid.last": row(
        _DEVICE, "unclassified", _CARD, _WATCH, "the last code that the driver reported, at some time since it loaded",
        confidence=0.4, source=_MONITOR, corroborate="the gauge never goes back: look for the code itself in the kernel log",
    ),
    "gpu.power.aux": row(
        _DEVICE, "gpu.power.aux", _CARD, _FAULTY, "the device says that its external power is not connected or too low",
        urgency=_NOW, remedy=Remedy.INSPECT, confidence=0.9, source="driver",
    ),
    "gpu.inforom": row(
        _DEVICE, "gpu.inforom", _CARD, _FAULTY, "the device's configuration storage is corrupt",
        urgency=_END, remedy=Remedy.REPLACE, confidence=0.85, source="driver",
    ),
    "gpu.driver.mismatch": row(
        _HOST, "software.driver", _NODE, _FAULTY, "the driver's library and its kernel module are of different versions",
        urgency=_END, remedy=Remedy.REBOOT, confidence=0.95, source="driver",
        corroborate="an upgrade without a reboot; running programs go on, new ones cannot start",
    ),
    "gpu.driver.down": row(
        _HOST, "software.driver", _NODE, _FAULTY, "the driver does not answer: its module is not loaded or not running",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.85, source="driver",
    ),
    "gpu.driver.access": row(
        _HOST, "software.driver", _NODE, _SUSPECT, "the driver's library cannot start here",
        urgency=_CKPT, remedy=Remedy.FIX_CONFIG, confidence=0.5, source="driver",
        corroborate="a container that lost its device rights prints the same: compare with the host",
    ),
    "gpu.driver.tool": row(
        _HOST, "software.driver", _NODE, _WATCH, "the monitoring tool failed: it says nothing about the device", confidence=0.4,
        source=_MONITOR,
    ),
    "gpu.diag.failed": row(
        _DEVICE, "gpu.compute_engine", _CARD, _SUSPECT, "a diagnostic test of the device failed",
        urgency=_CKPT, remedy=Remedy.VALIDATE, confidence=0.7, source="vendor diagnostics",
    ),
    "gpu.diag.memory": row(
        _DEVICE, "gpu.memory", _CARD, _FAULTY, "a diagnostic test found wrong or faulty device memory",
        urgency=_NOW, remedy=Remedy.REPLACE, confidence=0.9, source="vendor diagnostics",
    ),
    "gpu.diag.warning": row(
        _DEVICE, "gpu.compute_engine", _CARD, _WATCH, "a diagnostic test warned: below a threshold that is disputed",
        confidence=0.5,
        source="vendor diagnostics",
    ),
    "gpu.config.drift": row(
        _HOST, "config.drift", _CARD, _WATCH, "a setting of the device is not as wanted",
        urgency=_END, remedy=Remedy.FIX_CONFIG, confidence=0.8, source=_MONITOR,
    ),
}  # fmt: skip

SPEED: dict[str, Row] = {
    "gpu.throttle.hw_thermal": row(
        _DEVICE, "gpu.thermal", _CARD, _SUSPECT, "the hardware slows the device down because it is too hot",
        urgency=_CKPT, remedy=Remedy.INSPECT, confidence=0.7, source=_MONITOR,
        corroborate="compare with the siblings: one card is the heat sink, all of them are a fan or the room",
    ),
    "gpu.throttle.hw_thermal.sustained": row(
        _DEVICE, "gpu.thermal", _CARD, _FAULTY, "too hot for most of ten minutes: the hardware slows the device down",
        urgency=_CKPT, remedy=Remedy.INSPECT, confidence=0.85, source=_MONITOR,
    ),
    "gpu.throttle.power_brake": row(
        _POWER, "gpu.power.brake", _NODE, _SUSPECT, "an outside signal brakes the device: power supply or feed",
        urgency=_CKPT, remedy=Remedy.FACILITY, confidence=0.7, source=_MONITOR,
        corroborate="compare with the supplies and with the rack; not a fault of the card",
    ),
    "gpu.throttle.power_brake.sustained": row(
        _POWER, "gpu.power.brake", _NODE, _FAULTY, "an outside signal keeps the device braked: power supply or feed",
        urgency=_CKPT, remedy=Remedy.FACILITY, confidence=0.85, source=_MONITOR,
    ),
    "gpu.throttle.hw_slowdown": row(
        _DEVICE, "gpu.power", _CARD, _SUSPECT, "the hardware slows the device down: heat or power, it does not say which",
        urgency=_CKPT, remedy=Remedy.INSPECT, confidence=0.6, source=_MONITOR,
    ),
    "gpu.throttle.hw_slowdown.sustained": row(
        _DEVICE, "gpu.power", _CARD, _FAULTY, "the hardware slowed the device down for most of ten minutes",
        urgency=_CKPT, remedy=Remedy.INSPECT, confidence=0.75, source=_MONITOR,
    ),
    "gpu.throttle.sw_thermal": row(
        _DEVICE, "gpu.thermal", _CARD, _WATCH, "the driver lowers the clocks to hold the temperature", confidence=0.6,
        source=_MONITOR,
    ),
    "gpu.throttle.sw_power": row(
        _DEVICE, "gpu.power", _CARD, _BENIGN, "the power limit holds the clocks: ordinary under load", confidence=0.9,
        source=_MONITOR,
    ),
    "gpu.throttle.idle": row(
        _DEVICE, "gpu.clock", _CARD, _BENIGN, "clocks are low because nothing runs", confidence=0.9, source=_VENDOR,
    ),
    "gpu.temperature.high": row(
        _DEVICE, "gpu.thermal", _CARD, _WATCH, "hotter than the highest operating temperature", confidence=0.6, source=_MONITOR,
    ),
    "gpu.temperature.peers": row(
        _DEVICE, "gpu.thermal", _CARD, _WATCH, "much hotter than its siblings under the same load",
        remedy=Remedy.INSPECT, confidence=0.6, source=_MONITOR,
    ),
    "gpu.temperature.memory": row(
        _DEVICE, "gpu.thermal.hbm", _CARD, _WATCH, "memory hotter than its highest operating temperature",
        confidence=0.6, source=_MONITOR,
    ),
    "gpu.temperature.margin": row(
        _DEVICE, "gpu.thermal", _CARD, _SUSPECT, "beyond the temperature at which the hardware slows down",
        urgency=_CKPT, remedy=Remedy.VALIDATE, confidence=0.6, source=_MONITOR,
        corroborate="some cards report a margin of zero: qualify under load before anything is returned",
    ),
    "gpu.clock.peers": row(
        _DEVICE, "gpu.clock", _CARD, _WATCH, "clocks much lower than its siblings' under the same load",
        remedy=Remedy.VALIDATE, confidence=0.6, source=_MONITOR,
    ),
    "gpu.pcie.width": row(
        _DEVICE, "gpu.pcie", _CARD, _SUSPECT, "the PCI Express link has fewer lanes than it should",
        urgency=_END, remedy=Remedy.INSPECT, confidence=0.75, source=_MONITOR,
        corroborate="compare with the siblings; some servers and virtual machines have half a slot by design",
    ),
    "gpu.pcie.width.alone": row(
        _DEVICE, "gpu.pcie", _CARD, _BENIGN, "fewer lanes than the card could use, and no sibling to compare with",
        confidence=0.4, source=_MONITOR,
    ),
    "gpu.pcie.gen": row(
        _DEVICE, "gpu.pcie", _CARD, _SUSPECT, "the PCI Express link runs slower than its siblings' while busy",
        urgency=_END, remedy=Remedy.RESET_DEVICE, confidence=0.6, source=_MONITOR,
    ),
    "gpu.pcie.replay": row(
        _DEVICE, "gpu.pcie", _CARD, _WATCH, "PCI Express transfers are repeated often", confidence=0.5, source=_MONITOR,
        remedy=Remedy.VALIDATE,
    ),
    "gpu.pcie.fatal": row(
        _DEVICE, "gpu.pcie", _CARD, _FAULTY, "fatal PCI Express errors",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.85, source=_MONITOR,
        corroborate="every device under one PCI switch: the switch or riser",
    ),
}  # fmt: skip

LINKS: dict[str, Row] = {
    "gpu.nvlink.down": row(
        _DEVICE, "nvlink.link", _CARD, _FAULTY, "links between devices are inactive that are active on the siblings",
        urgency=_NOW, remedy=Remedy.RESET_DEVICE, confidence=0.85, source=_MONITOR,
    ),
    "gpu.nvlink.partial": row(
        _DEVICE, "nvlink.link", _CARD, _SUSPECT, "some links of the device are inactive and others are not",
        urgency=_NOW, remedy=Remedy.RESET_DEVICE, confidence=0.7, source=_MONITOR,
        corroborate="boards with bridges leave unused links inactive by design",
    ),
    "gpu.nvlink.slow": row(
        _DEVICE, "nvlink.link", _CARD, _SUSPECT, "a link between devices runs slower than the others",
        urgency=_NOW, remedy=Remedy.RESET_DEVICE, confidence=0.75, source=_MONITOR,
    ),
    "gpu.nvlink.unused": row(
        _DEVICE, "nvlink.link", _CARD, _BENIGN, "all links inactive: a board without them, or without a bridge", confidence=0.6,
        source=_MONITOR,
    ),
    "gpu.nvlink.errors": row(
        _DEVICE, "nvlink.link", _CARD, _WATCH, "a link repeats or recovers many transfers: the rate decides", confidence=0.5,
        source=_MONITOR,
    ),
    "gpu.nvlink.errors.some": row(
        _DEVICE, "nvlink.link", _CARD, _BENIGN, "a link has repeated some transfers in its life: ordinary", confidence=0.6,
        source=_MONITOR,
    ),
    "gpu.nvlink.recovery_failed": row(
        _DEVICE, "nvlink.link", _CARD, _FAULTY, "a link could not be recovered",
        urgency=_NOW, remedy=Remedy.RESET_DEVICE, confidence=0.85, source=_MONITOR,
    ),
    "gpu.fabric.state": row(
        Cause.NETWORK, "nvlink.fabric", _NODE, _FAULTY, "the device has not joined the fabric between devices",
        urgency=_NOW, remedy=Remedy.RESTART_SERVICE, confidence=0.8, source=_MONITOR,
        corroborate="in progress for two minutes after a start is ordinary",
    ),
    "gpu.fabric.joining": row(
        Cause.NETWORK, "nvlink.fabric", _NODE, _WATCH,
        "the device is joining the fabric: ordinary for two minutes after a start",
        confidence=0.6, source=_MONITOR,
    ),
    "gpu.fabric.health": row(
        Cause.NETWORK, "nvlink.fabric", _NODE, _FAULTY, "the fabric between devices is degraded",
        urgency=_NOW, remedy=Remedy.RESTART_SERVICE, confidence=0.8, source=_MONITOR,
    ),
    "gpu.nvlink.ber": row(
        _DEVICE, "nvlink.link", _CARD, _WATCH, "a link's error rate after correction is high",
        urgency=_END, remedy=Remedy.INSPECT, confidence=0.6, source=_MONITOR,
    ),
    "gpu.imex": row(
        Cause.NETWORK, "nvlink.fabric", Scope.RACK, _FAULTY, "the memory exchange of the domain is not ready",
        urgency=_NOW, remedy=Remedy.RESTART_SERVICE, confidence=0.8, source=_MONITOR,
    ),
    "gpu.c2c": row(
        _DEVICE, "c2c", _CARD, _WATCH, "errors on the link between processor and device", urgency=_END, confidence=0.6,
        source=_MONITOR,
    ),
    "gpu.job_hang": row(
        Cause.UNKNOWN, "hang", Scope.JOB, _FAULTY, "every device's kernels have stopped finishing: the job hangs",
        urgency=_NOW, isolate=False, confidence=0.85, source="kernel timer of the job",
        corroborate="flight-recorder dumps and stacks say which rank",
    ),
    "gpu.job_hang.some": row(
        Cause.UNKNOWN, "hang", Scope.JOB, _SUSPECT,
        "kernels of some ranks have stopped finishing: the job hangs or is about to",
        urgency=_NOW, isolate=False, confidence=0.7, source="kernel timer of the job",
    ),
    "gpu.dead": row(
        _DEVICE, "gpu.lost", _CARD, _SUSPECT, "the device stopped giving samples while its siblings went on",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.6, source=_MONITOR,
    ),
}  # fmt: skip

ROWS: dict[str, Row] = {**MEMORY, **STATE, **SPEED, **LINKS}
