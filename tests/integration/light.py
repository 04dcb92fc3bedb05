"""A training job that needs no framework: numpy state, random numbers, an all-reduce through files, and planted faults.

Every rank appends one line per completed step to a trace: the ground truth that tests judge by, whatever Keepstep says.
``reference`` computes what an unfaulted run logs.

A fault is ``KIND@RANK:STEP[:GENERATION]``: it strikes in that generation and in none after it (default 1; 0: in every one).
A hold is ``STEP[:GENERATION]`` alike: all ranks wait there until the test lets them go on, so that what it does to a job finds
it at work, however late it comes.
"""

import argparse
import ctypes
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import keepstep

LONG_S = 7.0
"""Longer than the floor of the step deadline."""
SIZE = 64


class Fault(NamedTuple):
    kind: str
    rank: int
    step: int
    generation: int

    def strikes(self, rank: int, step: int, generation: int) -> bool:
        return (self.rank, self.step) == (rank, step) and self.generation in (0, generation)


def parse_fault(text: str) -> Fault:
    kind, _, where = text.partition("@")
    numbers = [int(number) for number in where.split(":")]
    return Fault(kind, numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 1)


class Hold(NamedTuple):
    step: int
    generation: int

    def wait(self, work: Path, step: int, generation: int) -> None:
        if step == self.step and self.generation in (0, generation):
            while not (work / f"go-{self.generation}").exists():
                time.sleep(0.01)


def parse_hold(text: str) -> Hold:
    numbers = [int(number) for number in text.split(":")]
    return Hold(numbers[0], numbers[1] if len(numbers) > 1 else 1)


class Walk:
    """The state: a vector that every rank holds alike, moved by random numbers that every rank draws for itself."""

    def __init__(self, rank: int, pad_bytes: int = 0) -> None:
        self.x = np.zeros(SIZE)
        self.pad = np.full(pad_bytes, rank, dtype=np.uint8)
        self.numbers, self.generator = np.random.RandomState(1000 + rank), random.Random(2000 + rank)

    def share(self, rank: int) -> float:
        return self.numbers.standard_normal() + self.generator.random() + 0.1 * (rank + 1) * float(self.x[0])

    def move(self, step: int, total: float) -> None:
        self.x *= 0.9
        self.x[step % SIZE] += total
        self.x[0] += 0.01 * total

    def digest(self) -> str:
        return hashlib.sha256(self.x.tobytes()).hexdigest()[:16]


def reference(world_size: int, steps: int) -> list[str]:
    """The digest after each step of an unfaulted run."""
    walks = [Walk(rank) for rank in range(world_size)]
    digests = []
    for step in range(steps):
        total = sum(walk.share(rank) for rank, walk in enumerate(walks))
        for walk in walks:
            walk.move(step, total)
        digests.append(walks[0].digest())
    return digests


def wait_for_room(run: "keepstep.Session") -> None:
    """A snapshot that finds no room is left out after 20 ms: what a fault costs would depend on how busy the machine is."""
    run._storage._client._patience_s = 60.0


class Registered:
    """What the session saves of a walk. ``on_save`` is called in the middle of it."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.on_save = lambda: None

    def state_dict(self) -> dict[str, Any]:
        x = self.walk.x
        self.on_save()
        kind, keys, position, has_gauss, cached = self.walk.numbers.get_state()
        version, internal, gauss = self.walk.generator.getstate()
        return {
            "x": x, "pad": self.walk.pad, "numpy": [kind, np.asarray(keys), position, has_gauss, cached],
            "python": [version, list(internal), gauss],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.walk.x = np.array(state["x"])
        kind, keys, position, has_gauss, cached = state["numpy"]
        self.walk.numbers.set_state((kind, np.asarray(keys), position, has_gauss, cached))
        version, internal, gauss = state["python"]
        self.walk.generator.setstate((version, tuple(internal), gauss))


def all_reduce(folder: Path, step: int, rank: int, world_size: int, value: float) -> float:
    """The sum over ranks, in rank order. Waits for ever for a rank that does not come."""
    mine = folder / f"{step}-{rank}"
    draft = folder / f"draft-{rank}"
    draft.write_text(value.hex())
    draft.rename(mine)
    total = 0.0
    for other in range(world_size):
        path = folder / f"{step}-{other}"
        while not path.exists():
            time.sleep(0.001)
        total += float.fromhex(path.read_text())
    (folder / f"{step - 2}-{rank}").unlink(missing_ok=True)
    return total


def stuck_in_user_code() -> None:
    while True:
        time.sleep(60.0)


def outlive_the_parent() -> None:
    """As a rank whose end does not follow that of its parent: the kernel's notice is switched off."""
    ctypes.CDLL(None, use_errno=True).prctl(1, 0, 0, 0, 0)


def leave_a_child() -> None:
    """As a loader process that nobody ends: a session of its own, blocked on a pipe that nobody reads."""
    program = "import os\nr, w = os.pipe()\nwhile True: os.write(w, bytes(65536))\n"
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    print(f"child {child.pid}", flush=True)


def strike(fault: Fault, run: "keepstep.Session") -> None:
    match fault.kind:
        case "raise":
            raise ValueError(f"planted at step {fault.step}")
        case "exit7":
            sys.exit(7)
        case "leave":
            sys.exit(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            stuck_in_user_code()
        case "slow":
            time.sleep(LONG_S)
        case "evaluate" | "checkpoint":
            with run.phase(fault.kind):
                time.sleep(LONG_S)
        case "outlive":
            outlive_the_parent()
        case "child":
            leave_a_child()
        case kind:
            raise AssertionError(f"no such fault: {kind}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the trace and of the all-reduce")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-time", type=float, default=0.02)
    parser.add_argument("--fault", type=parse_fault, action="append", default=[])
    parser.add_argument("--hold", type=parse_hold, action="append", default=[])
    parser.add_argument("--pad-bytes", type=int, default=0)
    parser.add_argument("--checkpoint-every-steps", type=int, default=None)
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--alone", action="store_true", help="ranks do not wait for each other")
    parser.add_argument("--bad-loss-generation", type=int, default=0, help="every loss of this generation is absurd")
    parser.add_argument("--last-words-s", type=float, default=0.0, help="rank 0 stays this long after its last step")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    generation = int(os.environ["KEEPSTEP_GENERATION"])
    node, pid = os.environ["KEEPSTEP_NODE"], os.getpid()
    slot = os.environ["KEEPSTEP_DEVICE_SLOT"]
    trace = os.open(arguments.work / "trace", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log(step: int, digest: str) -> None:
        line = f"{time.monotonic():.6f} {generation} {rank} {world_size} {step} {pid} {node} {slot} {digest}\n"
        os.write(trace, line.encode())

    log(-1, "-")
    folder = arguments.work / f"reduce-{generation}"
    folder.mkdir(exist_ok=True)
    walk = Walk(rank, arguments.pad_bytes)
    registered = Registered(walk)
    run = keepstep.session(
        walk=registered,
        checkpoint_every_steps=arguments.checkpoint_every_steps,
        snapshot_every_steps=1,
        elastic=arguments.elastic,
        per_rank=("walk",),
    )
    wait_for_room(run)
    for step in run.steps(arguments.steps):
        for hold in arguments.hold:
            hold.wait(arguments.work, step, generation)
        for fault in arguments.fault:
            if fault.strikes(rank, step, generation):
                if fault.kind == "save":
                    registered.on_save = lambda: os.kill(pid, signal.SIGKILL)
                else:
                    strike(fault, run)
        time.sleep(arguments.step_time)
        share = walk.share(rank)
        walk.move(step, share if arguments.alone else all_reduce(folder, step, rank, world_size, share))
        log(step, walk.digest())
        run.report(loss=1e9 if generation == arguments.bad_loss_generation else 1.0 / (step + 1))
    if rank == 0:
        time.sleep(arguments.last_words_s)


if __name__ == "__main__":
    main()
