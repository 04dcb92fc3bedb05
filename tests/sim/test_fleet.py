"""A fleet with hardware that fails and noise, for a day: one fault per root cause, soon, and nothing taken for nothing."""

import msgspec
import pytest

from keepstep.core.catalog import CATALOG
from keepstep.sim.fleet_run import FleetResult, FleetRun
from keepstep.sim.scenario import load
from keepstep.sim.signals import FAULTS, NOISE


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


def test_a_seed_gives_the_same_day_twice_and_its_journal_the_same_world() -> None:
    short = msgspec.structs.replace(load("fleet-day"), safety_s=(10_000.0, 10_000.0))
    runs = [FleetRun("fleet-day", 5, short) for _ in range(2)]
    results = [msgspec.structs.replace(run.run(), wall_s=0.0) for run in runs]
    assert results[0] == results[1]
    assert sum(kind.happened for kind in results[0].kinds) > 2, "an empty day would be equal for nothing"
    assert runs[0].server.journal.digest == runs[1].server.journal.digest
    runs[1].server.replayed()


@pytest.mark.timeout(300)
def test_a_day_of_a_fleet() -> None:
    result = FleetRun("fleet-day", 14).run()
    _is_right(result)
    assert sum(kind.happened for kind in result.kinds) > 15
    assert result.preemptions > 5
    assert any(kind.shared for kind in result.kinds)


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0, 5, 29])
def test_more_days_of_a_fleet(seed: int) -> None:
    _is_right(FleetRun("fleet-day", seed).run())


def _is_right(result: FleetResult) -> None:
    _nothing_is_missed(result)
    _every_root_cause_is_one_fault(result)
    _nothing_well_is_taken_out(result)


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
