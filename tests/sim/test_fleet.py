"""A fleet with hardware that fails and noise, for a day: one fault per root cause, soon, and nothing taken for nothing."""

from functools import cache

import msgspec
import pytest

from keepstep.core.catalog import CATALOG
from keepstep.sim.fleet_run import FleetResult, FleetRun
from keepstep.sim.scenario import load
from keepstep.sim.signals import FAULTS, NOISE

SEEDS = (0, 5, 14, 29)


@cache
def day(seed: int) -> FleetResult:
    return FleetRun("fleet-day", seed).run()


@pytest.mark.parametrize("name", ["fleet-day", "fleet-month"])
def test_every_story_has_a_rate_and_a_source(name: str) -> None:
    hardware = load(name).hardware
    assert hardware is not None
    assert set(hardware.faults) == set(FAULTS) and set(hardware.noise) == set(NOISE)
    assert all(rate.source and rate.per_node_year > 0 for rate in (*hardware.faults.values(), *hardware.noise.values()))


def test_every_story_prints_signals_of_the_catalogue() -> None:
    keys = {sign.key for story in (*FAULTS.values(), *NOISE.values()) for sign in story.signs}
    assert not keys - set(CATALOG.rows)


def test_an_unknown_story_is_refused() -> None:
    scenario = load("fleet-day")
    assert scenario.hardware is not None
    rate = next(iter(scenario.hardware.faults.values()))
    odd = msgspec.structs.replace(scenario.hardware, faults={"earthquake": rate})
    with pytest.raises(ValueError, match="earthquake"):
        FleetRun("odd", 0, msgspec.structs.replace(scenario, hardware=odd))


def test_a_scenario_without_hardware_is_refused() -> None:
    with pytest.raises(ValueError, match="no hardware"):
        FleetRun("single", 0)


def test_a_seed_gives_the_same_day_twice() -> None:
    short = msgspec.structs.replace(load("fleet-day"), safety_s=(20_000.0, 20_000.0))
    runs = [FleetRun("fleet-day", 7, short) for _ in range(2)]
    results = [msgspec.structs.replace(run.run(), wall_s=0.0) for run in runs]
    assert results[0] == results[1]
    assert runs[0].server.journal.digest == runs[1].server.journal.digest


def test_the_journal_of_a_day_gives_the_same_world() -> None:
    short = msgspec.structs.replace(load("fleet-day"), safety_s=(20_000.0, 20_000.0))
    run = FleetRun("fleet-day", 3, short)
    run.run()
    run.server.replayed()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_days_of_a_fleet() -> None:
    """One test, so that each seed is run once however the tests are spread over processes."""
    results = [day(seed) for seed in SEEDS]
    for result in results:
        _nothing_is_missed(result)
        _every_root_cause_is_one_fault(result)
        _nothing_well_is_taken_out(result)
    assert sum(kind.happened for result in results for kind in result.kinds) > 30
    assert sum(result.preemptions for result in results) > 10
    assert any(kind.shared for result in results for kind in result.kinds)


def _nothing_is_missed(result: FleetResult) -> None:
    assert {kind.kind: kind.missed for kind in result.kinds if kind.missed} == {}
    assert result.isolation_s(0.99) < 30.0


def _every_root_cause_is_one_fault(result: FleetResult) -> None:
    """Where nothing is printed (a node that panics) the job's incident is all there is; nowhere are there two."""
    assert {kind.kind: kind.told for kind in result.kinds if max(kind.told, default=0) > 1} == {}
    assert {kind.kind: kind.told for kind in result.kinds if kind.shared and min(kind.told, default=1) < 1} == {}


def _nothing_well_is_taken_out(result: FleetResult) -> None:
    assert result.false_holds == ()
    assert result.unnecessary_by_truth == ()
    assert result.unjustified == ()
