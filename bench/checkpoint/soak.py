"""Many durable saves through a real server: memory, descriptors, threads and files must stay as they were after the first ones.

``python -m bench.checkpoint --soak 1000``. Looks twenty times; the end is compared with the middle, so that pools and caches
that fill once are not taken for a leak. The commit log is the exception: it is cut by age and number, so that here it grows by
a few records a save, and with it what the server remembers of it and what a look at it takes.
"""

import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from bench.checkpoint.server import Server, descriptors, memory_bytes, threads
from keepstep.checkpoint import flatten

LOOKS = 20
STATE_BYTES = 4 * 1024 * 1024
MEMORY_SLACK_BYTES = 4 * 1024 * 1024
"""Allocators keep what they will need again."""
RECORDS_PER_SAVE = 3
"""The commit, that it was read back, and that an older one has expired."""
RECORD_BYTES = 6 * 1024
"""What a record of the log takes in memory."""


class Look(Struct, frozen=True, kw_only=True):
    """What is there after ``saves`` saves."""

    saves: int
    server_bytes: int
    worker_bytes: int
    descriptors: int
    threads: int
    folders: int
    """Of steps: checkpoints that are kept."""
    disk_bytes: int
    records: int
    """Of the commit log."""
    save_s: float
    """Median since the look before."""


class Soak(Struct, frozen=True, kw_only=True):
    looks: list[Look]

    def problems(self) -> list[str]:
        """What grew from the middle to the end. Empty if all is flat."""
        before, last = self.looks[len(self.looks) // 2 - 1], self.looks[-1]
        records = RECORDS_PER_SAVE * (last.saves - before.saves)
        bounds = {
            "server_bytes": MEMORY_SLACK_BYTES + records * RECORD_BYTES, "worker_bytes": MEMORY_SLACK_BYTES,
            "descriptors": 1, "threads": 1, "folders": 1, "disk_bytes": STATE_BYTES, "records": records,
        }  # fmt: skip
        return [
            f"{name} grew from {getattr(before, name):,} to {getattr(last, name):,} "
            f"between {before.saves} and {last.saves} saves"
            for name, most in bounds.items()
            if getattr(last, name) > getattr(before, name) + most
        ]

    def render(self) -> str:
        head = "| saves | server MiB | worker MiB | descriptors | threads | kept | on disk MiB | log records | ms a save |\n"
        rows = [
            f"| {look.saves} | {look.server_bytes / 2**20:.1f} | {look.worker_bytes / 2**20:.1f} | {look.descriptors} "
            f"| {look.threads} | {look.folders} | {look.disk_bytes / 2**20:.1f} | {look.records} | {look.save_s * 1e3:.1f} |"
            for look in self.looks
        ]
        return "\n".join([head + "|" + "---|" * 9, *rows, *(self.problems() or ["Flat."])])


def run(folder: Path, saves: int) -> Soak:
    """Durable saves of a small state, one after the other."""
    directory = folder / "checkpoints"
    state: dict[str, Any] = {f"w{n}": np.random.default_rng(n).random(STATE_BYTES // 64, np.float32) for n in range(16)}
    looks: list[Look] = []
    taken: list[float] = []
    every = max(1, saves // LOOKS)
    with Server(folder, directory, keep=2) as server:
        server.begin()
        client = server.client()
        for step in range(1, saves + 1):
            for array in state.values():
                array[::1024] += 1
            began = time.perf_counter()
            client.snapshot(step, {"model": flatten(state)}, durable=True)
            if not client.wait_durable(step, 60):
                raise TimeoutError(f"save {step} did not end")
            taken.append(time.perf_counter() - began)
            server.committed(step)
            if step % every == 0:
                looks.append(_look(server, directory, step, taken))
                taken = []
        client.close()
    return Soak(looks=looks)


def _look(server: Server, directory: Path, saves: int, taken: list[float]) -> Look:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return Look(
        saves=saves, server_bytes=memory_bytes(server.pid), worker_bytes=memory_bytes(os.getpid()),
        descriptors=descriptors(server.pid) + descriptors(os.getpid()),
        threads=threads(server.pid) + threads(os.getpid()), folders=len(list((directory / "steps").iterdir())),
        disk_bytes=sum(path.stat().st_blocks * 512 for path in files if "commits" not in path.parts),
        records=len(list((directory / "commits").iterdir())), save_s=statistics.median(taken),
    )  # fmt: skip
