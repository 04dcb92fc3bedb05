"""Drills in the simulated fleet: who asks for them, and what a launcher does that is told to inject one. Ground truth.

Owns the draws that concern drills, from a stream of their own; what they do to ranks and launchers is the physics of fleet.py.
When a drill may begin, and how it went, is decided by the engine and checked in drill_checkers.py.
"""

from random import Random

import msgspec

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.drill import KINDS, LABEL, DrillKind
from keepstep.core.intents import Inject
from keepstep.core.policy import Drills as Limits
from keepstep.core.policy import Policy
from keepstep.sim.drill_checkers import DrillCheckers
from keepstep.sim.faults import Faults
from keepstep.sim.fleet import FleetState
from keepstep.sim.launcher import SimLauncher
from keepstep.sim.scenario import Drills, draw
from keepstep.sim.server import SimServer
from keepstep.sim.training import Run, SimJob, SimRank

_LAST_WORDS_S = 0.2
"""Between the order to lose a node and its loss, as in launcher/drill.py."""
_COMPANY = ("rank_killed", "rank_exception", "launcher_killed", "link_broken", "server_crash", "control_partition")
"""What breaks for real beside a drill."""
_COMPANY_S = (-0.3, 3.0)
"""When, from the order; what should be before it is at once."""
_NO_SUCH_RANK = 0.05


class SimDrills:
    """``on`` only in seeds that have drills; whatever is ordered is carried out in any case."""

    def __init__(self, fleet: FleetState, faults: Faults, rng: Random, options: Drills) -> None:
        self._fleet, self._faults, self._rng, self._options = fleet, faults, rng, options
        self.on = rng.random() >= 1.0 - options.share
        self.checkers = DrillCheckers(fleet)

    def limits(self, policy: Policy) -> Policy:
        """With a schedule, short waits, and every kind in a drawn order."""
        if not self.on:
            return policy
        kinds = tuple(self._rng.sample(list(KINDS), len(KINDS)))
        plan = Limits(
            every_s=draw(self._rng, self._options.every_s),
            kinds=kinds,
            quiet_s=20.0,
            wait_s=60.0,
            checkpoint_age_s=300.0,
        )
        return msgspec.structs.replace(policy, drills=plan)

    def allow(self, job: SimJob) -> None:
        """Most owners let the schedule hit their job."""
        if self.on and self._rng.random() < 0.8:
            job.spec = msgspec.structs.replace(job.spec, labels={LABEL: "allow"})

    def watch(self, server: SimServer) -> None:
        if self.on:
            server.on_fact.append(self.checkers.folded)
            server.on_decision += [self.checkers.decided, self._accompany]

    # ---- people

    def ask(self, until_s: float) -> None:
        """People want to see drills until then."""
        if self.on:
            self._next_question(draw(self._rng, self._options.asked_every_s), until_s)

    def _next_question(self, every_s: float, until_s: float) -> None:
        def ask() -> None:
            if self._fleet.now_s < until_s:
                self._ask()
                self._next_question(every_s, until_s)

        self._fleet.timeline.after(self._rng.expovariate(1.0 / every_s), ask)

    def _ask(self) -> None:
        server, rng = self._fleet.network.server, self._rng
        job = rng.choice(list(self._fleet.jobs.values()))
        kind: DrillKind = rng.choice(list(KINDS))
        rank = rng.randrange(job.spec.nproc_per_node * job.spec.elasticity.max_nodes) if rng.random() < 0.6 else None
        if rng.random() < _NO_SUCH_RANK:
            rank = 10_000
        for _ in range(rng.choice((1, 1, 1, 2))):
            server.observe(f.DrillRequested(job=job.id, kind=kind, by="alice", rank=rank))

    # ---- what breaks beside them

    def _accompany(self, decision: d.Decision) -> None:
        if not any(isinstance(intent, Inject) for intent in decision.intents):
            return
        if self._fleet.network.calm or self._rng.random() >= self._options.company_share:
            return
        name = self._rng.choice(_COMPANY)
        delay_s = max(0.0, draw(self._rng, _COMPANY_S))
        self._fleet.timeline.after(delay_s, lambda: None if self._fleet.network.calm else self._also(name))

    def _also(self, name: str) -> None:
        if self._faults.inject(name):
            self._fleet.probes.hit("real fault beside a drill")

    # ---- the launcher's part

    def carry_out(self, launcher: SimLauncher, order: Inject) -> f.Outcome:
        """What the launcher answers; the fault is done, or about to be, where it says Done."""
        if self._rng.random() < self._options.refused_share:
            self._fleet.probes.hit("drill refused by the launcher")
            return f.Failed(reason="operation not permitted")
        run = launcher.job.runs[order.generation]
        if order.rank is None:
            self._fleet.timeline.after(_LAST_WORDS_S, lambda: self._lose(launcher, order, run))
            return f.Done()
        rank = next((x for x in self._fleet.alive_here(launcher) if x.rank == order.rank), None)
        if rank is None:
            return f.Failed(reason=f"rank {order.rank} does not run here")
        self.checkers.hit(order, run, [rank])
        self._fleet.probes.hit(f"drill {order.kind}")
        if order.kind == "kill-rank":
            self._kill(rank, order)
        else:
            self._stop(run, rank, order)
        return f.Done()

    def _kill(self, rank: SimRank, order: Inject) -> None:
        rank.drill = order.drill
        self._fleet.rank_ended(rank, signal=9)

    def _stop(self, run: Run, rank: SimRank, order: Inject) -> None:
        rank.drill, rank.stopped, run.faulty = order.drill, True, True
        self._fleet.block(run, f"stopped {rank.rank}")

    def _lose(self, launcher: SimLauncher, order: Inject, run: Run) -> None:
        """Everything of the job on the node at once, without a word. The kernel closes the connection, mostly."""
        ranks = self._fleet.alive_here(launcher) if launcher.alive else []
        self.checkers.hit(order, run, ranks)
        if not launcher.alive:
            return  # something real was quicker
        self._fleet.probes.hit("drill lose-node")
        for rank in ranks:
            rank.drill = order.drill
            run.faulty = True
        self._fleet.launcher_killed(launcher, noticed=self._rng.random() < 0.8)
        if self._rng.random() < self._options.back_share:
            after_s = self._rng.uniform(0.5, 60.0)
            self._fleet.join(launcher.job, launcher.machine, spare=launcher.spare, after_s=after_s)
