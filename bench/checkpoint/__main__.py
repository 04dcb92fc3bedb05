"""``python -m bench.checkpoint``: the checkpoint engine against its goals, torch's ways and the machine's limits.

Two sizes of AdamW state. Everything that is compared takes turns in one run (A B A B), and ratios are taken repetition by
repetition. Writes a section of ``bench/RESULTS.md``. ``--quick``: small and short, to see that it runs; ``--soak N``: N saves
instead, of which memory, descriptors and files must stay flat.
"""

import argparse
import datetime
import gc
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from msgspec import Struct

from bench.checkpoint import behind, commit, disk, erasure, replica, restore, sealing, soak, stall
from bench.checkpoint.figures import Row, Table, duration
from bench.checkpoint.server import Server, available_bytes
from bench.checkpoint.state import State
from bench.recovery.__main__ import REPOSITORY, write_section
from keepstep.checkpoint.snapshot.policy import SnapshotPolicy

GIGABYTE = 10**9
MOST_BYTES = 16 * GIGABYTE
"""Of memory: state, two slots and one copy of it."""


class Plan(Struct, frozen=True, kw_only=True):
    """How often what is done with a state of one size."""

    size_bytes: int
    copies: int
    peers: int
    stagers: int
    """Asynchronous ways: 0 takes only the best of the size before."""
    saves: int
    disk: int
    restores: int
    replicas: int


FULL = (
    Plan(size_bytes=GIGABYTE, copies=15, peers=3, stagers=1, saves=5, disk=5, restores=7, replicas=7),
    Plan(size_bytes=4 * GIGABYTE, copies=7, peers=2, stagers=0, saves=2, disk=3, restores=3, replicas=3),
)
QUICK = (
    Plan(size_bytes=GIGABYTE // 16, copies=5, peers=1, stagers=1, saves=2, disk=2, restores=3, replicas=3),
    Plan(size_bytes=GIGABYTE // 4, copies=5, peers=1, stagers=0, saves=2, disk=2, restores=3, replicas=3),
)
Seconds = dict[str, list[float]]


class Work(Struct, kw_only=True):
    """One size, and what came of it."""

    folder: Path
    plan: Plan
    table: Table
    seconds: Seconds = {}
    """Of ours, for the growth."""
    best: str = ""
    """The asynchronous way of torch that stalled least, once it is known."""


def main() -> None:
    options = _parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="keepstep-bench-") as name:
        if options.soak:
            result = soak.run(Path(name), options.soak)
            print(result.render())
            sys.exit(1 if result.problems() else 0)
        table = Table()
        notes = run(Path(name), QUICK if options.quick else FULL, table)
    text = _text(table, notes)
    print(text)
    if not options.no_write and not options.quick:
        write_section(REPOSITORY / "bench" / "RESULTS.md", "checkpoint", text)
    for child in multiprocessing.active_children():
        # Of torch's asynchronous save: it would wait for the next one.
        child.terminate()
        child.join()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small states, a minute; nothing is written")
    parser.add_argument("--soak", type=int, default=0, metavar="N", help="N saves instead of the comparison")
    parser.add_argument("--directory", type=Path, default=REPOSITORY, help="on the disk that is measured")
    parser.add_argument("--no-write", action="store_true", help="do not touch bench/RESULTS.md")
    return parser.parse_args()


def run(folder: Path, plans: tuple[Plan, ...], table: Table) -> list[str]:
    """Everything, in order; returns what was left out and why."""
    notes: list[str] = []
    seconds: dict[int, Seconds] = {}
    best = ""
    for plan in plans:
        free = available_bytes()
        if free < 4.6 * plan.size_bytes or 4 * plan.size_bytes > MOST_BYTES:
            notes.append(
                f"{plan.size_bytes / GIGABYTE:.2g} GB was left out: {free / GIGABYTE:.1f} GB of memory were free."
            )
            continue
        with tempfile.TemporaryDirectory(dir=folder) as name:
            work = Work(folder=Path(name), plan=plan, table=table, best=best)
            one_size(work)
        best, seconds[plan.size_bytes] = work.best, work.seconds
        gc.collect()
    if len(seconds) == 2:
        table.add(*_growth(seconds))
    if plans is FULL:
        table.add(*_parts())
    return notes


def one_size(work: Work) -> None:
    plan, table, directory = work.plan, work.table, work.folder / "checkpoints"
    state = State(plan.size_bytes)
    _blobs(work, state)
    with Server(work.folder, directory) as server:
        step = _training(work, server, state)
        # What follows needs its memory.
        del state
        gc.collect()
        rows, work.seconds["restore from memory"] = restore.from_memory(server, step, plan.restores)
        table.add(*rows)
    rows, work.seconds["restore from disk"] = restore.from_disk(work.folder, directory, plan.restores)
    table.add(*rows)


def _blobs(work: Work, state: State) -> None:
    """What is done with the bytes of a sealed slot."""
    blob = disk.Blob(state)
    with tempfile.TemporaryDirectory(dir=work.folder) as place:
        rows, taken = disk.measure(blob, Path(place), work.plan.disk)
    work.seconds |= taken
    work.table.add(*rows)
    with Server(work.folder, None) as server:
        rows, work.seconds["copy to a peer"] = replica.measure(blob, server, work.plan.replicas)
    work.table.add(*rows)


def _training(work: Work, server: Server, state: State) -> int:
    """What a training process notices; returns the last step that was sealed."""
    plan, table = work.plan, work.table
    # Two slots of the larger size, so that all of it stays within the memory that may be used.
    server.begin(SnapshotPolicy(memory_bytes=max(int(4.8 * GIGABYTE), int(2.2 * plan.size_bytes))))
    client = server.client()
    ours = stall.Ours(server, client, state)
    rows, work.seconds["stall"] = stall.beside_copy(ours, state, plan.copies)
    table.add(*rows)
    # Before torch's ways, of which a process and threads stay.
    for waits in (True, False):
        row, work.seconds["save behind"] = behind.slowed(ours, client, waits=waits, repetitions=plan.saves)
        table.add(row)
    table.add(behind.memory_beside_slots(server, ours, client, plan.saves))
    stagers = [work.best] if work.best and not plan.stagers else list(stall.STAGERS)
    with stall.Peers(state, work.folder, stagers) as peers:
        rows, work.best = stall.beside_peers(ours, peers, plan.peers)
    table.add(*rows)
    client.close()
    return ours.step


def _growth(seconds: dict[int, Seconds]) -> list[Row]:
    """What a state of four times the size costs, as a multiple of four times the cost."""
    (small, less), (large, more) = sorted(seconds.items())
    return [
        Row(
            f"growth: {what} of {large / GIGABYTE:.2g} GB against {small / GIGABYTE:.2g} GB, per byte", duration(more[what]),
            duration(less[what]), [statistics.median(more[what]) * small / statistics.median(less[what]) / large], 1.1,
        )
        for what in less
    ]  # fmt: skip


def _parts() -> list[Row]:
    """What the benchmarks of single parts measure."""
    code, seal, ranks = erasure.measure()["4+2"], sealing.measure(), commit.measure()
    percent, last_s = code["encode_percent_of_core_per_gb_s"], ranks["last_receipt_s"] + ranks["commit_s"]
    sealed, copied = (f"{seal[f'{kind}_gb_per_cpu_s']:.3g} GB/CPU-s" for kind in ("seal", "copy"))
    return [
        Row(
            "erasure coding 4+2, % of a core per GB/s", f"{percent:.2g} %", f"copy {100 / code['copy_gb_per_cpu_s']:.2g} %",
            [percent], 7,
        ),
        Row("encryption of 8 MiB chunks, against a memory copy", sealed, copied, [seal["seal_to_copy"]]),
        Row(
            "commit of 4,096 ranks after the last receipt, s", f"{last_s:.2g} s", f"reading all {ranks['cold_s']:.2g} s",
            [last_s], 1,
        ),
    ]  # fmt: skip


def _text(table: Table, notes: list[str]) -> str:
    loads = table.loads
    head = (
        f"{datetime.datetime.now().date()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__} with one thread, 1-min load {min(loads):.1f}–{max(loads):.1f} (the benchmark's own "
        "included). Median (min–max) over repetitions in which all take turns; ratios are taken repetition by repetition. "
        "Command: `python -m bench.checkpoint`."
    )
    short = [f"{row.what}: {statistics.median(row.ratio):.3g}" for row in table.rows if row.is_met() is False]
    foot = [f"Not met: {'; '.join(short)}." if short else "All goals are met.", *notes]
    return "\n\n".join([head, table.render(), *foot])


if __name__ == "__main__":
    main()
