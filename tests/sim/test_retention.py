"""Little is kept for long: the same safety, the World that the journal gives, and no growth over the days."""

import msgspec
import pytest

from keepstep.core.decision import Retire
from keepstep.sim.fleet_run import FleetRun
from keepstep.sim.run import Simulation
from keepstep.sim.scenario import Scenario, load


def short(name: str, kept_s: float, **changed: object) -> Scenario:
    scenario = load(name)
    retention = {"incidents_s": kept_s, "faults_s": 2 * kept_s, "jobs_s": kept_s}
    return msgspec.structs.replace(scenario, policy=scenario.policy | {"retention": retention}, **changed)


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name in ("mixed", "storm", "partition") for seed in range(2)]
)
def test_a_short_memory_breaks_no_invariant(name: str, seed: int) -> None:
    run = Simulation(name, seed, short(name, 30.0))
    left: list[str] = []
    run.server.on_decision.append(
        lambda x: left.extend(i for c in x.changes if isinstance(c, Retire) for i in c.incidents)
    )
    result = run.run()
    assert result.failure is None, result.failure
    assert left, "some were over for long enough"
    assert not set(left) & set(run.server.world.incidents)


def test_a_fleet_does_not_grow_with_its_days() -> None:
    run = FleetRun("fleet-day", 5, short("fleet-day", 1800.0, safety_s=(9 * 1800.0, 9 * 1800.0)))
    result = run.run()
    world = run.server.world
    run.server.replayed()
    assert world.next_incident > 5 * max(1, len(world.closed_incidents)), "a ninth of them"
    assert len(world.faults) - len(world.open_faults) < (world.next_fault - 1) / 4
    assert len(world.jobs) <= len(world.live_jobs) + len(world.ended_jobs)
    assert result.jobs_ended >= len(world.retired_jobs)
    assert len(world.orders) < 50
