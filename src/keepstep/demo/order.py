"""What the demo asks of the inside of a rank, as files. Owns their format; light enough for the driver to import."""

import json
from pathlib import Path
from typing import Literal

import msgspec

from keepstep.launcher import virtual_device

ORDER_VARIABLE = "KEEPSTEP_DEMO_FAULT"
"""Names the environment variable that holds the path of the order file."""


class FaultOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank is to suffer."""

    kind: Literal["exception", "checkpoint"]
    """``exception``: raised after an optimizer step. ``checkpoint``: SIGKILL while it hands its state over."""
    rank: int
    every_steps: int = 1
    """Only at a step that is a multiple of this; with the checkpoint interval: in a checkpoint that goes to the disk."""

    def write(self, path: Path) -> None:
        """Appears whole: ranks look at any time."""
        _write(path, msgspec.json.encode(self))


def break_device(state_dir: Path, node: str, slot: int) -> None:
    """From now on every rank on this device fails, and so does its validation gate."""
    path = Path(virtual_device.fault_file(str(state_dir), node, slot))
    path.parent.mkdir(exist_ok=True)
    _write(path, json.dumps({"kind": "broken", "message": "the virtual device has fallen off the bus"}).encode())


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(content)
    draft.replace(path)
