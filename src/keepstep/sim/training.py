"""Training jobs as they really are: live ranks, steps, snapshots, checkpoints. Ground truth; nothing here decides.

Steps are computed, not simulated: a generation steps evenly while every rank is ready and nothing blocks it. That is what
makes a day of ten thousand nodes affordable.
"""

from dataclasses import dataclass, field
from random import Random

from keepstep.core.facts import JobSpec
from keepstep.core.ids import DrillId, JobId, NodeId, Session
from keepstep.core.intents import Restore
from keepstep.sim.machine import Snapshot


@dataclass(slots=True)
class SimRank:
    job: JobId
    rank: int
    node: NodeId
    slot: int
    generation: int
    session: Session
    alive: bool = True
    ready: bool = False
    """Restored, and in the training loop."""
    stopped: bool = False
    hung: bool = False
    drill: DrillId | None = None
    """The drill that hit it."""


@dataclass(slots=True)
class Checkpoint:
    """A committed checkpoint in the job's directory."""

    step: int
    generation: int
    world_size: int
    key: str
    damage: str = ""
    """What is wrong with it; empty while it is sound."""


@dataclass(slots=True)
class Run:
    """One generation. ``blocks`` names everything that keeps it from stepping."""

    job: JobId
    generation: int
    world_size: int
    restore: Restore | None
    step_time_s: float
    base: int
    since_s: float
    nodes: list[NodeId] = field(default_factory=list)
    """In group-rank order, as far as launched."""
    ranks: dict[int, SimRank] = field(default_factory=dict)
    blocks: dict[str, None] = field(default_factory=lambda: {"starting": None})
    epoch: int = 0
    """Grows with every change, so that what was scheduled for an older course of events is dropped."""
    still_since_s: float = 0.0
    store: str = ""
    phase: str = "start"
    by_node: dict[NodeId, list[SimRank]] = field(default_factory=dict)
    restore_tried_s: float = -1e9
    cannot_restore: str = ""
    memory_from: dict[NodeId, int] = field(default_factory=dict)
    """Node -> its snapshots exist only from this step on."""
    lag: dict[NodeId, int] = field(default_factory=dict)
    """Node -> by how many snapshots its mirror is behind."""
    faulty: bool = False
    """Something really happened to it: a restart is justified."""
    poisoned: bool = False
    """It goes on from a state that is intact and wrong, and so is whatever it saves."""
    finished: dict[int, None] = field(default_factory=dict)

    @property
    def stepping(self) -> bool:
        return not self.blocks

    def step(self, now_s: float) -> int:
        """Steps that all ranks have completed."""
        if self.blocks:
            return self.base
        return self.base + int((now_s - self.since_s) / self.step_time_s + 1e-9)

    def block(self, why: str, now_s: float) -> None:
        if not self.blocks:
            self.base, self.still_since_s = self.step(now_s), now_s
        self.blocks[why] = None
        self.epoch += 1

    def unblock(self, why: str, now_s: float) -> None:
        self.blocks.pop(why, None)
        self.epoch += 1
        if not self.blocks:
            self.since_s, self.phase = now_s, "step"

    def still_s(self, now_s: float) -> float:
        """How long nothing has moved."""
        return now_s - self.still_since_s if self.blocks else 0.0

    def alive_on(self, node: NodeId, session: Session | None = None) -> list[SimRank]:
        return [r for r in self.by_node.get(node, ()) if r.alive and (session is None or r.session == session)]


@dataclass(slots=True)
class SimJob:
    """A job and everything that ever ran of it."""

    id: JobId
    spec: JobSpec
    step_time_s: float
    snapshot_every: int
    commit_every: int
    target_step: int
    sharded: bool
    """Every rank holds state of its own; else all hold the same and only the random numbers differ."""
    runs: dict[int, Run] = field(default_factory=dict)
    live: dict[NodeId, list[SimRank]] = field(default_factory=dict)
    """Every rank that is alive, of whatever generation, by node."""
    disk: dict[str, Checkpoint] = field(default_factory=dict)
    bug_step: int | None = None
    disk_full: bool = False
    bad_loss_key: str = ""
    """The state that trains on with an absurd loss, although its digests are right."""
    stopped_by_person: bool = False
    ended: bool = False

    def run(self) -> Run | None:
        """The newest generation that was launched."""
        return self.runs[max(self.runs)] if self.runs else None

    def alive(self) -> list[SimRank]:
        return [rank for ranks in self.live.values() for rank in ranks]

    def loss(self, run: Run, step: int) -> float:
        if run.poisoned:
            return 1e6
        return 2.0 + 8.0 / (1.0 + step / 200.0)

    def snapshots_on(self, run: Run, node: NodeId, now_s: float) -> list[Snapshot]:
        """What the memory of a node of this generation holds now: its own ranks, and those mirrored to it."""
        if node not in run.by_node:
            return []
        newest = run.step(now_s) // self.snapshot_every * self.snapshot_every
        first = max(run.memory_from.get(node, 0), run.restore.step if run.restore else 0)
        steps = [s for s in (newest - self.snapshot_every, newest) if s > first]
        return [self._snapshot(run, node, step, newest) for step in steps]

    def _snapshot(self, run: Run, node: NodeId, step: int, newest: int) -> Snapshot:
        index = run.nodes.index(node)
        neighbour = run.nodes[index - 1]
        mirrored = step <= newest - run.lag.get(node, 0) * self.snapshot_every
        sources = [node, neighbour] if mirrored else [node]
        ranks = sorted({r.rank: None for source in sources for r in run.by_node.get(source, ())})
        tag = f"g{run.generation}s{step}"
        shared = () if self.sharded else (f"{tag}:m", f"{tag}:o")
        parts = {rank: (*shared, f"{tag}:r{rank}") for rank in ranks}
        held = (*shared, *(f"{tag}:r{rank}" for rank in ranks))
        return Snapshot(step, run.generation, run.world_size, parts, held)

    def commit(self, run: Run, step: int) -> Checkpoint:
        key = f"{self.id}/g{run.generation}/s{step}"
        checkpoint = Checkpoint(step, run.generation, run.world_size, key)
        self.disk[key] = checkpoint
        return checkpoint


def draw_lag(job: SimJob, run: Run, node: NodeId, rng: Random) -> None:
    """Mirrors are usually up to date, sometimes one snapshot behind."""
    run.lag[node] = 1 if rng.random() < 0.2 else 0
