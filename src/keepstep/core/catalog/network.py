"""Rows of network signals: states and counters of ports, links, switches and PCI devices. Data only.

What the kernel prints about an adapter is in another family; these rows are about what a port or a link *is* when looked at.
"""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_NOW, _SOON, _END = Urgency.NOW, Urgency.NEXT_CHECKPOINT, Urgency.JOB_END
_NET = Cause.NETWORK

_PORTS: dict[str, Row] = {
    "port.down": row(
        _NET, "nic.link", Scope.NIC, Verdict.FAULTY,
        "a port is not active while the other ports of its role are", urgency=_NOW, remedy=Remedy.INSPECT,
        corroborate="the other end of the link; many ports of one switch at once are the switch", source="field reports",
    ),
    "port.down.alone": row(
        _NET, "nic.link", Scope.NIC, Verdict.SUSPECT,
        "a port is not active, and nothing shows whether it should be", urgency=_NOW, confidence=0.5, remedy=Remedy.INSPECT,
        corroborate="an unused port looks the same: blame it only if ports of its role are up", source="field reports",
    ),
    "port.unused": row(
        _NET, "nic.link", Scope.NIC, Verdict.BENIGN,
        "a port without a link, as most of its role are: not provisioned", source="field reports",
    ),
    "port.disabled": row(
        _NET, "maintenance", Scope.NIC, Verdict.BENIGN, "a port that somebody has switched off", source="port state table",
    ),
    "port.up": row(
        _NET, "nic.link", Scope.NIC, Verdict.BENIGN, "a port is active again", source="port state table",
    ),
    "port.waiting": row(
        _NET, "nic.link", Scope.NIC, Verdict.SUSPECT,
        "the link is up and the subnet manager has not activated the port", urgency=_NOW, confidence=0.6,
        remedy=Remedy.INSPECT, corroborate="on all ports at once it is the subnet manager", source="port state table",
    ),
    "fabric.no_manager": row(
        _NET, "fabric.link", Scope.FABRIC, Verdict.SUSPECT,
        "no port with a link is activated: the subnet manager does not answer", urgency=_NOW, confidence=0.7,
        remedy=Remedy.INSPECT, source="port state table",
    ),
    "port.flaps": row(
        _NET, "nic.link", Scope.NIC, Verdict.SUSPECT,
        "the link went down several times", urgency=_SOON, confidence=0.7, remedy=Remedy.INSPECT,
        corroborate="a restart of the switch or planned work moves many ports at once", source="field reports: 3 in 3 h",
    ),
    "port.rate": row(
        _NET, "nic.link", Scope.NIC, Verdict.SUSPECT,
        "the link runs below the rate of its peers or of its interface", urgency=_END, confidence=0.6, remedy=Remedy.INSPECT,
        corroborate="often recovers by itself; compare the ports of the node", source="field reports",
    ),
    "port.symbol_errors": row(
        _NET, "nic.link", Scope.NIC, Verdict.SUSPECT,
        "symbol errors above the specified bit error rate", urgency=_END, confidence=0.6, remedy=Remedy.INSPECT,
        corroborate="links with four-level signalling are never at zero: the rate counts, not the level",
        source="InfiniBand specification, 120 an hour",
    ),
    "port.symbol_errors.level": row(
        _NET, "nic.link", Scope.NIC, Verdict.WATCH,
        "many symbol errors since an unknown time", confidence=0.3, source="project",
    ),
    "port.recovery": row(
        _NET, "nic.link", Scope.NIC, Verdict.WATCH, "the link retrains again and again", source="field reports: 5 a minute",
    ),
    "port.integrity": row(
        _NET, "nic.link", Scope.NIC, Verdict.SUSPECT,
        "link integrity or buffer overrun errors grow", urgency=_SOON, confidence=0.7, remedy=Remedy.INSPECT,
        source="field reports",
    ),
    "port.receive_errors": row(
        _NET, "nic.link", Scope.NIC, Verdict.WATCH,
        "packets arrive damaged at more than a negligible share", confidence=0.4, source="field reports",
    ),
    "port.discards": row(
        _NET, "fabric.congestion", Scope.FABRIC, Verdict.WATCH,
        "packets are dropped at the exit: congestion, or a receiver that is gone", confidence=0.3, source="field reports",
    ),
    "port.transport": row(
        _NET, "nic.transport", Scope.NIC, Verdict.WATCH,
        "retries towards a peer ran out", confidence=0.3,
        corroborate="a peer that died looks the same to everybody who talks to it: many reporters blame the peer",
        source="field reports",
    ),
    "port.retransmits": row(
        _NET, "nic.transport", Scope.NIC, Verdict.WATCH, "acknowledgements time out or are slow", confidence=0.3,
        corroborate="compare with the peers of the node", source="field reports",
    ),
    "port.saturated": row(
        _NET, "nic.link", Scope.NIC, Verdict.BENIGN,
        "a counter stands at its maximum: it says nothing any more until it is cleared", source="counter widths",
    ),
    "port.missing": row(
        _NET, "nic.lost", Scope.NIC, Verdict.FAULTY,
        "an adapter that was there is not enumerated any more", urgency=_NOW, remedy=Remedy.REBOOT,
        corroborate="three complete enumerations, or an inventory that names it", source="field reports",
    ),
    "netdev.down": row(
        _NET, "nic.link", Scope.NIC, Verdict.FAULTY,
        "a network interface that is configured to carry traffic is down", urgency=_NOW, confidence=0.75,
        remedy=Remedy.INSPECT, corroborate="management interfaces do not concern training", source="field reports",
    ),
    "netdev.down.peers": row(
        _NET, "nic.link", Scope.NIC, Verdict.SUSPECT,
        "a network interface is down while the others of its kind are up", urgency=_NOW, confidence=0.6,
        remedy=Remedy.INSPECT, source="field reports",
    ),
    "netdev.missing": row(
        _NET, "nic.lost", Scope.NIC, Verdict.FAULTY,
        "a network interface that is expected does not exist", urgency=_NOW, confidence=0.7, remedy=Remedy.REBOOT,
        source="field reports",
    ),
    "netdev.mtu": row(
        Cause.HOST_SOFTWARE, "config.drift", Scope.NIC, Verdict.SUSPECT,
        "the MTU in force is not the one that is configured", urgency=_END, confidence=0.8, remedy=Remedy.FIX_CONFIG,
        source="field reports",
    ),
    "netdev.errors": row(
        _NET, "nic.link", Scope.NIC, Verdict.WATCH, "an interface receives many damaged frames", confidence=0.4,
        source="field reports",
    ),
    "nic.binding": row(
        Cause.HOST_SOFTWARE, "config.drift", Scope.NIC, Verdict.SUSPECT,
        "an adapter bears a name out of the order of its slots: names may be bound to other slots than expected",
        urgency=_END, confidence=0.5, remedy=Remedy.FIX_CONFIG, corroborate="the inventory of the node says which slot",
        source="field reports",
    ),
    "nic.firmware.mixed": row(
        Cause.HOST_SOFTWARE, "config.drift", Scope.NIC, Verdict.SUSPECT,
        "adapters of one model run different firmware", urgency=_END, confidence=0.7, remedy=Remedy.FIX_CONFIG,
        source="field reports",
    ),
    "nic.firmware.unreadable": row(
        Cause.HOST_SOFTWARE, "config.drift", Scope.NIC, Verdict.WATCH,
        "an adapter tells no firmware version", confidence=0.3, remedy=Remedy.FIX_CONFIG, source="project",
    ),
    "optics.alarm": row(
        _NET, "nic.optics", Scope.NIC, Verdict.SUSPECT, "an optical module is outside its limits", urgency=_END,
        confidence=0.7, remedy=Remedy.INSPECT, source="module diagnostics",
    ),
}  # fmt: skip

_FABRIC: dict[str, Row] = {
    "link.rate": row(
        _NET, "fabric.link", Scope.FABRIC, Verdict.SUSPECT,
        "a link between two ports runs below what both ends can do", urgency=_END, confidence=0.6, isolate=False,
        remedy=Remedy.INSPECT, source="fabric scan",
    ),
    "link.peer": row(
        _NET, "nic.transport", Scope.NODE, Verdict.SUSPECT,
        "several nodes lose their connections to this one: it is the common end", urgency=_NOW, confidence=0.7,
        remedy=Remedy.VALIDATE, corroborate="ask the node itself", source="field reports",
    ),
    "switch.psu": row(
        Cause.POWER, "power.psu", Scope.FABRIC, Verdict.FAULTY,
        "a power supply of a switch failed; the switch runs on the other", urgency=_END, confidence=0.9, isolate=False,
        remedy=Remedy.REPLACE, source="switch report",
    ),
    "switch.fan": row(
        Cause.HOST_HARDWARE, "thermal.fan", Scope.FABRIC, Verdict.FAULTY,
        "a switch reports a failure of its fans", urgency=_END, confidence=0.85, isolate=False, remedy=Remedy.REPLACE,
        source="switch report",
    ),
    "switch.hot": row(
        Cause.HOST_HARDWARE, "thermal.facility", Scope.FABRIC, Verdict.SUSPECT,
        "a switch is hotter than its parts bear for long", urgency=_END, confidence=0.6, remedy=Remedy.FACILITY,
        source="switch report",
    ),
    "fabric.flaps": row(
        _NET, "fabric.link", Scope.FABRIC, Verdict.FAULTY,
        "many ports of one switch went down at once: the switch, not the ports", urgency=_SOON, confidence=0.8,
        isolate=False, remedy=Remedy.INSPECT, source="field reports: 40 flaps in a minute after a switch start",
    ),
}  # fmt: skip

_PCI: dict[str, Row] = {
    "pci.missing.gpu": row(
        Cause.DEVICE, "gpu.fallen_off_bus", Scope.NODE, Verdict.FAULTY,
        "an accelerator that was there is not on the bus any more", urgency=_NOW, confidence=0.9, remedy=Remedy.REBOOT,
        corroborate="three complete enumerations", source="field reports",
    ),
    "pci.missing.nic": row(
        _NET, "nic.lost", Scope.NIC, Verdict.FAULTY,
        "a network adapter that was there is not on the bus any more", urgency=_NOW, confidence=0.9, remedy=Remedy.REBOOT,
        corroborate="three complete enumerations", source="field reports",
    ),
    "pci.missing.disk": row(
        Cause.HOST_HARDWARE, "storage.local", Scope.DISK, Verdict.FAULTY,
        "a drive that was there is not on the bus any more", urgency=_SOON, confidence=0.9, remedy=Remedy.REBOOT,
        source="field reports",
    ),
    "pci.width.gpu": row(
        Cause.DEVICE, "gpu.pcie", Scope.CARD, Verdict.SUSPECT,
        "the PCIe link of an accelerator has fewer lanes than it could", urgency=_END, confidence=0.6,
        remedy=Remedy.VALIDATE, corroborate="compare with the other cards; speed drops when idle, width does not",
        source="field reports",
    ),
    "pci.width.nic": row(
        _NET, "nic.pcie", Scope.NIC, Verdict.SUSPECT,
        "the PCIe link of a network adapter has fewer lanes than it could", urgency=_END, confidence=0.6,
        remedy=Remedy.INSPECT, source="field reports",
    ),
    "pci.aer.fatal.gpu": row(
        Cause.DEVICE, "gpu.pcie", Scope.CARD, Verdict.FAULTY, "fatal PCIe errors at an accelerator", urgency=_NOW,
        confidence=0.8, remedy=Remedy.REBOOT, source="PCIe specification",
    ),
    "pci.aer.fatal.nic": row(
        _NET, "nic.pcie", Scope.NIC, Verdict.FAULTY, "fatal PCIe errors at a network adapter", urgency=_NOW,
        confidence=0.8, remedy=Remedy.REBOOT, source="PCIe specification",
    ),
    "pci.aer.nonfatal": row(
        Cause.HOST_HARDWARE, "gpu.pcie", Scope.NODE, Verdict.WATCH, "non-fatal PCIe errors grow", confidence=0.5,
        source="PCIe specification",
    ),
    "pci.aer.corrected": row(
        Cause.HOST_HARDWARE, "gpu.pcie", Scope.NODE, Verdict.WATCH, "corrected PCIe errors grow fast", confidence=0.3,
        source="PCIe specification",
    ),
}  # fmt: skip

_INVENTORY: dict[str, Row] = {
    "inventory.found": row(
        _NET, "config.drift", Scope.NODE, Verdict.BENIGN, "what was found on a node", confidence=0.9, source="inventory",
    ),
    "inventory.expected": row(
        _NET, "config.drift", Scope.FLEET, Verdict.BENIGN, "what a model of node should have", confidence=0.9,
        source="inventory",
    ),
    "nic.firmware.unexpected": row(
        Cause.HOST_SOFTWARE, "config.drift", Scope.NIC, Verdict.SUSPECT,
        "the firmware of an adapter is none of those that are expected", urgency=_END, confidence=0.8,
        remedy=Remedy.FIX_CONFIG, source="inventory",
    ),
}  # fmt: skip

ROWS: dict[str, Row] = {**_PORTS, **_FABRIC, **_PCI, **_INVENTORY}
