"""What a fault may hit: the living part of the fleet, chosen from the seed. Owns the choosing; hits nothing itself."""

from collections.abc import Callable
from random import Random

from keepstep.core.world import World
from keepstep.sim.fleet import FleetState
from keepstep.sim.launcher import SimLauncher
from keepstep.sim.machine import Machine
from keepstep.sim.training import Run, SimJob, SimRank


class Targets:
    def __init__(self, fleet: FleetState, rng: Random) -> None:
        self._fleet = fleet
        self._rng = rng
        self.injected: list[tuple[float, str]] = []
        """(when, name) of every fault so far."""

    @property
    def _world(self) -> World:
        return self._fleet.network.server.world

    def _job(self) -> SimJob | None:
        live = [job for job in self._fleet.jobs.values() if not job.ended]
        return self._rng.choice(live) if live else None

    def _rank(self) -> tuple[SimJob, Run, SimRank] | None:
        """A live rank of the newest generation of a job."""
        job = self._job()
        run = job.run() if job is not None else None
        ranks = [r for r in run.ranks.values() if r.alive] if run is not None else []
        if job is None or run is None or not ranks:
            return None
        return job, run, self._rng.choice(ranks)

    def _launcher(self) -> SimLauncher | None:
        alive = [x for x in self._fleet.launchers.values() if x.alive and not x.job.ended]
        return self._rng.choice(alive) if alive else None

    def _machine(self) -> Machine:
        return self._rng.choice(list(self._fleet.machines.values()))

    def _return_s(self) -> float:
        return self._rng.uniform(*self._fleet.options.return_s)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._fleet.timeline.after(delay_s, action)
