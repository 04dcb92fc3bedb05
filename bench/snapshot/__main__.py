"""What a snapshot costs the training loop: stall per snapshot against a memory copy of the same bytes, in one run.

``python -m bench.snapshot [--json]``. The copy goes into mapped shared memory that is already paged in, rotating over as
many buffers as there are slots, so that both sides meet the same caches. Medians with min-max over the rounds.
"""

import argparse
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keepstep.checkpoint import SnapshotClient, flatten
from keepstep.checkpoint.snapshot.messages import Control, frame
from keepstep.checkpoint.snapshot.slots import slots_per_rank

CASES = {"1.5 MB in 100 tensors": (3_750, 100, 200, 0.004), "256 MB in 64 tensors": (1 << 20, 64, 15, 0.25)}
"""Elements of a tensor (float32), tensors, rounds, pause between rounds in seconds (a training step's place)."""


def timed(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def buffers(size_bytes: int) -> list["np.ndarray[Any, Any]"]:
    """Mapped shared memory, paged in."""
    made = []
    for _ in range(slots_per_rank(size_bytes)):
        fd = os.memfd_create("bench")
        os.posix_fallocate(fd, 0, size_bytes)
        made.append(np.frombuffer(mmap.mmap(fd, size_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE), np.uint8))
        os.close(fd)
    return made


def measure(client: SnapshotClient, elements: int, count: int, rounds: int, pause_s: float) -> dict[str, Any]:
    state = {f"w{n}": torch.randn(elements) for n in range(count)}
    flat = flatten(state)
    targets, source = buffers(flat.payload_bytes), np.ones(flat.payload_bytes, np.uint8)
    pieces = [source[n * elements * 4 : (n + 1) * elements * 4] for n in range(count)]

    def copy_pieces(target: "np.ndarray[Any, Any]") -> None:
        for n, piece in enumerate(pieces):
            np.copyto(target[n * elements * 4 : (n + 1) * elements * 4], piece)

    taken: dict[str, list[float]] = {"flatten": [], "snapshot": [], "snapshot_cpu": [], "copy": [], "pieces": []}
    skipped = client.skipped
    for step in range(rounds + 6):
        previous = flat

        def walk(previous: Any = previous) -> None:
            nonlocal flat
            flat = flatten(state, previous=previous)

        walked = timed(walk)
        cpu = time.thread_time()
        stalled = timed(lambda step=step: client.snapshot(step, {"state": flat}))  # type: ignore[misc]
        taken_cpu = time.thread_time() - cpu
        copied = timed(lambda step=step: np.copyto(targets[step % len(targets)], source))  # type: ignore[misc]
        pieced = timed(lambda step=step: copy_pieces(targets[(step + 1) % len(targets)]))  # type: ignore[misc]
        if step >= 6:
            for name, seconds in zip(taken, (walked, stalled, taken_cpu, copied, pieced), strict=True):
                taken[name].append(seconds)
        time.sleep(pause_s)
    result: dict[str, Any] = {name: _summary(values) for name, values in taken.items()}
    result["bytes"] = flat.payload_bytes
    result["skipped"] = client.skipped - skipped
    result["stall_over_copy"] = result["snapshot"]["median_s"] / result["copy"]["median_s"]
    result["pieces_over_stall"] = result["pieces"]["median_s"] / result["snapshot"]["median_s"]
    result["copy_over_stall_best"] = result["copy"]["min_s"] / result["snapshot"]["min_s"]
    return result


def _summary(values: list[float]) -> dict[str, float]:
    return {"median_s": statistics.median(values), "min_s": min(values), "max_s": max(values)}


def _milliseconds(summary: dict[str, float]) -> str:
    return f"{summary['median_s'] * 1e3:.3f} ({summary['min_s'] * 1e3:.3f}-{summary['max_s'] * 1e3:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.snapshot", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "socket")
            command = [sys.executable, "-m", "keepstep.checkpoint.snapshot", "--socket", path, "--job", "bench"]
            server = subprocess.Popen([*command, "--parent", str(os.getpid())], stdout=subprocess.PIPE)
            assert server.stdout is not None
            server.stdout.readline()
            with socket.socket(socket.AF_UNIX) as control:
                control.connect(path)
                control.sendall(frame(Control(job="bench")))
                client = SnapshotClient(path, job="bench", generation=1, rank=0, world_size=1)
                results[name] = measure(client, *case)
                client.close()
            server.wait(30)
    load = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"load": load, "cores": os.cpu_count(), "cases": results}, indent=2))
        return
    print(f"{os.cpu_count()} cores, load {load:.1f}; milliseconds, median (min-max)\n")
    print(
        "| state | flatten | snapshot | its CPU | one copy | copy by tensor | stall / copy | copy / stall, best | skipped |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, result in results.items():
        times = " | ".join(
            _milliseconds(result[part]) for part in ("flatten", "snapshot", "snapshot_cpu", "copy", "pieces")
        )
        ratios = f"{result['stall_over_copy']:.2f} | {result['copy_over_stall_best']:.2f}"
        print(f"| {name} | {times} | {ratios} | {result['skipped']} |")


if __name__ == "__main__":
    main()
