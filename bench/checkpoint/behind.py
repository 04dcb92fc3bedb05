"""What a save that runs behind does to the training steps, and what memory it takes beside the slots.

Steps without a save and steps while one is written and read back take turns; the stall of the snapshot itself is in no step.
Two kinds of step: one that leaves the processor to others for most of its time, as one that waits for a device, and one that
computes on one core all the time.
"""

import os
import statistics
import time

import torch

from bench.checkpoint.figures import Row, duration, ratios
from bench.checkpoint.server import Server, memory_bytes
from bench.checkpoint.stall import Ours
from keepstep.checkpoint import SnapshotClient

DEVICE_S = 0.02
PATIENCE_S = 120.0
MEBIBYTE = 1024 * 1024


class Step:
    """One step of training. ``waits``: like one whose work is done by a device."""

    def __init__(self, *, waits: bool) -> None:
        side = 256 if waits else 768
        self._a, self._b, self._waits = torch.rand(side, side), torch.rand(side, side), waits

    def __call__(self) -> float:
        began = time.perf_counter()
        for _ in range(1 if self._waits else 3):
            torch.mm(self._a, self._b)
        if self._waits:
            time.sleep(DEVICE_S)
        return time.perf_counter() - began


def slowed(ours: Ours, client: SnapshotClient, *, waits: bool, repetitions: int) -> tuple[Row, list[float]]:
    """Row, and the seconds from seal to commit (read back)."""
    step = Step(waits=waits)
    for _ in range(5):
        step()
    alone, behind, saves = [], [], []
    for _ in range(repetitions):
        ours.snapshot(durable=True)
        began = time.perf_counter()
        steps = [step()]
        while not client.wait_durable(ours.step, 0.0):
            if time.perf_counter() - began > PATIENCE_S:
                raise TimeoutError("the save behind did not end")
            steps.append(step())
        saves.append(time.perf_counter() - began)
        behind.append(statistics.median(steps))
        alone.append(statistics.median([step() for _ in steps]))
    kind = "waits for a device" if waits else "computes on one core"
    row = Row(
        f"training step ({kind}) while a save runs behind", duration(behind), duration(alone), ratios(behind, alone), 1.03
    )  # fmt: skip
    return row, saves


def memory_beside_slots(server: Server, ours: Ours, client: SnapshotClient, saves: int) -> Row:
    """The most that server and worker have beyond shared memory while saves run, above what they had before."""
    idle = {pid: memory_bytes(pid) for pid in (server.pid, os.getpid())}
    most = dict(idle)
    for _ in range(saves):
        ours.snapshot(durable=True)
        while not client.wait_durable(ours.step, 0.005):
            for pid in most:
                most[pid] = max(most[pid], memory_bytes(pid))
    grown = [(most[pid] - idle[pid]) / MEBIBYTE for pid in (server.pid, os.getpid())]
    return Row(
        "memory beside the slots while a save runs, MiB", f"server {grown[0]:.0f}, worker {grown[1]:.0f}",
        f"server when idle {idle[server.pid] / MEBIBYTE:.0f}", [sum(grown)], 64.0,
    )  # fmt: skip
