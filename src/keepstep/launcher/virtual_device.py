"""A CPU that stands for a training device, and the faults that demo and tests give it. Owns the fault file's format.

``<state-dir>/faults/<node>-<slot>`` holds JSON: ``{"kind": "fail_ranks", "after_s": 0.5, "message": "…"}``. Kinds:
``fail_ranks`` (every rank on it dies), ``fail_gate`` (the validation gate fails), ``broken`` (both). Without the file
the device is healthy.
"""

import json
import os
import signal
import sys
import threading
from typing import NamedTuple

from keepstep.core.facts import Device

_KINDS = ("fail_ranks", "fail_gate", "broken")


class Fault(NamedTuple):
    kind: str
    after_s: float = 0.0
    """How long a rank runs before the fault hits it; 0 hits it before user code."""
    message: str = "virtual device has fallen off the bus"

    @property
    def fails_ranks(self) -> bool:
        return self.kind in ("fail_ranks", "broken")

    @property
    def fails_gate(self) -> bool:
        return self.kind in ("fail_gate", "broken")


class DeviceFault(RuntimeError):
    """What a rank sees of a failing virtual device. Its name is a key of the catalogue (core.catalog.ERRORS)."""


def device(node: str, slot: int) -> Device:
    return Device(slot=slot, serial=f"{node}-cpu{slot}", model="cpu", firmware="virtual-1")


def fault_file(state_dir: str, node: str, slot: int) -> str:
    return os.path.join(state_dir, "faults", f"{node}-{slot}")


def read_fault(state_dir: str, node: str, slot: int) -> Fault | None:
    """None for a healthy device. Raises ValueError for a file that is not a fault."""
    path = fault_file(state_dir, node, slot)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    try:
        body = json.loads(text)
        fault = Fault(str(body["kind"]), float(body.get("after_s", 0.0)), str(body.get("message", Fault("").message)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a fault: {error}; write JSON with a kind out of {', '.join(_KINDS)}"
        ) from error
    if fault.kind not in _KINDS:
        raise ValueError(f"{path} names the kind {fault.kind!r}; known are {', '.join(_KINDS)}")
    return fault


def strike(fault: Fault | None) -> None:
    """In a rank, before user code: raises DeviceFault now, or ends the process after a while."""
    if fault is None or not fault.fails_ranks:
        return
    if fault.after_s <= 0:
        raise DeviceFault(f"device error: {fault.message}")

    def die() -> None:
        print(f"device error: {fault.message}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    timer = threading.Timer(fault.after_s, die)
    timer.daemon = True
    timer.start()
