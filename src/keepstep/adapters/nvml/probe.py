"""The child that talks to the driver: ``python -m keepstep.adapters.nvml.probe INTERVAL_S``. One JSON object a line on stdout.

Waits for the driver's events and, every ``INTERVAL_S``, asks every device everything. A call that hangs hangs this process
only: whoever started it kills it. Keeps no state that matters; must not judge what it sees.

Lines: ``begin``, then ``card`` for each device and slice, then ``end``; ``event``; ``absent`` or ``failed`` before it ends.
"""

import os
import sys
import time
from typing import Any

import pynvml as nvml

from keepstep.adapters.devices.telling import is_heard, say
from keepstep.adapters.nvml.questions import FATAL, Facts, Fatal, facts_of, one, text

WANTED = 2 | 8 | 1024 | 2048 | 4096 | 8192 | 16384 | 32768
"""Double-bit error, Xid, retirement and its failure, poison, unavailable, recovery action. Not the single-bit ones: a storm."""

_ABSENT = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_START = {
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "Driver/library version mismatch",
    nvml.NVML_ERROR_OPERATING_SYSTEM: "GPU access blocked by the operating system",
    nvml.NVML_ERROR_UNKNOWN: "Unknown Error",
}
_WAIT_MS = 1000
_NO_INSTANCE = 0xFFFFFFFF


class Watch:
    """Handles, names and the event set of the devices that are there."""

    def __init__(self) -> None:
        self.events: Any = None
        self._registered: set[str] = set()
        self._slices: dict[tuple[str, int, int], str] = {}
        """(UUID of the whole, GPU instance, compute instance) -> UUID of the slice."""

    def sweep(self) -> None:
        started_s = time.monotonic()
        count = nvml.nvmlDeviceGetCount()
        say(begin=count)
        for index in range(count):
            self._device(index)
        say(end=count, took_s=round(time.monotonic() - started_s, 3))

    def _device(self, index: int) -> None:
        line: dict[str, Any] = {"index": str(index)}
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            line |= _identity(handle)
            line["facts"] = facts_of(handle)
        except Fatal as fatal:
            line["trouble"] = str(fatal)
        except nvml.NVMLError as error:
            if error.value in FATAL:
                line["trouble"] = FATAL[error.value]
        say(card=line)
        if "facts" in line:
            self._register(handle, line.get("uuid", ""))
            if line["facts"].get("mode.mig") == "Enabled":
                self._slices_of(handle, line)

    def _slices_of(self, handle: Any, whole: dict[str, Any]) -> None:
        for number in range(one(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            piece = one(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            uuid = text(one(nvml.nvmlDeviceGetUUID, piece) or "") if piece is not None else ""
            if not uuid:
                continue
            instance = one(nvml.nvmlDeviceGetGpuInstanceId, piece)
            compute = one(nvml.nvmlDeviceGetComputeInstanceId, piece)
            self._slices[(whole.get("uuid", ""), instance or 0, compute or 0)] = uuid
            facts: Facts = {}
            errors = one(nvml.nvmlDeviceGetTotalEccErrors, piece, 1, 0)
            if errors is not None:
                facts["ecc.volatile"] = str(errors)
            say(card={"uuid": uuid, "parent": whole.get("uuid", ""), "facts": facts, "instance": str(instance)})

    def _register(self, handle: Any, uuid: str) -> None:
        if uuid in self._registered:
            return
        if self.events is None:
            self.events = one(nvml.nvmlEventSetCreate)
        supported = one(nvml.nvmlDeviceGetSupportedEventTypes, handle)
        if self.events is None or not supported or not supported & WANTED:
            return
        one(nvml.nvmlDeviceRegisterEvents, handle, supported & WANTED, self.events)
        self._registered.add(uuid)

    def _lose(self, error: Any) -> None:
        """A lost device spoils the set of all: the next sweep makes one of those that still answer."""
        say(note=f"events: {text(error)}")
        if self.events is not None:
            one(nvml.nvmlEventSetFree, self.events)
        self.events = None
        self._registered.clear()

    def wait(self, until_s: float) -> None:
        """Tells events as they come; returns early where the devices should be asked at once."""
        while (left_s := until_s - time.monotonic()) > 0:
            if not is_heard():
                raise SystemExit(0)
            wait_ms = max(1, min(_WAIT_MS, int(left_s * 1000)))
            if self.events is None:
                time.sleep(wait_ms / 1000)
                continue
            try:
                self._tell(nvml.nvmlEventSetWait_v2(self.events, wait_ms))
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    continue
                self._lose(error)
                time.sleep(wait_ms / 1000)
                return

    def _tell(self, event: Any) -> None:
        try:
            names = _identity(event.device)
        except nvml.NVMLError:
            names = {}
        except Fatal:
            names = {}
        slice_uuid = ""
        if event.gpuInstanceId != _NO_INSTANCE:
            key = (names.get("uuid", ""), event.gpuInstanceId, event.computeInstanceId)
            slice_uuid = self._slices.get(key, "")
        say(event={**names, "type": event.eventType, "data": event.eventData, "slice": slice_uuid})


def _identity(handle: Any) -> dict[str, str]:
    """What is known of a device whatever state it is in."""
    found: dict[str, str] = {}
    for name, call in (
        ("uuid", nvml.nvmlDeviceGetUUID), ("serial", nvml.nvmlDeviceGetSerial), ("name", nvml.nvmlDeviceGetName),
        ("index", nvml.nvmlDeviceGetIndex),
    ):  # fmt: skip
        value = one(call, handle)
        if value is not None:
            found[name] = text(value)
    pci = one(nvml.nvmlDeviceGetPciInfo, handle)
    if pci is not None:
        found["pci"] = text(pci.busId)
    return found


def main(interval_s: float) -> int:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value in _ABSENT:
            say(absent=text(error), loaded=error.value != nvml.NVML_ERROR_DRIVER_NOT_LOADED)
            return 0
        say(failed=f"Failed to initialize NVML: {_START.get(error.value, text(error))}", code=error.value)
        return 1
    watch = Watch()
    try:
        while True:
            watch.sweep()
            watch.wait(time.monotonic() + interval_s)
    except BrokenPipeError:
        # Nobody listens any more: whoever started it has ended.
        os._exit(0)
    except (nvml.NVMLError, Fatal) as error:
        # The library itself is in disorder: that says nothing of the devices, and a new process begins anew.
        say(failed=f"NVML: {text(error)}")
        return 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0))
