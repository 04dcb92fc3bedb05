"""Scenario files are data: valid, of known faults and policy fields, and refused with a reason where they are not."""

import msgspec
import pytest

from keepstep.sim.faults import FAULTS
from keepstep.sim.run import Simulation, run
from keepstep.sim.scenario import Scenario, load, names, policy_of


@pytest.mark.parametrize("name", names())
def test_scenario_is_valid(name: str) -> None:
    scenario = load(name)
    assert scenario.about
    assert scenario.faults and all(fault in FAULTS for fault in scenario.faults)
    policy_of(scenario)


def test_every_fault_is_in_some_scenario() -> None:
    used = {fault for name in names() for fault in load(name).faults}
    assert used == set(FAULTS)


def test_an_unknown_scenario_is_named() -> None:
    with pytest.raises(ValueError, match=r"no scenario 'nothing'.*mixed"):
        load("nothing")


def test_an_unknown_fault_is_named() -> None:
    with pytest.raises(ValueError, match="no fault 'earthquake'"):
        Simulation("odd", 0, Scenario(about="odd", faults={"earthquake": 1.0}))


@pytest.mark.parametrize("policy", [{"weather": {"x": 1.0}}, {"hang": {"weather": 1.0}}])
def test_an_unknown_policy_field_is_named(policy: dict[str, dict[str, float]]) -> None:
    with pytest.raises(ValueError, match="weather"):
        policy_of(Scenario(about="odd", policy=policy))


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.toml.decode(b'about = "x"\nsafety = 3', type=Scenario)


def test_a_thousand_nodes_for_an_hour() -> None:
    hour = msgspec.structs.replace(load("hours-1k"), safety_s=(3600.0, 3600.0))
    result = Simulation("hours-1k", 0, hour).run()
    assert result.failure is None, result.failure
    assert result.simulated_s > 3600
    assert result.verdicts["recovered"] >= 3


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_thousand_nodes_for_six_hours() -> None:
    result = run("hours-1k", 0)
    assert result.failure is None, result.failure
    assert result.simulated_s > 6 * 3600
    assert result.verdicts["recovered"] >= 10
