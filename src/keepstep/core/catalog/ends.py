"""What the end of a rank means: its error class or its signal. Data only."""

from keepstep.core.catalog.row import Row
from keepstep.core.incident import Cause, Urgency

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
