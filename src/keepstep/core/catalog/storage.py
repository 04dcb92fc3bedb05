"""Rows of storage signals: what drives, arrays and file systems say of themselves when asked; and of host memory. Data only."""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_SOON, _END = Urgency.NEXT_CHECKPOINT, Urgency.JOB_END
_HW = Cause.HOST_HARDWARE

ROWS: dict[str, Row] = {
    "smart.failed": row(
        _HW, "storage.local", Scope.DISK, Verdict.FAULTY,
        "the drive says itself that it fails, or has used up its spare blocks", urgency=_SOON, confidence=0.9,
        remedy=Remedy.REPLACE, corroborate="the cards of the node are not concerned", source="NVMe and ATA specifications",
    ),
    "smart.read_only": row(
        _HW, "storage.local", Scope.DISK, Verdict.FAULTY, "the drive has gone read-only", urgency=_SOON, confidence=0.95,
        remedy=Remedy.REPLACE, source="NVMe specification",
    ),
    "smart.media_errors": row(
        _HW, "storage.local", Scope.DISK, Verdict.SUSPECT,
        "blocks could not be read back, or were given up", urgency=_END, confidence=0.7, remedy=Remedy.REPLACE,
        source="NVMe and ATA specifications",
    ),
    "smart.errors": row(
        _HW, "storage.local", Scope.DISK, Verdict.WATCH,
        "the drive's log of refused commands is far longer than that of its neighbours", confidence=0.3,
        corroborate="tools that ask for an unknown log page add entries too", source="project",
    ),
    "smart.missing": row(
        _HW, "storage.local", Scope.DISK, Verdict.SUSPECT,
        "the drive is there and does not answer the question for its health", urgency=_SOON, confidence=0.7,
        remedy=Remedy.INSPECT, corroborate="a RAID controller or a missing permission looks alike", source="field reports",
    ),
    "smart.worn": row(
        _HW, "storage.local", Scope.DISK, Verdict.WATCH, "the drive is past its rated wear", urgency=_END, confidence=0.5,
        remedy=Remedy.REPLACE, source="NVMe specification",
    ),
    "smart.hot": row(
        _HW, "storage.local", Scope.DISK, Verdict.WATCH, "the drive is above its temperature limit", confidence=0.5,
        remedy=Remedy.INSPECT, source="NVMe specification",
    ),
    "smart.unreadable": row(
        Cause.UNKNOWN, "storage.local", Scope.DISK, Verdict.BENIGN,
        "the tool could not open the drive: says nothing of the drive", source="smartctl exit status",
    ),
    "md.degraded": row(
        _HW, "storage.local", Scope.DISK, Verdict.SUSPECT,
        "an array runs without one of its members", urgency=_END, confidence=0.9, remedy=Remedy.REPLACE,
        source="md status",
    ),
    "md.failed": row(
        _HW, "storage.local", Scope.NODE, Verdict.FAULTY, "an array has lost more members than it bears", urgency=_SOON,
        confidence=0.9, remedy=Remedy.REPLACE, source="md status",
    ),
    "md.rebuilding": row(
        _HW, "storage.local", Scope.DISK, Verdict.WATCH, "an array is being rebuilt", confidence=0.7, source="md status",
    ),
    "space.full": row(
        Cause.HOST_SOFTWARE, "storage.local", Scope.NODE, Verdict.SUSPECT, "a local file system is full", confidence=0.8,
        remedy=Remedy.FIX_CONFIG, corroborate="a checkpoint that is written here fails next", source="field reports",
    ),
    "space.full.shared": row(
        Cause.DEPENDENCY, "storage.shared", Scope.DEPENDENCY, Verdict.FAULTY, "a shared file system is full",
        confidence=0.8, remedy=Remedy.DEPENDENCY, source="field reports",
    ),
    "space.low": row(
        Cause.HOST_SOFTWARE, "storage.local", Scope.NODE, Verdict.WATCH, "a file system is nearly full", confidence=0.6,
        source="field reports: 95 % local, 80 % parallel",
    ),
    "mount.read_only": row(
        _HW, "storage.local", Scope.NODE, Verdict.SUSPECT, "a local file system that was written to is read-only",
        urgency=_SOON, confidence=0.6, remedy=Remedy.INSPECT, source="field reports",
    ),
    "mount.stale": row(
        Cause.DEPENDENCY, "storage.shared", Scope.DEPENDENCY, Verdict.FAULTY, "a shared mount does not answer",
        confidence=0.8, remedy=Remedy.DEPENDENCY, corroborate="the same on many nodes is the server", source="field reports",
    ),
    "edac.uncorrected": row(
        _HW, "dram.host", Scope.NODE, Verdict.FAULTY, "host memory errors that could not be corrected",
        urgency=Urgency.NOW, confidence=0.85, remedy=Remedy.INSPECT, corroborate="the BMC's log names the slot",
        source="field reports",
    ),
    "edac.corrected": row(
        _HW, "dram.host", Scope.NODE, Verdict.WATCH, "host memory errors are corrected fast", confidence=0.4,
        source="field reports",
    ),
    "thermal.critical": row(
        _HW, "thermal.facility", Scope.NODE, Verdict.SUSPECT, "a sensor of the host is above its critical limit",
        urgency=_SOON, confidence=0.6, remedy=Remedy.INSPECT, corroborate="neighbours of the rack: the facility",
        source="sensor limits",
    ),
    "thermal.fan": row(
        _HW, "thermal.fan", Scope.NODE, Verdict.SUSPECT, "a fan stands still that was turning", urgency=_END,
        confidence=0.6, remedy=Remedy.INSPECT, source="field reports",
    ),
    "power.host_limit": row(
        Cause.POWER, "power.facility", Scope.NODE, Verdict.WATCH, "the power limit of the processors was lowered",
        confidence=0.4, source="project",
    ),
}  # fmt: skip
