"""Rows of what a management controller says: Redfish states and logs, IPMI event logs and sensors. Data only.

Xid and SXid lines that a controller has copied into its own log go by their own keys and rows.
"""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_HW, _POWER, _DEVICE, _NET, _UNKNOWN = (
    Cause.HOST_HARDWARE, Cause.POWER, Cause.DEVICE, Cause.NETWORK, Cause.UNKNOWN,
)  # fmt: skip
_NODE, _CARD, _DISK, _RACK = Scope.NODE, Scope.CARD, Scope.DISK, Scope.RACK
_BENIGN, _WATCH, _SUSPECT, _FAULTY = Verdict.BENIGN, Verdict.WATCH, Verdict.SUSPECT, Verdict.FAULTY
_NOW, _CHECKPOINT, _END = Urgency.NOW, Urgency.NEXT_CHECKPOINT, Urgency.JOB_END

_SPEC = "DMTF, IPMI 2.0"
_FIELD = "field reports"


def _said(text: str, **more: object) -> Row:
    """Ordinary talk of a controller."""
    return row(_UNKNOWN, "bmc", _NODE, _BENIGN, text, confidence=0.9, source=_FIELD, **more)


_STATE: dict[str, Row] = {
    "bmc.part.ok": _said("the controller says that the part is well now"),
    "bmc.clock": _said("what the controller's clock says, for the age of its log entries"),
    "bmc.clock.offset": _said("how far the controller's clock is from the host's, from times that are written in messages"),
    "bmc.cleared": _said("a condition that was reported before is over"),
    "bmc.power.state": _said("the power state changed: somebody or something switched"),
    "bmc.boot": _said("a step of the host's start"),
    "bmc.notice": _said("ordinary talk of the controller: log-ins, inventory, inserted parts"),
    "bmc.test": _said("a test event: somebody tries an event listener"),
    "bmc.request.refused": _said("the controller refused a request of its client; says nothing about hardware"),
    "bmc.gpu.power_cap": row(
        _DEVICE, "gpu.power", _CARD, _BENIGN, "the card keeps to its power limit: ordinary under load",
        confidence=0.95, source="field reports, published traps",
    ),
    "bmc.nvswitch.link": row(
        _DEVICE, "nvlink.switch", _CARD, _SUSPECT, "the controller tells of an error of a link between cards and their switch",
        urgency=_CHECKPOINT, remedy=Remedy.VALIDATE, confidence=0.6, source="vendor firmware",
        corroborate="SXid or Xid 74 of the same moment in the kernel's log",
    ),
    "bmc.nvswitch.online": row(
        _DEVICE, "nvlink.switch", _CARD, _BENIGN,
        "the management interface of an NVSwitch came up: a notice of each start, whatever severity it carries",
        confidence=0.95, source="field reports",
    ),
    "bmc.sensor.unreadable": row(
        _UNKNOWN, "bmc", _NODE, _BENIGN, "a sensor gives no sane reading: nothing is known, so nothing is wrong",
        confidence=0.8, source="hardware-observer 129, 165; NICo",
    ),
    "bmc.power.off": row(
        _POWER, "node.power", _NODE, _SUSPECT, "the host is powered off: nothing can run there, and nothing can write",
        urgency=_NOW, remedy=Remedy.POWER_CYCLE, confidence=0.7, source=_SPEC,
        corroborate="somebody may have switched it off on purpose",
    ),
    "bmc.power.event": row(
        _POWER, "node.power", _NODE, _SUSPECT, "several components lost power at once: one event of the node's power",
        urgency=_NOW, remedy=Remedy.INSPECT, confidence=0.7, source="published traps",
        corroborate="a change of the power state around it makes it a switching transient",
    ),
    "bmc.power.past": row(
        _POWER, "node.power", _NODE, _WATCH, "the last loss of power was not ordered: input lost, overload or a fault",
        confidence=0.5, source=_SPEC,
    ),
    "bmc.unreachable": row(
        _UNKNOWN, "bmc", _NODE, _WATCH, "the controller does not answer: unknown, never a fault of the host by itself",
        confidence=0.3, source="NICo", corroborate="a whole rack of silent controllers is a management switch",
    ),
    "bmc.controller": row(
        _HW, "bmc", _NODE, _WATCH, "the controller restarted, failed over or lost something of its own",
        confidence=0.5, source=_FIELD,
    ),
    "bmc.firmware.update_failed": row(
        Cause.OPERATOR, "bmc", _NODE, _WATCH, "a firmware update was tried and did not go through: no hardware fault",
        remedy=Remedy.FIX_CONFIG, confidence=0.8, source=_FIELD,
    ),
    "bmc.log.full": row(_UNKNOWN, "bmc", _NODE, _WATCH, "the event log is full: later events may be lost",
                        remedy=Remedy.FIX_CONFIG, confidence=0.8, source=_SPEC),
    "bmc.oem": row(
        _UNKNOWN, "unclassified", _NODE, _WATCH, "a record in a vendor's own form: kept as it is, never acted on",
        confidence=0.1, source=_SPEC,
    ),
    "bmc.event.warning": row(_HW, "node.hw", _NODE, _WATCH, "a warning of the controller that no rule knows",
                             confidence=0.3, source=_FIELD),
    "bmc.event.critical": row(
        _HW, "node.hw", _NODE, _SUSPECT, "a critical event of the controller that no rule knows",
        remedy=Remedy.VALIDATE, urgency=_CHECKPOINT, confidence=0.4, source="DMTF",
        corroborate="the present state of the part that it names",
    ),
    "bmc.rollup.critical": row(
        _HW, "node.hw", _NODE, _SUSPECT, "the summary of the server's health is critical",
        remedy=Remedy.VALIDATE, urgency=_CHECKPOINT, confidence=0.4, source="DMTF",
        corroborate="a part that is not well; summaries stay latched long after",
    ),
    "bmc.rollup.warning": row(_HW, "node.hw", _NODE, _WATCH, "the summary of the server's health is a warning",
                              confidence=0.3, source="DMTF"),
    "bmc.part.critical": row(
        _HW, "node.hw", _NODE, _SUSPECT, "a part of no known kind is in critical health",
        remedy=Remedy.INSPECT, urgency=_CHECKPOINT, confidence=0.5, source="DMTF",
    ),
    "bmc.part.warning": row(_HW, "node.hw", _NODE, _WATCH, "a part of no known kind is in warning health",
                            confidence=0.4, source="DMTF"),
}  # fmt: skip

_POWER_AND_HEAT: dict[str, Row] = {
    "bmc.psu.failed": row(
        _POWER, "power.psu", _NODE, _FAULTY, "a power supply has failed; the others carry the load",
        urgency=_END, isolate=False, remedy=Remedy.REPLACE, confidence=0.85, source=_SPEC,
        corroborate="no health given, or a supply that is absent, is no failure",
    ),
    "bmc.psu.input_lost": row(
        _POWER, "power.psu", _NODE, _SUSPECT, "a power supply has no input: a cord, a breaker or a feed",
        urgency=_END, remedy=Remedy.FACILITY, confidence=0.8, source=_SPEC,
        corroborate="neighbours in the rack: a feed is common to them",
    ),
    "bmc.psu.several": row(
        _POWER, "power.psu", _NODE, _FAULTY, "several power supplies failed or lost their input together: what feeds them",
        urgency=_CHECKPOINT, isolate=False, remedy=Remedy.FACILITY, confidence=0.85, source="project",
        corroborate="the feed or the distribution unit; other machines of the rack",
    ),
    "bmc.psu.warning": row(_POWER, "power.psu", _NODE, _WATCH, "a power supply warns or expects to fail",
                           urgency=_END, remedy=Remedy.INSPECT, confidence=0.7, source=_SPEC),
    "bmc.psu.redundancy": row(_POWER, "power.psu", _NODE, _WATCH, "the power supplies are no longer redundant",
                              urgency=_END, remedy=Remedy.INSPECT, confidence=0.8, source=_SPEC),
    "bmc.power.fault": row(
        _POWER, "node.power", _NODE, _FAULTY, "the node's main power failed or was out of control",
        urgency=_NOW, remedy=Remedy.INSPECT, confidence=0.75, source=_SPEC,
    ),
    "bmc.power.component": row(
        _POWER, "node.power", _NODE, _SUSPECT, "the power of one component is outside its limits",
        urgency=_CHECKPOINT, remedy=Remedy.INSPECT, confidence=0.5, source=_FIELD,
        corroborate="several at once are one power event; sensors read nonsense while power is switched",
    ),
    "bmc.power.shelf": row(
        _POWER, "power.facility", _RACK, _FAULTY, "a power shelf or distribution unit of the rack has failed",
        urgency=_CHECKPOINT, remedy=Remedy.FACILITY, isolate=False, confidence=0.7, source="DMTF",
    ),
    "bmc.power.shelf.warning": row(_POWER, "power.facility", _RACK, _WATCH, "a power shelf or distribution unit warns",
                                   remedy=Remedy.FACILITY, confidence=0.5, source="DMTF"),
    "bmc.voltage.critical": row(
        _HW, "node.hw", _NODE, _SUSPECT, "a voltage is outside its critical limits",
        urgency=_CHECKPOINT, remedy=Remedy.INSPECT, confidence=0.6, source=_SPEC,
    ),
    "bmc.threshold.noncritical": row(
        _HW, "node.hw", _NODE, _WATCH, "a reading crossed a non-critical limit", confidence=0.6, source=_SPEC,
    ),
    "bmc.battery": row(_HW, "node.hw", _NODE, _WATCH, "a battery of the board or of a controller is low or failed",
                       remedy=Remedy.INSPECT, confidence=0.7, source=_SPEC),
    "bmc.fan.failed": row(
        _HW, "thermal.fan", _NODE, _FAULTY, "a fan has failed or turns too slowly",
        urgency=_END, isolate=False, remedy=Remedy.INSPECT, confidence=0.8, source=_SPEC,
        corroborate="temperatures of the zone that it cools",
    ),
    "bmc.fan.warning": row(_HW, "thermal.fan", _NODE, _WATCH, "a fan warns, or fans are no longer redundant",
                           urgency=_END, remedy=Remedy.INSPECT, confidence=0.6, source=_SPEC),
    "bmc.temperature.critical": row(
        _HW, "node.hw", _NODE, _SUSPECT, "a temperature of the node is beyond its critical limit",
        urgency=_CHECKPOINT, remedy=Remedy.INSPECT, confidence=0.6, source=_SPEC,
        corroborate="fans of the node, the inlet, the neighbours",
    ),
    "bmc.temperature.inlet": row(
        _POWER, "thermal.facility", _RACK, _SUSPECT, "the air or coolant comes in too warm",
        remedy=Remedy.FACILITY, confidence=0.6, source="NICo", corroborate="the inlets of the neighbours in the rack",
    ),
    "bmc.cooling": row(
        _POWER, "thermal.facility", _RACK, _SUSPECT, "a cooling unit of the rack is not well",
        remedy=Remedy.FACILITY, urgency=_CHECKPOINT, confidence=0.6, source="DMTF",
    ),
    "bmc.leak": row(
        _POWER, "leak", _NODE, _FAULTY, "coolant leaks in the tray",
        urgency=_NOW, remedy=Remedy.FACILITY, confidence=0.85, source="vendor firmware; NICo",
        corroborate="seen by the controller only; a detector that cannot be read is no leak",
    ),
    "bmc.leak.cabinet": row(
        _POWER, "leak", _RACK, _FAULTY, "coolant leaks in the cabinet: everything in it is concerned",
        urgency=_NOW, remedy=Remedy.FACILITY, confidence=0.8, source=_FIELD,
    ),
    "bmc.leak.warning": row(
        _POWER, "leak", _NODE, _SUSPECT, "a leak detector warns",
        urgency=_CHECKPOINT, remedy=Remedy.FACILITY, confidence=0.6, source="DMTF",
    ),
}  # fmt: skip

_BOARD: dict[str, Row] = {
    "bmc.memory.uncorrectable": row(
        _HW, "dram.host", _NODE, _FAULTY, "host memory had an error that could not be corrected",
        urgency=_NOW, remedy=Remedy.REPLACE, confidence=0.9, source=_SPEC, corroborate="EDAC and machine checks on the host",
    ),
    "bmc.memory.failed": row(
        _HW, "dram.host", _NODE, _FAULTY, "a memory module has failed, is disabled or misconfigured",
        urgency=_NOW, remedy=Remedy.REPLACE, confidence=0.8, source=_SPEC,
    ),
    "bmc.memory.corrected_limit": row(
        _HW, "dram.host", _NODE, _SUSPECT, "corrected errors of a memory module passed their limit",
        urgency=_END, remedy=Remedy.REPLACE, confidence=0.7, source=_SPEC,
    ),
    "bmc.memory.corrected": row(_HW, "dram.host", _NODE, _WATCH, "host memory corrected an error",
                                confidence=0.6, source=_SPEC),
    "bmc.cpu.ierr": row(
        _HW, "cpu", _NODE, _FAULTY, "internal, machine-check or catastrophic error of a processor",
        urgency=_NOW, remedy=Remedy.POWER_CYCLE, confidence=0.9, source=_SPEC,
        corroborate="a PCIe fatal error beside it names the device that may have caused it",
    ),
    "bmc.cpu.thermal_trip": row(
        _HW, "cpu", _NODE, _FAULTY, "a processor switched off because it was too hot",
        urgency=_NOW, remedy=Remedy.INSPECT, confidence=0.9, source=_SPEC,
    ),
    "bmc.cpu.failed": row(
        _HW, "cpu", _NODE, _FAULTY, "a processor failed its self-test, is disabled or misconfigured",
        urgency=_NOW, remedy=Remedy.REPLACE, confidence=0.8, source=_SPEC,
    ),
    "bmc.cpu.throttled": row(_HW, "cpu", _NODE, _WATCH, "a processor was slowed down by heat or power",
                             confidence=0.6, source=_SPEC),
    "bmc.cpu.warning": row(_HW, "cpu", _NODE, _WATCH, "a processor warns, or corrected a machine check",
                           confidence=0.5, source=_SPEC),
    "bmc.pcie.fatal": row(
        _HW, "node.hw", _NODE, _FAULTY, "a fatal or uncorrectable error of a PCI Express bus",
        urgency=_CHECKPOINT, remedy=Remedy.POWER_CYCLE, confidence=0.85, source="IPMI 2.0; GCM",
        corroborate="AER lines of the kernel; the device at that bus address",
    ),
    "bmc.pcie.nonfatal": row(_HW, "node.hw", _NODE, _WATCH, "a non-fatal error of a PCI Express bus",
                             confidence=0.5, source=_SPEC),
    "bmc.pcie.corrected": row(_HW, "node.hw", _NODE, _WATCH, "a corrected error of a PCI Express bus",
                              confidence=0.5, source=_SPEC),
    "bmc.nmi": row(_HW, "node.hw", _NODE, _SUSPECT, "a non-maskable interrupt", remedy=Remedy.VALIDATE,
                   urgency=_CHECKPOINT, confidence=0.5, source=_SPEC, corroborate="somebody may have asked for a dump"),
    "bmc.watchdog": row(
        Cause.HOST_SOFTWARE, "os.kernel", _NODE, _SUSPECT, "a watchdog of the host ran out and acted",
        urgency=_NOW, remedy=Remedy.VALIDATE, confidence=0.7, source=_SPEC, corroborate="the kernel's last lines",
    ),
    "bmc.os.stop": row(
        Cause.HOST_SOFTWARE, "os.kernel", _NODE, _FAULTY, "the operating system stopped with a panic",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.8, source=_SPEC,
    ),
    "bmc.post.error": row(
        _HW, "node.hw", _NODE, _SUSPECT, "the start of the host found an error or hung",
        urgency=_CHECKPOINT, remedy=Remedy.INSPECT, confidence=0.6, source=_SPEC,
    ),
    "bmc.intrusion": row(
        Cause.OPERATOR, "security", _NODE, _SUSPECT, "the chassis was opened",
        urgency=_CHECKPOINT, remedy=Remedy.INSPECT, confidence=0.7, source=_SPEC, corroborate="a planned repair",
    ),
    "bmc.drive.failed": row(
        _HW, "storage.local", _DISK, _FAULTY, "a drive has failed: the node's local tier may be unusable, its cards are well",
        urgency=_CHECKPOINT, remedy=Remedy.REPLACE, confidence=0.85, source=_SPEC,
    ),
    "bmc.drive.predicted": row(
        _HW, "storage.local", _DISK, _SUSPECT, "a drive expects to fail",
        urgency=_END, remedy=Remedy.REPLACE, confidence=0.8, source=_SPEC,
    ),
    "bmc.drive.warning": row(_HW, "storage.local", _DISK, _WATCH, "a drive or its array warns",
                             confidence=0.5, source=_SPEC),
    "bmc.storage.degraded": row(
        _HW, "storage.local", _DISK, _SUSPECT, "an array or a storage controller is degraded or failed",
        urgency=_END, remedy=Remedy.INSPECT, confidence=0.7, source=_SPEC,
    ),
    "bmc.nic.failed": row(
        _NET, "nic.link", Scope.NIC, _SUSPECT, "a network adapter or its port is in critical health",
        urgency=_CHECKPOINT, remedy=Remedy.INSPECT, confidence=0.6, source="DMTF",
    ),
    "bmc.link.storm": row(
        _NET,
        "fabric.link",
        Scope.FABRIC,
        _SUSPECT,
        "many links of one switch went down within a minute: the switch, not that many links",
        urgency=_END,
        remedy=Remedy.VALIDATE,
        confidence=0.6,
        source="published traps",
        corroborate="a restart of the switch just before",
    ),
    "bmc.nic.link": row(_NET, "nic.link", Scope.NIC, _WATCH, "a link of a network adapter went down, or is down",
                        confidence=0.5, source="DMTF", corroborate="the port's state on the host"),
}  # fmt: skip

_ACCELERATOR: dict[str, Row] = {
    "bmc.gpu.common": row(
        _HW, "common_cause", _NODE, _SUSPECT,
        "the same error on several cards of a node: the board, its firmware or its power, not that many bad cards",
        urgency=_CHECKPOINT, remedy=Remedy.VALIDATE, confidence=0.7, source="published traps",
    ),
    "bmc.gpu.critical": row(
        _DEVICE, "gpu.hw", _CARD, _FAULTY, "the controller says that an accelerator is in critical health now",
        urgency=_NOW, remedy=Remedy.RESET_DEVICE, confidence=0.75, source="DMTF",
    ),
    "bmc.gpu.warning": row(_DEVICE, "gpu.hw", _CARD, _WATCH, "the controller warns about an accelerator",
                           remedy=Remedy.VALIDATE, confidence=0.5, source="DMTF"),
    "bmc.gpu.lost": row(
        _DEVICE, "gpu.lost", _CARD, _FAULTY, "an accelerator is there and offline, or has disappeared",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.75, source="NICo",
    ),
    "bmc.gpu.memory.uncorrectable": row(
        _DEVICE, "gpu.memory.dbe", _CARD, _FAULTY, "memory of an accelerator had uncorrectable errors",
        urgency=_NOW, remedy=Remedy.RESET_DEVICE, confidence=0.8, source="vendor firmware",
    ),
    "bmc.gpu.memory.lifetime": row(
        _DEVICE, "gpu.memory.dbe", _CARD, _WATCH, "memory of an accelerator has had uncorrectable errors in its life",
        confidence=0.6, source="vendor firmware", corroborate="only a rise is news",
    ),
    "bmc.gpu.memory.sram": row(
        _DEVICE, "gpu.memory.sram", _CARD, _FAULTY, "uncorrectable errors of the on-chip memory passed their limit",
        urgency=_CHECKPOINT, remedy=Remedy.REPLACE, confidence=0.85, source="vendor firmware",
    ),
    "bmc.gpu.remap_failed": row(
        _DEVICE, "gpu.memory.remap_failed", _CARD, _FAULTY, "a bad memory row could not be replaced",
        urgency=_NOW, remedy=Remedy.REPLACE, confidence=0.9, source="vendor firmware",
    ),
    "bmc.gpu.remap_pending": row(
        _DEVICE, "gpu.memory.remap", _CARD, _SUSPECT, "a memory row will be replaced at the next reset",
        urgency=_END, remedy=Remedy.RESET_DEVICE, confidence=0.85, source="vendor firmware",
    ),
    "bmc.gpu.pcie": row(
        _DEVICE, "gpu.pcie", _CARD, _SUSPECT, "an accelerator counts fatal errors of its PCI Express link",
        urgency=_CHECKPOINT, remedy=Remedy.REBOOT, confidence=0.6, source="vendor firmware",
        corroborate="the counter rises, or AER lines of the kernel",
    ),
    "bmc.gpu.pcie.nonfatal": row(_DEVICE, "gpu.pcie", _CARD, _WATCH, "an accelerator counts non-fatal errors of its link",
                                 confidence=0.4, source="vendor firmware"),
    "bmc.gpu.thermal": row(
        _DEVICE, "gpu.thermal", _CARD, _SUSPECT, "an accelerator is too hot or slowed down by heat",
        urgency=_CHECKPOINT, remedy=Remedy.INSPECT, confidence=0.6, source="vendor firmware",
        corroborate="its neighbours: one card is its heat sink, all are a fan or the inlet",
    ),
    "bmc.gpu.power_brake": row(
        _POWER, "gpu.power.brake", _CARD, _SUSPECT, "the board slows an accelerator down to save the power supply",
        urgency=_CHECKPOINT, remedy=Remedy.FACILITY, confidence=0.6, source="NVSentinel 1666",
        corroborate="other nodes on the same feed",
    ),
    "bmc.gpu.power": row(
        _DEVICE, "gpu.power", _CARD, _SUSPECT, "the power of an accelerator is outside its limits",
        urgency=_CHECKPOINT, remedy=Remedy.INSPECT, confidence=0.5, source=_FIELD,
        corroborate="several cards at once are one power event of the node",
    ),
    "bmc.gpu.throttle": row(_DEVICE, "gpu.clock", _CARD, _WATCH, "an accelerator is slowed down",
                            confidence=0.4, source="vendor firmware"),
    "bmc.gpu.nvlink": row(
        _DEVICE, "nvlink.link", _CARD, _SUSPECT, "an NVLink port failed to train or failed while it ran",
        urgency=_CHECKPOINT, remedy=Remedy.RESET_DEVICE, confidence=0.6, source="vendor firmware",
    ),
    "bmc.nvswitch.critical": row(
        _DEVICE, "nvlink.switch", _NODE, _FAULTY, "the controller says that an NVSwitch is in critical health now",
        urgency=_NOW, remedy=Remedy.REBOOT, confidence=0.7, source="DMTF",
    ),
}  # fmt: skip

ROWS: dict[str, Row] = {**_STATE, **_POWER_AND_HEAT, **_BOARD, **_ACCELERATOR}
