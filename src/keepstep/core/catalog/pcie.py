"""Rows of PCI bus signals. Data only.

The suffix says what the device is, where the line said so: ``.gpu``, ``.nic``, ``.disk``; without one it is a port or unknown.
"""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_OWNERS: dict[str, tuple[Cause, str, Scope]] = {
    "": (Cause.HOST_HARDWARE, "gpu.pcie", Scope.NODE),
    ".gpu": (Cause.DEVICE, "gpu.pcie", Scope.CARD),
    ".nic": (Cause.NETWORK, "nic.pcie", Scope.NIC),
    ".disk": (Cause.HOST_HARDWARE, "storage.local", Scope.DISK),
}


def _each(base: str, verdict: Verdict, text: str, **more: object) -> dict[str, Row]:
    """The same judgement for every kind of device, with its own class and scope."""
    return {
        base + suffix: row(cause, failure_class, scope, verdict, text, **more)
        for suffix, (cause, failure_class, scope) in _OWNERS.items()
    }


ROWS: dict[str, Row] = {
    "pcie": row(
        Cause.HOST_HARDWARE, "gpu.pcie", Scope.NODE, Verdict.WATCH, "something about the PCI bus",
        confidence=0.3, source="project",
    ),
    **_each(
        "pcie.aer.corrected", Verdict.WATCH,
        "the link repeated or repaired a transfer by itself: nothing was lost; a rising rate precedes a failing link",
        confidence=0.9, corroborate="rate against peers; never acted on alone", source="kernel; field reports",
    ),
    **_each(
        "pcie.aer.nonfatal", Verdict.SUSPECT,
        "a transaction was lost and the link goes on: the device or its driver may have handled it",
        confidence=0.5, remedy=Remedy.VALIDATE, corroborate="the device's own errors; repeats", source="kernel",
    ),
    **_each(
        "pcie.aer.fatal", Verdict.FAULTY,
        "the link itself is no longer reliable and has to be reset: what hangs below it has failed",
        urgency=Urgency.NOW, confidence=0.85, remedy=Remedy.REBOOT,
        corroborate="which device is below the port; the BMC's event log", source="kernel; signals S134, S160",
    ),
    **_each(
        "pcie.recovered", Verdict.BENIGN, "the kernel brought the device back after an error",
        confidence=0.8, source="kernel",
    ),
    **_each(
        "pcie.recovery_failed", Verdict.FAULTY, "the kernel could not bring the device back after an error",
        urgency=Urgency.NOW, confidence=0.85, remedy=Remedy.REBOOT, source="kernel",
    ),
    **_each(
        "pcie.contained", Verdict.FAULTY,
        "the port cut off everything below it after an uncorrectable error",
        urgency=Urgency.NOW, confidence=0.8, remedy=Remedy.REBOOT, source="kernel",
    ),
    **_each(
        "pcie.narrow", Verdict.WATCH,
        "the link came up with less than half the speed or width that the device can do",
        urgency=Urgency.JOB_END, confidence=0.4, remedy=Remedy.VALIDATE,
        corroborate="only under load: idle links slow down on purpose; compare with peers", source="signals S135",
    ),
    "pcie.slot.down": row(
        Cause.HOST_HARDWARE, "gpu.pcie", Scope.NODE, Verdict.FAULTY, "a slot lost its link or its card while running",
        urgency=Urgency.NOW, confidence=0.7, remedy=Remedy.INSPECT,
        corroborate="a drive that somebody pulled looks the same", source="kernel",
    ),
    "pcie.slot.untrained": row(
        Cause.HOST_HARDWARE, "gpu.pcie", Scope.NODE, Verdict.SUSPECT, "a slot's link did not come up",
        confidence=0.5, remedy=Remedy.INSPECT, source="kernel",
    ),
    "pcie.slot.up": row(
        Cause.HOST_HARDWARE, "gpu.pcie", Scope.NODE, Verdict.BENIGN, "a slot's link came up", source="kernel",
    ),
    **_each(
        "pcie.gone", Verdict.SUSPECT,
        "a function of a card does not answer configuration reads any more",
        urgency=Urgency.NEXT_CHECKPOINT, confidence=0.6, remedy=Remedy.REBOOT,
        corroborate="most often the echo of a card that was lost a moment before", source="field reports",
    ),
    "pcie.serr": row(
        Cause.HOST_HARDWARE, "gpu.pcie", Scope.NODE, Verdict.FAULTY, "the board raised a system error on the PCI bus",
        urgency=Urgency.NOW, confidence=0.75, remedy=Remedy.INSPECT, source="kernel",
    ),
    "pcie.iommu": row(
        Cause.HOST_SOFTWARE, "software.driver", Scope.NODE, Verdict.WATCH,
        "a device wrote or read where it was not allowed to: a driver, a firmware or a dying device",
        confidence=0.5, corroborate="a storm, or the device's own errors", source="kernel",
    ),
}  # fmt: skip
