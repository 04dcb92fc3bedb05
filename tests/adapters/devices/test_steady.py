"""What of many sweeps is news."""

from keepstep.adapters.devices.steady import Duty, Steady
from keepstep.core.observation import Observation


def seen(signal: str, part: str = "gpu/0", **attributes: str) -> Observation:
    return Observation(signal=signal, part=part, attributes=attributes)


def test_what_stays_is_said_once_and_what_comes_back_is_said_again() -> None:
    steady, one = Steady(), seen("gpu.remap.pending")
    assert steady.sweep([one]) == [one]
    assert steady.sweep([one]) == []
    assert [steady.sweep([]) for _ in range(3)] == [[], [], []]
    assert steady.sweep([one]) == [one]


def test_a_flicker_is_not_said_again() -> None:
    steady, one = Steady(), seen("gpu.remap.pending")
    assert steady.sweep([one]) == [one]
    assert steady.sweep([]) == []
    assert steady.sweep([one]) == []


def test_a_short_slowdown_is_no_news() -> None:
    steady, one = Steady(), seen("gpu.throttle.hw_thermal")
    assert [steady.sweep([one]), steady.sweep([one]), steady.sweep([])] == [[], [], []]
    assert [steady.sweep([one]), steady.sweep([one]), steady.sweep([one])] == [[], [], [one]]


def test_a_higher_count_of_errors_is_news() -> None:
    steady = Steady()
    one, two = seen("gpu.ecc.dbe", value="1"), seen("gpu.ecc.dbe", value="2")
    assert steady.sweep([one]) == [one]
    assert steady.sweep([two]) == [two]


def test_ordinary_states_are_no_news() -> None:
    assert Steady().sweep([seen("gpu.throttle.sw_power"), seen("gpu.xid.last")]) == []


def test_heat_is_sustained_after_most_of_its_window() -> None:
    duty = Duty()
    told = [duty.sample("gpu/0", "throttle.hw_thermal", step % 4 != 0, step * 10.0) for step in range(61)]
    assert not any(told[:30])
    assert told[31]
    cool = [duty.sample("gpu/1", "throttle.hw_thermal", step % 3 == 0, step * 10.0) for step in range(61)]
    assert not any(cool)


def test_a_brake_is_sustained_after_three_minutes_in_a_row() -> None:
    duty = Duty()
    told = [duty.sample("gpu/0", "throttle.power_brake", step > 2, step * 10.0) for step in range(30)]
    assert told.index(True) == 20
