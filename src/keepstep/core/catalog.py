"""The catalogue: what a signal, an exit signal or an error class means. Data; must not look at the World.

Two separate columns: what is wrong with the resource, and how urgent it is for the running job. The signals issue grows the
table; rows here are those that can arise on one machine or that the simulator injects. Source: vendors' catalogues and field
reports as collected for the project, in our own words.
"""

from msgspec import Struct

from keepstep.core.incident import Cause, Urgency

CATALOG_VERSION = 1


class Row(Struct, frozen=True, kw_only=True):
    cause: Cause
    urgency: Urgency
    isolate: bool
    """Whether the resource is held before the restart."""
    confidence: float
    text: str
    source: str = ""


SIGNALS: dict[str, Row] = {
    "device.lost": Row(
        cause=Cause.DEVICE, urgency=Urgency.NOW, isolate=True, confidence=0.95,
        text="the device fell off the bus (Xid 79) or is not enumerated any more", source="vendor catalogue",
    ),
    "device.memory.uncorrectable": Row(
        cause=Cause.DEVICE, urgency=Urgency.NOW, isolate=True, confidence=0.9,
        text="uncorrectable memory error (Xid 48, 95, 140)", source="vendor catalogue",
    ),
    "device.memory.contained": Row(
        cause=Cause.DEVICE, urgency=Urgency.NONE, isolate=False, confidence=0.7,
        text="contained memory error (Xid 94): the process that used the page ends, the device goes on",
        source="vendor catalogue",
    ),
    "device.firmware": Row(
        cause=Cause.DEVICE, urgency=Urgency.NOW, isolate=True, confidence=0.8,
        text="device firmware does not answer (Xid 119, 120)", source="vendor catalogue",
    ),
    "device.engine": Row(
        cause=Cause.APPLICATION, urgency=Urgency.NONE, isolate=False, confidence=0.6,
        text="engine exception (Xid 13, 31, 43): most often the program's own", source="vendor catalogue",
    ),
    "device.thermal": Row(
        cause=Cause.DEVICE, urgency=Urgency.NEXT_CHECKPOINT, isolate=True, confidence=0.7,
        text="hardware thermal slowdown for most of ten minutes", source="field reports",
    ),
    "node.hardware": Row(
        cause=Cause.HOST_HARDWARE, urgency=Urgency.NOW, isolate=True, confidence=0.85,
        text="the BMC reports a critical hardware event", source="vendor catalogue",
    ),
    "node.kernel": Row(
        cause=Cause.HOST_SOFTWARE, urgency=Urgency.NOW, isolate=True, confidence=0.8,
        text="kernel fault or lock-up", source="field reports",
    ),
    "nic.down": Row(
        cause=Cause.NETWORK, urgency=Urgency.NOW, isolate=True, confidence=0.8,
        text="the port that carries the job's traffic went down", source="field reports",
    ),
    "dependency.down": Row(
        cause=Cause.DEPENDENCY, urgency=Urgency.NONE, isolate=False, confidence=0.8,
        text="a declared dependency does not answer; not the fault of a node", source="mission A8",
    ),
}  # fmt: skip

ERRORS: dict[str, Row] = {
    "CUDA error": Row(
        cause=Cause.DEVICE, urgency=Urgency.NOW, isolate=False, confidence=0.5,
        text="CUDA error: the device or the program; the same symptom is user code as often as hardware",
        source="published failure statistics",
    ),
    "DeviceFault": Row(
        cause=Cause.DEVICE, urgency=Urgency.NOW, isolate=False, confidence=0.7,
        text="the device reported a fault to the program",
    ),
    "NCCL": Row(
        cause=Cause.NETWORK, urgency=Urgency.NOW, isolate=False, confidence=0.4,
        text="a communicator failed",
    ),
    "out of memory": Row(
        cause=Cause.APPLICATION, urgency=Urgency.NOW, isolate=False, confidence=0.7,
        text="out of device memory",
    ),
    "StateInvalid": Row(
        cause=Cause.CHECKPOINT, urgency=Urgency.NOW, isolate=False, confidence=0.95,
        text="the state could not be restored",
    ),
}  # fmt: skip

APPLICATION_ERROR = Row(
    cause=Cause.APPLICATION, urgency=Urgency.NOW, isolate=False, confidence=0.8, text="the program raised an exception"
)

_CRASH = Row(
    cause=Cause.UNKNOWN, urgency=Urgency.NOW, isolate=False, confidence=0.4,
    text="native crash: the program, a library or the device",
)  # fmt: skip

EXIT_SIGNALS: dict[int, Row] = {
    4: _CRASH, 6: _CRASH, 7: _CRASH, 8: _CRASH, 11: _CRASH,
    9: Row(
        cause=Cause.HOST_SOFTWARE, urgency=Urgency.NOW, isolate=False, confidence=0.7,
        text="killed from outside (SIGKILL: the kernel's memory killer, an operator, a scheduler)",
    ),
    15: Row(
        cause=Cause.HOST_SOFTWARE, urgency=Urgency.NOW, isolate=False, confidence=0.7,
        text="ended from outside (SIGTERM)",
    ),
}  # fmt: skip

OTHER_SIGNAL = Row(cause=Cause.UNKNOWN, urgency=Urgency.NOW, isolate=False, confidence=0.4, text="ended by a signal")
