"""The table of faults: what is done to the job, and what its incident must say afterwards. Owns both; judges in proof.py."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.stores.posix import PosixStore
from keepstep.core.ids import device_resource
from keepstep.demo.order import FaultOrder, break_device
from keepstep.demo.plan import CHECKPOINT_EVERY_STEPS, DemoPlan
from keepstep.demo.processes import Process, kill_at_once, server_process
from keepstep.demo.watch import Watch

QUICK_S = 0.002
"""How often a fault looks that must hit the middle of something."""


class Stage(Protocol):
    """What a fault may use. ``wait_for`` raises where the job ends or nothing happens for too long."""

    plan: DemoPlan
    watch: Watch

    def wait_for(self, condition: Callable[[], bool], what: str, *, every_s: float = ...) -> None: ...

    def cut_power(self) -> None:
        """SIGKILL to everything of the job, server and front included; returns when it is dead."""
        ...

    def restore_power(self) -> None:
        """The same command again."""
        ...


@dataclass(frozen=True, kw_only=True)
class Done:
    """What was done, and what must therefore be found in the incident."""

    text: str
    rank: int | None = None
    """Named as the culprit."""
    node: str | None = None
    """Named as lost, and not used again."""
    resource: str | None = None
    """Held, and not used again."""
    rejected: str | None = None
    """Key of a checkpoint that must have been passed over for an older one."""
    server_restart: bool = False
    """A new server must have taken over between the opening of the incident and its end."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    name: str
    title: str
    shows: str
    """What a viewer learns from it."""
    causes: tuple[str, ...]
    """Diagnoses that are right; the first is the expected one."""
    inject: Callable[[Stage], Done]
    takes_node: bool = False
    """A spare is used up."""
    renews: bool = False
    """Every node starts anew, spares included."""


def _rank(stage: Stage, rank: int) -> tuple[Process, str]:
    """The process of a rank, and words for it."""
    stage.wait_for(lambda: stage.watch.rank_process(rank) is not None, f"the pid of rank {rank}")
    found = stage.watch.rank_process(rank)
    assert found is not None
    node = stage.watch.place_of(rank)[0].removeprefix(f"{stage.plan.job}-")
    return found, f"rank {rank} on {node} (pid {found.pid})"


def _kill_rank(stage: Stage) -> Done:
    victim, name = _rank(stage, 3)
    victim.signal(signal.SIGKILL)
    return Done(text=f"SIGKILL to {name}", rank=3)


def _raise_in_rank(stage: Stage) -> Done:
    FaultOrder(kind="exception", rank=1).write(stage.plan.order)
    stage.wait_for(lambda: not stage.plan.order.exists(), "rank 1 to raise")
    return Done(text="RuntimeError raised in the training step of rank 1", rank=1)


def _stop_rank(stage: Stage) -> Done:
    victim, name = _rank(stage, 2)
    victim.signal(signal.SIGSTOP)
    return Done(text=f"SIGSTOP to {name}: it lives, and does nothing", rank=2)


def _kill_in_checkpoint(stage: Stage) -> Done:
    FaultOrder(kind="checkpoint", rank=0, every_steps=CHECKPOINT_EVERY_STEPS).write(stage.plan.order)
    stage.wait_for(lambda: not stage.plan.order.exists(), "the next checkpoint")
    return Done(text="SIGKILL to rank 0 while it handed its state over for a checkpoint", rank=0)


def _kill_node(stage: Stage) -> Done:
    node = stage.watch.place_of(0)[0]
    pids = stage.watch.pids()
    ranks = [_rank(stage, rank)[0] for rank in sorted(pids) if stage.watch.place_of(rank)[0] == node]
    launcher = [found for name, found in stage.watch.launcher_processes() if name == node]
    kill_at_once(launcher + ranks)
    return Done(text=f"SIGKILL to the launcher of {node} and its {len(ranks)} ranks, rank 0 among them", node=node)


def _kill_server(stage: Stage) -> Done:
    before = len(stage.watch.faults())
    victim, name = _rank(stage, 1)
    victim.signal(signal.SIGKILL)

    def recovering() -> bool:
        faults = stage.watch.faults()
        return len(faults) > before and stage.watch.mid_recovery(faults[-1])

    stage.wait_for(recovering, "the recovery to begin", every_s=QUICK_S)
    state = stage.watch.faults()[-1].state.value
    server = server_process(stage.plan.state)
    if server is None or not server.signal(signal.SIGKILL):
        raise RuntimeError(f"no server was there to be killed in {stage.plan.state.path}")
    return Done(
        text=f"SIGKILL to {name}, then to the server (pid {server.pid}) while the incident was {state}",
        rank=1,
        server_restart=True,
    )


def _damage_checkpoint(stage: Stage) -> Done:
    store = PosixStore(stage.plan.checkpoints)
    repository = Repository(store, stage.plan.job)
    stage.wait_for(lambda: len(repository.commits()) >= 2, "two checkpoints on disk")
    stage.cut_power()
    newest = repository.commits()[0]
    manifest = repository.manifest(newest.key)
    largest = max(manifest.sizes_bytes, key=lambda digest: manifest.sizes_bytes[digest])
    chunk = repository.reader(manifest).chunks(largest)[0]
    pack = next(entry for entry in manifest.packs if entry.id == chunk.pack)
    flip_bit(store.path / pack.key, chunk.offset + chunk.stored_bytes // 2)
    stage.restore_power()
    return Done(
        text=f"everything killed at once, then one bit of the newest checkpoint (step {newest.step}) flipped",
        rejected=newest.key,
    )


def flip_bit(path: Path, at_byte: int) -> None:
    with path.open("r+b") as file:
        file.seek(at_byte)
        (value,) = file.read(1)
        file.seek(at_byte)
        file.write(bytes([value ^ 0b100]))


def _break_device(stage: Stage) -> Done:
    node, place = stage.watch.place_of(2)
    break_device(stage.plan.state.path, node, place.slot)
    return Done(
        text=f"the virtual device in slot {place.slot} of {node} fails, and will fail whatever runs on it",
        resource=device_resource(node, place.slot),
    )


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="rank-killed",
        title="a rank is killed",
        shows="its peers are stopped at once, the last finished step comes back from memory",
        causes=("host_software",),
        inject=_kill_rank,
    ),
    Fault(
        name="exception",
        title="a rank raises an exception",
        shows="the traceback is evidence: the program is named, no hardware is blamed",
        causes=("application",),
        inject=_raise_in_rank,
    ),
    Fault(
        name="rank-stopped",
        title="a rank stands still",
        shows="no error, no exit: it is found by looking from outside, and named",
        causes=("host_software",),
        inject=_stop_rank,
    ),
    Fault(
        name="killed-in-checkpoint",
        title="a rank is killed inside a checkpoint",
        shows="half a checkpoint is no checkpoint: the step before it is used",
        causes=("host_software",),
        inject=_kill_in_checkpoint,
    ),
    Fault(
        name="node-killed",
        title="a whole node is lost, that of rank 0",
        shows="the spare takes its place, and no node is special",
        causes=("host_software",),
        inject=_kill_node,
        takes_node=True,
    ),
    Fault(
        name="server-killed",
        title="the server is killed in the middle of a recovery",
        shows="the next server reads the journal and finishes that recovery, once",
        causes=("host_software",),
        inject=_kill_server,
    ),
    Fault(
        name="checkpoint-damaged",
        title="power cut, and the newest checkpoint is damaged",
        shows="only the disk is left; the damage is found, and the checkpoint before it is used",
        causes=("host_software",),
        inject=_damage_checkpoint,
        renews=True,
    ),
    Fault(
        name="device-fails-again",
        title="a device fails again and again",
        shows="it is quarantined, fails its gate, and the job goes on elsewhere",
        causes=("device",),
        inject=_break_device,
        takes_node=True,
    ),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


def spares_for(faults: tuple[Fault, ...]) -> int:
    """Spare nodes that the faults use up between two times that every node starts anew; at least one stands by."""
    most = used = 0
    for fault in faults:
        used = 0 if fault.renews else used + fault.takes_node
        most = max(most, used)
    return max(1, most)
