"""A fleet with hardware that fails and noise, for days or a month: what was isolated, how soon, and what for nothing. Counts.

The same Simulation, without its phase of healing: jobs that end are submitted again, broken machines are replaced, and time
is up when it is up.
"""

import gc
import math
import time
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.ids import JobId, NodeId, node_resource
from keepstep.core.job import TERMINAL
from keepstep.core.preemptions import Act, Ledger, Precision, node_of_act
from keepstep.core.resource import ResourceState
from keepstep.review.estimates import nearest
from keepstep.sim.clock import stream
from keepstep.sim.fault_checkers import ACT_AFTER_S, FaultCheckers, counted
from keepstep.sim.hardware import SimHardware
from keepstep.sim.run import Simulation
from keepstep.sim.scenario import Scenario
from keepstep.sim.training import SimJob
from keepstep.sim.truth import Truth

NOTICED_S = 3600.0
"""A true fault that nobody took out of work for so long was missed."""
_OUT = (ResourceState.QUARANTINED, ResourceState.LOST)
_AGAIN_S = (60.0, 300.0)


class Kind(Struct, frozen=True, kw_only=True):
    """One kind of true fault, over the whole run."""

    kind: str
    shared: bool
    happened: int
    out_s: tuple[float, ...]
    """From the fault until its part could not be given work, sorted."""
    evident_s: float
    """From the fault until it could be told from what passes by itself."""
    missed: int
    unwatched: int
    """Where no agent runs: known by what becomes of the job, and counted nowhere else."""
    told: tuple[int, ...]
    """Faults of the engine for each one that happened; 1 is right."""


class FleetResult(Struct, frozen=True, kw_only=True):
    scenario: str
    seed: int
    nodes: int
    simulated_s: float
    wall_s: float
    entries: int
    signals: int
    restarts: int
    replaced: int
    jobs_ended: int
    kinds: tuple[Kind, ...]
    noise: dict[str, int]
    holds: int
    member_holds: int
    false_holds: tuple[tuple[float, str, str], ...]
    unexplained: tuple[tuple[str, str, int], ...]
    """(first signal, class, number) of faults of nodes with which nothing was wrong; most act on nothing."""
    preemptions: int
    unnecessary_by_truth: tuple[tuple[float, str, str], ...]
    """(when, rule, job) of work that was taken off a resource with which nothing was wrong."""
    unjustified: tuple[tuple[float, str], ...]
    precision: tuple[Precision, ...]

    def isolation_s(self, share: float) -> float:
        """Over every node-level fault that was taken out, from when it was evident."""
        spans = sorted(max(0.0, s - kind.evident_s) for kind in self.kinds if not kind.shared for s in kind.out_s)
        return nearest(spans, share) if spans else math.nan

    @property
    def unnecessary_share(self) -> float:
        return len(self.unnecessary_by_truth) / self.preemptions if self.preemptions else 0.0


class FleetRun:
    """Call ``run`` once."""

    def __init__(self, name: str, seed: int, scenario: Scenario | None = None) -> None:
        self.simulation = Simulation(name, seed, scenario)
        self.scenario = self.simulation.scenario
        if self.scenario.hardware is None:
            raise ValueError(f"scenario {name} has no hardware")
        fleet = self.simulation.fleet
        self.hardware = SimHardware(fleet, self.scenario.hardware, stream(seed, "hardware"))
        self.checkers = fleet.checkers = FaultCheckers(fleet, self.hardware)
        self.ledger = Ledger()
        self.server = self.simulation.server
        self.server.on_fact.append(self._fact)
        self.server.on_decision.append(self._decision)
        self._rng = stream(seed, "queue")
        self._runs = 0
        self._entries = 0
        self._ended: dict[JobId, None] = {}
        self.signals = 0

    def run(self) -> FleetResult:
        began_s = time.perf_counter()
        collecting = gc.isenabled()
        gc.disable()
        try:
            self.simulation.build()
            self.hardware.start()
            self.simulation.safety()
        finally:
            if collecting:
                gc.enable()
        return self._result(time.perf_counter() - began_s)

    # ---- watching

    def _fact(self, fact: f.Fact) -> None:
        world = self.server.world
        self.ledger.note(world.seq + 1, self.simulation.fleet.now_s, fact)
        match fact:
            case f.SignalSeen():
                self.signals += 1
            case f.NodeUnreachable(node=node):
                self.hardware.truths.taken_out(node_resource(node), self.simulation.fleet.now_s)
            case _:
                pass

    def _decision(self, decision: d.Decision) -> None:
        self.ledger.note(0, self.simulation.fleet.now_s, decision)
        for change in decision.changes:
            match change:
                case d.MoveResource(resource=resource, to=to) if to in _OUT:
                    self.hardware.truths.taken_out(resource, self.simulation.fleet.now_s)
                case d.MoveJob(job=job, to=to) if to in TERMINAL and job not in self._ended:
                    self._ended[job] = None
                    self._later(self._rng.uniform(*_AGAIN_S), job)
                case _:
                    pass

    def _later(self, delay_s: float, job: JobId) -> None:
        self.simulation.fleet.timeline.after(delay_s, lambda: self._again(job))

    def _again(self, name: JobId) -> None:
        """A job that ended is submitted again, on the machines that it had."""
        fleet = self.simulation.fleet
        old = fleet.jobs[name]
        if not old.ended:
            self._later(60.0, name)
            return
        self._runs += 1
        job = SimJob(
            id=JobId(f"{str(name).partition('.')[0]}.{self._runs}"),
            spec=old.spec,
            step_time_s=old.step_time_s,
            snapshot_every=old.snapshot_every,
            commit_every=old.commit_every,
            target_step=old.target_step,
            sharded=old.sharded,
        )
        fleet.jobs[job.id] = job
        here: dict[NodeId, None] = {machine.node: None for machine in self.hardware.here()}
        for (owner, node), launcher in list(fleet.launchers.items()):
            if owner == name and node in here:
                fleet.join(job, fleet.machines[node], spare=launcher.spare)

    # ---- counting

    def _result(self, wall_s: float) -> FleetResult:
        world, truths = self.server.world, self.hardware.truths
        kinds: dict[str, list[Truth]] = {}
        for truth in truths.all:
            kinds.setdefault(truth.kind, []).append(truth)
        moved = self.ledger.preemptions()
        return FleetResult(
            scenario=self.simulation.name,
            seed=self.simulation.seed,
            nodes=len(self.hardware.agents),
            simulated_s=self.simulation.fleet.now_s,
            wall_s=wall_s,
            entries=world.seq,
            signals=self.signals,
            restarts=self.checkers.restarts,
            replaced=self.hardware.replaced,
            jobs_ended=len(self._ended),
            kinds=tuple(self._kind(name, found) for name, found in sorted(kinds.items())),
            noise=dict(sorted(self.hardware.noise.items())),
            holds=self.checkers.holds,
            member_holds=self.checkers.member_holds,
            false_holds=tuple(self.checkers.false_holds),
            unexplained=tuple((key, of, n) for (key, of), n in counted(self.checkers.unexplained(world)).most_common()),
            preemptions=len(moved),
            unnecessary_by_truth=tuple((act.at_s, act.rule, str(act.job)) for act in moved if not self._real(act)),
            unjustified=tuple(self.checkers.unjustified),
            precision=self.ledger.precision(self.simulation.fleet.now_s),
        )

    def _real(self, act: Act) -> bool:
        """Whether something was wrong with what was left."""
        node = node_of_act(act)
        if node is not None:
            return bool(self.hardware.truths.explains(node, act.at_s, ACT_AFTER_S))
        return any(
            t.domain == act.part and t.covers(next(iter(t.nodes)), act.at_s, ACT_AFTER_S)
            for t in self.hardware.truths.all
        )

    def _kind(self, name: str, found: list[Truth]) -> Kind:
        world, now_s = self.server.world, self.simulation.fleet.now_s
        old = [truth for truth in found if now_s - truth.at_s > NOTICED_S]
        ripe = [truth for truth in old if truth.watched]
        shared = found[0].shared
        isolates = found[0].story.isolates and not shared
        told = [len(self.checkers.faults_of(truth, world)) for truth in ripe]
        missed = sum(truth.out_s is None for truth in ripe) if isolates else told.count(0)
        return Kind(
            kind=name,
            shared=shared,
            happened=len(found),
            evident_s=found[0].story.evident_s,
            out_s=tuple(sorted(t.out_s - t.at_s for t in found if t.out_s is not None and t.watched))
            if isolates
            else (),
            missed=missed,
            unwatched=len(old) - len(ripe),
            told=tuple(told),
        )


def spread(told: Sequence[int]) -> str:
    """How many faults of the engine each root cause had: ``1×30, 2×1``."""
    return ", ".join(f"{faults}×{number}" for faults, number in sorted(Counter(told).items()))
