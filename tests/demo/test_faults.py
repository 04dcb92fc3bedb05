"""Each fault does to real processes and files what the table says. The recoveries are tests/integration's matter."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.warm import Warm

from keepstep.adapters.local import procfs
from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.repository.pack_writer import Group
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.state.blob import digest_chunks, pack
from keepstep.checkpoint.state.tree import flatten
from keepstep.checkpoint.stores.posix import PosixStore
from keepstep.demo.faults import BY_NAME, FAULTS, Done, flip_bit, spares_for
from keepstep.demo.order import FaultOrder
from keepstep.demo.plan import DemoPlan
from keepstep.demo.watch import Watch
from keepstep.launcher import virtual_device

from .recorded import JOB, Recorder, lose_rank, start

DEADLINE_S = 120.0


@dataclass
class ScriptedStage:
    """A stage on which the job is a recorded journal and some sleeping processes."""

    plan: DemoPlan
    watch: Watch
    power: list[str] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def wait_for(self, condition: Callable[[], bool], what: str, *, every_s: float = 0.01) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come within {DEADLINE_S} s"
            self.meanwhile()
            self.watch.read_journal()
            time.sleep(every_s)

    def cut_power(self) -> None:
        self.power.append("off")

    def restore_power(self) -> None:
        self.power.append("on")


@contextmanager
def sleepers(count: int, *arguments: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-c", "import signal; signal.pause()", *arguments]
    made = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            one.kill()
            one.wait()


class Cast:
    """Four ranks on n0 and n1 and the launchers of three nodes, as sleeping processes, in a recorded journal."""

    def __init__(self, plan: DemoPlan, processes: list[subprocess.Popen[bytes]]) -> None:
        self.ranks, launchers = processes[:4], processes[4:7]
        self.launchers = dict(zip(("n0", "n1", "n2"), launchers, strict=True))
        self.recorder = Recorder(plan.state.journal)
        known = {node: (p.pid, procfs.start_ticks(p.pid) or 0) for node, p in self.launchers.items()}
        start(self.recorder, {rank: process.pid for rank, process in enumerate(self.ranks)}, known)
        self.watch = Watch(plan)
        self.watch.read_journal()
        self.stage = ScriptedStage(plan, self.watch)

    def inject(self, name: str) -> Done:
        return BY_NAME[name].inject(self.stage)

    def alive(self) -> list[subprocess.Popen[bytes]]:
        return [one for one in (*self.ranks, *self.launchers.values()) if one.poll() is None]


@pytest.fixture
def cast(plan: DemoPlan) -> Iterator[Cast]:
    with sleepers(7) as processes:
        made = Cast(plan, processes)
        yield made
        made.watch.close()
        made.recorder.close()


def test_the_table_has_every_fault_once_and_each_says_what_it_shows() -> None:
    assert len(BY_NAME) == len(FAULTS) == 8
    assert all(fault.title and fault.shows and fault.causes for fault in FAULTS)


def test_spares_are_enough_between_two_times_that_all_nodes_start_anew() -> None:
    node, power, device = BY_NAME["node-killed"], BY_NAME["checkpoint-damaged"], BY_NAME["device-fails-again"]
    assert spares_for(FAULTS) == 1 and spares_for((BY_NAME["exception"],)) == 1
    assert spares_for((node, device)) == 2 and spares_for((node, power, device)) == 1


def test_a_rank_is_killed(cast: Cast) -> None:
    done = cast.inject("rank-killed")
    assert done.rank == 3 and cast.ranks[3].wait(DEADLINE_S) == -signal.SIGKILL and len(cast.alive()) == 6


def test_a_rank_is_stopped(cast: Cast) -> None:
    done = cast.inject("rank-stopped")
    pid = cast.ranks[2].pid
    cast.stage.wait_for(lambda: (seen := procfs.stat(pid)) is not None and seen.state == "T", "the stop")
    assert done.rank == 2 and len(cast.alive()) == 7


def test_a_node_is_killed_with_its_launcher(cast: Cast) -> None:
    done = cast.inject("node-killed")
    assert done.node == "n0"
    for victim in (cast.ranks[0], cast.ranks[1], cast.launchers["n0"]):
        assert victim.wait(DEADLINE_S) == -signal.SIGKILL
    assert len(cast.alive()) == 4


def test_the_server_is_killed_only_once_the_recovery_has_begun(cast: Cast, plan: DemoPlan) -> None:
    with sleepers(1, "--state-dir", str(plan.state.path)) as (server,):
        plan.state.lock_file.write_text(f"{server.pid}\n")

        def report_the_death() -> None:
            if cast.ranks[1].poll() is not None and not cast.watch.faults():
                assert server.poll() is None, "the server was killed before its recovery began"
                lose_rank(cast.recorder)

        cast.stage.meanwhile = report_the_death
        done = cast.inject("server-killed")
        assert done.server_restart and "isolating" in done.text
        assert server.wait(DEADLINE_S) == -signal.SIGKILL and cast.ranks[1].poll() == -signal.SIGKILL


def test_a_device_is_broken_for_good(cast: Cast, plan: DemoPlan) -> None:
    done = cast.inject("device-fails-again")
    fault = virtual_device.read_fault(str(plan.state.path), "n1", 0)
    assert done.resource == "device/n1/0" and fault is not None and fault.fails_ranks and fault.fails_gate


def test_one_bit_of_the_newest_checkpoint_is_flipped_while_nothing_runs(cast: Cast, plan: DemoPlan) -> None:
    repository = Repository(PosixStore(plan.checkpoints), JOB)
    for step in (10, 20):
        save = Save(job=JOB, generation=1, step=step, attempt="a0", world_size=1)
        blob = pack(flatten({"weights": np.arange(1000.0) + step}))
        repository.write_part(save, 0, {"model": Group(blob, digest_chunks(blob))})
        assert repository.try_commit(save) is not None
    done = cast.inject("checkpoint-damaged")
    newest, older = repository.commits()
    assert done.rejected == newest.key and cast.stage.power == ["off", "on"]
    with pytest.raises(StateInvalid):
        repository.verify(newest.key)
    assert repository.verify(older.key).step == 10


def test_flip_bit_changes_one_bit(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(16)))
    flip_bit(path, 9)
    changed = [a ^ b for a, b in zip(path.read_bytes(), range(16), strict=True)]
    assert sum(bin(x).count("1") for x in changed) == 1 and changed[9]


JOB_SCRIPT = Path(virtual_device.__file__).parent.parent / "demo" / "job.py"
SCRIPT = """
import sys, torch, keepstep
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
run = keepstep.session(model=model, optimizer=optimizer, checkpoint_dir=sys.argv[1], checkpoint_every_steps=1)
for step in run.steps(8):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    print("done", step + 1, flush=True)
"""


@pytest.mark.parametrize(
    ("kind", "code", "completed"), [("exception", 1, []), ("checkpoint", -signal.SIGKILL, ["done 1", "done 2"])]
)
def test_an_order_strikes_inside_the_rank_once(
    tmp_path: Path, warm_torch: Warm, kind: str, code: int, completed: list[str]
) -> None:
    script, order = tmp_path / "train.py", tmp_path / "fault.json"
    script.write_text(SCRIPT)
    FaultOrder(kind=kind, rank=0, every_steps=2 if kind == "checkpoint" else 1).write(order)  # type: ignore[arg-type]
    command = [str(JOB_SCRIPT), str(script), str(tmp_path / "checkpoints")]
    surroundings = {**os.environ, "KEEPSTEP_DEMO_FAULT": str(order)}

    def run() -> tuple[int, list[str], str]:
        with warm_torch.started([command], tmp_path, [surroundings]) as ((pid,), output):
            return warm_torch.wait(pid), output.read_text().splitlines(), output.with_suffix(".err").read_text()

    ended, said, errors = run()
    assert (ended, said) == (code, completed), errors
    assert not order.exists()
    ended, said, errors = run()
    assert (ended, said[-1]) == (0, "done 8"), errors
