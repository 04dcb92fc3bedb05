"""Rows of what a scheduler says: states of nodes, reasons that people and scripts wrote, ends of jobs. Data only.

A scheduler's word is second hand: that a node is drained says that somebody took it out, and the reason says what he thought.
"""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency


def _reason(
    cause: Cause, failure_class: str, what: str, scope: Scope = Scope.NODE, remedy: Remedy = Remedy.VALIDATE
) -> Row:
    return row(
        cause, failure_class, scope, Verdict.SUSPECT, f"taken out of service, and the reason names {what}",
        confidence=0.6, remedy=remedy, corroborate="what the node itself says", source="reason of the scheduler",
    )  # fmt: skip


_HW, _SW, _DEV, _NET = Cause.HOST_HARDWARE, Cause.HOST_SOFTWARE, Cause.DEVICE, Cause.NETWORK

_REASONS: dict[str, Row] = {
    "node.reason.gpu_lost": _reason(_DEV, "gpu.lost", "an accelerator that is missing", remedy=Remedy.REBOOT),
    "node.reason.gpu_fallen": _reason(_DEV, "gpu.fallen_off_bus", "an accelerator off the bus", remedy=Remedy.REBOOT),
    "node.reason.gpu_memory": _reason(
        _DEV, "gpu.memory.dbe", "memory errors of an accelerator", Scope.CARD, Remedy.RESET_DEVICE
    ),
    "node.reason.gpu_firmware": _reason(_DEV, "gpu.firmware", "firmware of an accelerator", Scope.CARD, Remedy.RESET_DEVICE),
    "node.reason.gpu_thermal": _reason(_DEV, "gpu.thermal", "heat of an accelerator", Scope.CARD, Remedy.INSPECT),
    "node.reason.gpu": _reason(_DEV, "gpu.compute_engine", "an accelerator", Scope.CARD),
    "node.reason.nvlink": _reason(_DEV, "nvlink.fabric", "the links between accelerators"),
    "node.reason.nic": _reason(_NET, "nic.link", "a network adapter or its link", Scope.NIC, Remedy.INSPECT),
    "node.reason.shared_storage": _reason(
        Cause.DEPENDENCY, "storage.shared", "a shared file system", Scope.DEPENDENCY, Remedy.DEPENDENCY
    ),
    "node.reason.disk": _reason(_HW, "storage.local", "a drive or a local file system", Scope.DISK, Remedy.INSPECT),
    "node.reason.memory": _reason(_HW, "dram.host", "host memory", remedy=Remedy.INSPECT),
    "node.reason.cpu": _reason(_HW, "cpu", "a processor", remedy=Remedy.INSPECT),
    "node.reason.power": _reason(Cause.POWER, "power.psu", "power", remedy=Remedy.INSPECT),
    "node.reason.thermal": _reason(_HW, "thermal.facility", "temperature or fans", remedy=Remedy.INSPECT),
    "node.reason.kernel": _reason(_SW, "os.kernel", "processes that cannot be ended, or the kernel", remedy=Remedy.REBOOT),
    "node.reason.service": _reason(_SW, "os.service", "a script or a service of the node", remedy=Remedy.RESTART_SERVICE),
    "node.reason.config": _reason(_SW, "config.drift", "fewer resources than configured", remedy=Remedy.FIX_CONFIG),
    "node.reason.hardware": _reason(_HW, "node.hw", "hardware", remedy=Remedy.INSPECT),
}  # fmt: skip

ROWS: dict[str, Row] = {
    **_REASONS,
    "node.drained": row(
        Cause.OPERATOR, "maintenance", Scope.NODE, Verdict.WATCH,
        "somebody has taken the node out; the reason names no fault", confidence=0.8,
        corroborate="never put back by anybody but who took it out", source="scheduler state",
    ),
    "node.maintenance": row(
        Cause.OPERATOR, "maintenance", Scope.NODE, Verdict.BENIGN, "planned work on the node", confidence=0.9,
        source="scheduler state",
    ),
    "node.down": row(
        Cause.UNKNOWN, "node.loss", Scope.NODE, Verdict.SUSPECT,
        "the scheduler holds the node for lost", urgency=Urgency.NOW, confidence=0.6, remedy=Remedy.REBOOT,
        corroborate="silence alone is unknown: its agent, its BMC or its peers must say the same", source="scheduler state",
    ),
    "node.silent": row(
        Cause.UNKNOWN, "node.loss", Scope.NODE, Verdict.WATCH,
        "a node that is out of service anyhow does not answer the scheduler", confidence=0.3, source="scheduler state",
    ),
    "node.failing": row(
        _HW, "node.hw", Scope.NODE, Verdict.SUSPECT, "the scheduler was told that the node fails",
        urgency=Urgency.NEXT_CHECKPOINT, confidence=0.7, remedy=Remedy.VALIDATE, source="scheduler state",
    ),
    "scheduler.node_fail": row(
        Cause.UNKNOWN, "node.loss", Scope.NODE, Verdict.SUSPECT,
        "the scheduler ended a job because one of its nodes was lost", urgency=Urgency.NOW, confidence=0.6,
        remedy=Remedy.VALIDATE, corroborate="it does not say which node", source="scheduler accounting",
    ),
    "scheduler.boot_fail": row(
        _SW, "node.loss", Scope.NODE, Verdict.SUSPECT, "nodes of a job could not be started", urgency=Urgency.NOW,
        confidence=0.6, remedy=Remedy.VALIDATE, source="scheduler accounting",
    ),
    "scheduler.out_of_memory": row(
        Cause.APPLICATION, "os.memory", Scope.JOB, Verdict.WATCH, "a job used more memory than it was given",
        confidence=0.8, source="scheduler accounting",
    ),
    "scheduler.unreachable": row(
        Cause.DEPENDENCY, "dependency.service", Scope.DEPENDENCY, Verdict.SUSPECT, "the scheduler's controller does not answer",
        confidence=0.7, remedy=Remedy.DEPENDENCY, source="scheduler",
    ),
    "scheduler.failed": row(
        Cause.APPLICATION, "software.app", Scope.JOB, Verdict.WATCH, "a job ended with an exit code", confidence=0.4,
        corroborate="an exit code names no cause", source="scheduler accounting",
    ),
    "scheduler.timeout": row(
        Cause.OPERATOR, "maintenance", Scope.JOB, Verdict.BENIGN, "a job reached its time limit", confidence=0.9,
        source="scheduler accounting",
    ),
    "scheduler.preempted": row(
        Cause.OPERATOR, "maintenance", Scope.JOB, Verdict.BENIGN, "a job gave way to another", confidence=0.9,
        source="scheduler accounting",
    ),
}  # fmt: skip
