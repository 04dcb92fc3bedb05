"""Rows of what the kernel and the network daemons say about adapters. Data only."""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_NET, _NIC = Cause.NETWORK, Scope.NIC

_DRIVER: dict[str, Row] = {
    "nic.command_timeout": row(
        _NET, "nic.driver", _NIC, Verdict.FAULTY, "the adapter's firmware does not answer commands",
        urgency=Urgency.NOW, confidence=0.9, remedy=Remedy.REBOOT, source="NVSentinel ADR-047; signals S153",
    ),
    "nic.health_compromised": row(
        _NET, "nic.driver", _NIC, Verdict.FAULTY, "the adapter's health counter stands still: its firmware has stopped",
        urgency=Urgency.NOW, confidence=0.95, remedy=Remedy.REBOOT, source="NVSentinel ADR-047; signals S153",
    ),
    "nic.hardware_error": row(
        _NET, "nic.driver", _NIC, Verdict.FAULTY, "the adapter reports an error of its hardware that it cannot repair",
        urgency=Urgency.NOW, confidence=0.9, remedy=Remedy.REBOOT, source="NVSentinel ADR-047; signals S153",
    ),
    "nic.firmware_error": row(
        _NET, "nic.driver", _NIC, Verdict.FAULTY, "the adapter's firmware reports a fatal error of its own",
        urgency=Urgency.NOW, confidence=0.85, remedy=Remedy.REBOOT, source="kernel",
    ),
    "nic.recovery_failed": row(
        _NET, "nic.driver", _NIC, Verdict.FAULTY, "the driver could not bring the adapter back",
        urgency=Urgency.NOW, confidence=0.9, remedy=Remedy.POWER_CYCLE, source="kernel",
    ),
    "nic.init_failed": row(
        _NET, "nic.driver", _NIC, Verdict.FAULTY, "the driver could not start the adapter: it is missing from this node",
        urgency=Urgency.NOW, confidence=0.85, remedy=Remedy.POWER_CYCLE, source="kernel",
    ),
    "nic.driver_lockup": row(
        _NET, "nic.driver", Scope.NODE, Verdict.FAULTY, "a processor is stuck inside the adapter's driver",
        urgency=Urgency.NOW, confidence=0.85, remedy=Remedy.REBOOT, source="NVSentinel ADR-047; signals S154",
    ),
    "nic.pci_error": row(
        _NET, "nic.pcie", _NIC, Verdict.SUSPECT, "the bus told the adapter's driver about an error",
        urgency=Urgency.NEXT_CHECKPOINT, confidence=0.6, remedy=Remedy.VALIDATE, corroborate="whether the driver recovered",
        source="kernel",
    ),
    "nic.stack": row(
        _NET, "nic.driver", _NIC, Verdict.BENIGN, "a processor stood in the adapter's driver when its stack was printed",
        confidence=0.3, source="kernel",
    ),
    "nic.recovered": row(
        _NET, "nic.driver", _NIC, Verdict.BENIGN, "the adapter answers again", source="kernel",
    ),
    "nic.health_note": row(
        _NET, "nic.driver", _NIC, Verdict.WATCH, "part of a health report whose cause the firmware does not name",
        confidence=0.4, source="kernel",
    ),
    "nic.tx_timeout": row(
        _NET, "nic.driver", _NIC, Verdict.WATCH, "a queue of the adapter stood still and was restarted",
        confidence=0.6, corroborate="three in an hour on one node", source="NVSentinel; signals S155",
    ),
    "nic.access_register": row(
        _NET, "noise", _NIC, Verdict.BENIGN, "a tool read a register that this adapter does not have",
        confidence=0.95, source="gpud 1164; signals S158",
    ),
    "nic.cqe_error": row(
        _NET, "nic.transport", _NIC, Verdict.BENIGN,
        "a work request of a program ended with an error: what the end of its peer looks like",
        confidence=0.6, corroborate="many peers towards one node", source="field reports",
    ),
}  # fmt: skip

_SLOT_AND_OPTICS: dict[str, Row] = {
    "nic.low_power": row(
        _NET, "nic.power", _NIC, Verdict.WATCH, "the slot promises less power than the adapter may need",
        urgency=Urgency.JOB_END, confidence=0.6, remedy=Remedy.INSPECT,
        corroborate="seen on whole healthy fleets: compare with peers of the same model", source="gpud; signals S156",
    ),
    "nic.module_hot": row(
        _NET, "nic.thermal", _NIC, Verdict.WATCH, "the optical module of a port is too hot",
        urgency=Urgency.JOB_END, confidence=0.8, remedy=Remedy.INSPECT, source="gpud; signals S157",
    ),
    "nic.hot": row(
        _NET, "nic.thermal", _NIC, Verdict.WATCH, "a sensor of the adapter is above its limit",
        urgency=Urgency.JOB_END, confidence=0.7, remedy=Remedy.INSPECT, source="kernel",
    ),
    "nic.module_error": row(
        _NET, "nic.optics", _NIC, Verdict.WATCH, "the adapter does not accept or cannot read a cable or module",
        urgency=Urgency.JOB_END, confidence=0.6, remedy=Remedy.INSPECT, source="kernel; signals S183",
    ),
    "nic.module": row(
        _NET, "nic.optics", _NIC, Verdict.BENIGN, "a cable was plugged in or is not there", source="kernel",
    ),
}  # fmt: skip

_LINKS: dict[str, Row] = {
    "nic.link_down": row(
        _NET, "nic.link", _NIC, Verdict.BENIGN, "an interface lost its carrier; once is ordinary",
        confidence=0.5, corroborate="whether it comes back, how often, and whether it carries the job", source="kernel",
    ),
    "nic.link_up": row(
        _NET, "nic.link", _NIC, Verdict.BENIGN, "an interface has a carrier", confidence=0.9, source="kernel",
    ),
    "nic.link_lost": row(
        _NET, "nic.link", _NIC, Verdict.SUSPECT, "a port that carries training traffic went down and did not come back",
        urgency=Urgency.NOW, confidence=0.6, remedy=Remedy.INSPECT,
        corroborate="the port's state now; the switch's end of the link", source="signals S170",
    ),
    "nic.flap": row(
        _NET, "nic.link", _NIC, Verdict.FAULTY, "the link of a port comes and goes",
        urgency=Urgency.NEXT_CHECKPOINT, confidence=0.85, remedy=Remedy.INSPECT,
        corroborate="many ports at once are a switch, not these ports", source="signals S171",
    ),
    "nic.flap.many": row(
        _NET, "fabric.link", Scope.FABRIC, Verdict.FAULTY,
        "many ports of a node lost their link together: a switch or a cable tray, not each of them",
        urgency=Urgency.NEXT_CHECKPOINT, confidence=0.6, isolate=False, remedy=Remedy.INSPECT, source="published results 6",
    ),
    "nic.bond_lost": row(
        _NET, "nic.link", Scope.NODE, Verdict.SUSPECT, "no interface of a bond has a link: the node is cut off by that way",
        urgency=Urgency.NOW, confidence=0.7, remedy=Remedy.INSPECT, source="kernel",
    ),
}  # fmt: skip

ROWS: dict[str, Row] = {
    "nic": row(_NET, "nic.driver", _NIC, Verdict.WATCH, "something about an adapter", confidence=0.3, source="project"),
    **_DRIVER,
    **_SLOT_AND_OPTICS,
    **_LINKS,
}
