"""Vendor-neutral rows: what the simulator injects, and what a source says that knows no vendor's code. Data only."""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict
from keepstep.core.incident import Cause, Urgency

ROWS: dict[str, Row] = {
    "device.lost": Row(
        failure_class="gpu.lost", remedy=Remedy.REBOOT,
        cause=Cause.DEVICE, urgency=Urgency.NOW, isolate=True, confidence=0.95,
        text="the device fell off the bus (Xid 79) or is not enumerated any more", source="vendor catalogue",
    ),
    "device.memory.uncorrectable": Row(
        failure_class="gpu.memory.dbe", remedy=Remedy.RESET_DEVICE,
        cause=Cause.DEVICE, urgency=Urgency.NOW, isolate=True, confidence=0.9,
        text="uncorrectable memory error (Xid 48, 95, 140)", source="vendor catalogue",
    ),
    "device.memory.contained": Row(
        failure_class="gpu.memory.contained", verdict=Verdict.WATCH,
        cause=Cause.DEVICE, urgency=Urgency.NONE, isolate=False, confidence=0.7,
        text="contained memory error (Xid 94): the process that used the page ends, the device goes on",
        source="vendor catalogue",
    ),
    "device.firmware": Row(
        failure_class="gpu.firmware", remedy=Remedy.RESET_DEVICE,
        cause=Cause.DEVICE, urgency=Urgency.NOW, isolate=True, confidence=0.8,
        text="device firmware does not answer (Xid 119, 120)", source="vendor catalogue",
    ),
    "device.engine": Row(
        failure_class="gpu.compute_engine", verdict=Verdict.WATCH,
        cause=Cause.APPLICATION, urgency=Urgency.NONE, isolate=False, confidence=0.6,
        text="engine exception (Xid 13, 31, 43): most often the program's own", source="vendor catalogue",
    ),
    "device.thermal": Row(
        failure_class="gpu.thermal", remedy=Remedy.INSPECT,
        cause=Cause.DEVICE, urgency=Urgency.NEXT_CHECKPOINT, isolate=True, confidence=0.7,
        text="hardware thermal slowdown for most of ten minutes", source="field reports",
    ),
    "node.hardware": Row(
        failure_class="node.hw", scope=Scope.NODE, remedy=Remedy.INSPECT,
        cause=Cause.HOST_HARDWARE, urgency=Urgency.NOW, isolate=True, confidence=0.85,
        text="the BMC reports a critical hardware event", source="vendor catalogue",
    ),
    "node.kernel": Row(
        failure_class="os.kernel", scope=Scope.NODE, remedy=Remedy.REBOOT,
        cause=Cause.HOST_SOFTWARE, urgency=Urgency.NOW, isolate=True, confidence=0.8,
        text="kernel fault or lock-up", source="field reports",
    ),
    "nic.down": Row(
        failure_class="nic.link", scope=Scope.NIC, remedy=Remedy.INSPECT,
        cause=Cause.NETWORK, urgency=Urgency.NOW, isolate=True, confidence=0.8,
        text="the port that carries the job's traffic went down", source="field reports",
    ),
    "dependency.down": Row(
        failure_class="dependency.service", scope=Scope.DEPENDENCY, verdict=Verdict.FAULTY, remedy=Remedy.DEPENDENCY,
        cause=Cause.DEPENDENCY, urgency=Urgency.NONE, isolate=False, confidence=0.8,
        text="a declared dependency does not answer; not the fault of a node", source="mission A8",
    ),
}  # fmt: skip
