"""Runs a training script and hurts it on request. Owns the faults that only the inside of a rank can raise.

``python -m keepstep.demo.job train.py args…``; the script is untouched. After each optimizer step the rank looks for
the order file named by ``KEEPSTEP_DEMO_FAULT`` and at the virtual device that it runs on. An order is removed before it
is carried out, so that it strikes once. The session is asked for a memory snapshot of every step, so that what a fault
costs does not depend on how busy the machine is. Must not do anything else to the job.
"""

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

import keepstep
from keepstep import train
from keepstep.demo.order import ORDER_VARIABLE, FaultOrder
from keepstep.launcher import virtual_device
from keepstep.wire import environment


class Saboteur:
    """Sits in one rank: behind its optimizer, and among the objects whose state a session saves."""

    def __init__(self, order_file: str, rank: int) -> None:
        self._order_file, self._rank = order_file, rank
        self._steps = 0
        """Of the newest optimizer step of this process; a state that is asked for before it is no save."""

    def after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._steps = _steps_of(optimizer)
        virtual_device.strike(_fault_of_my_device())
        if self._takes("exception"):
            raise RuntimeError(f"the demo asked rank {self._rank} to raise this")

    def state_dict(self) -> dict[str, Any]:
        """Called in the middle of a save: the other ranks hand theirs over and this one never does."""
        if self._takes("checkpoint"):
            os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing was saved of it."""

    def _takes(self, kind: str) -> bool:
        try:
            with open(self._order_file, "rb") as file:
                order = msgspec.json.decode(file.read(), type=FaultOrder)
        except FileNotFoundError:
            return False
        if (order.kind, order.rank) != (kind, self._rank) or not self._steps or self._steps % order.every_steps:
            return False
        os.unlink(self._order_file)
        return True


def _steps_of(optimizer: Optimizer) -> int:
    """Completed steps, counted through all restarts."""
    state: dict[str, Any] = next(iter(optimizer.state.values()), {})
    steps = state.get("step", 0)
    return int(steps.item()) if isinstance(steps, torch.Tensor) else int(steps)


def _fault_of_my_device() -> virtual_device.Fault | None:
    state_dir, node, slot = (
        os.environ.get(name) for name in (environment.STATE_DIR, environment.NODE, environment.DEVICE)
    )
    return virtual_device.read_fault(state_dir, node, int(slot)) if state_dir and node and slot else None


def _join(saboteur: Saboteur) -> None:
    """From here on the script's optimizer calls it, and the script's session saves it."""
    register_optimizer_step_post_hook(saboteur.after_step)

    def session_with_saboteur(**registered: Any) -> Any:
        return train.session(**{"snapshot_every_steps": 1, **registered}, demo=saboteur)

    vars(keepstep)["session"] = session_with_saboteur


def main() -> None:
    script, *arguments = sys.argv[1:]
    order_file = os.environ.get(ORDER_VARIABLE)
    if order_file:
        _join(Saboteur(order_file, int(os.environ.get("RANK", "0"))))
    sys.argv[:] = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
