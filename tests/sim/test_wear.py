"""The fleet that the health score is fitted on: the same for the same seed, and as hard as it says."""

import math
from itertools import pairwise

from keepstep.core.health.level import COUNTERS
from keepstep.core.health.window import DAY_S, KEPT, busy_share, grown, points
from keepstep.sim.wear import Device, Setting, WearFleet

SMALL = Setting(racks=2, nodes_per_rack=2, days=60)


def test_the_same_seed_gives_the_same_lives_and_counters() -> None:
    one, other = WearFleet(7, SMALL), WearFleet(7, SMALL)
    assert one.devices == other.devices
    now_s = 31.4 * DAY_S
    other.node_histories("r1n1", 12 * DAY_S)  # What was asked before does not matter.
    assert one.node_histories("r0n0", now_s) == other.node_histories("r0n0", now_s)
    assert WearFleet(8, SMALL).devices != one.devices


def test_histories_are_bounded_and_never_of_the_future() -> None:
    fleet, now_s = WearFleet(7, SMALL), 20.2 * DAY_S
    for past in fleet.node_histories("r0n1", now_s).values():
        for series in past.series.values():
            assert len(series) <= KEPT
            assert all(now_s - 1.1 * DAY_S < at_s <= now_s for at_s, _ in series)
        assert all(at_s <= now_s for at_s in past.failed_at_s)


def test_a_node_fails_again_within_a_week_5_to_12_times_as_often_as_nodes_fail() -> None:
    days = 365
    fleet = WearFleet(3, Setting(racks=48, days=days))
    failures = [sorted(at_s for d in parts for at_s in d.failures) for parts in fleet.nodes.values()]
    total = sum(map(len, failures))
    again = sum(b - a <= 7.25 * DAY_S for each in failures for a, b in pairwise(each))
    chance = -math.expm1(-total / len(fleet.nodes) / days * 7)
    assert 5 < again / total / chance < 12
    assert 0.002 < total / len(fleet.nodes) / days < 0.0065


def test_about_half_of_the_failures_come_without_a_sign() -> None:
    fleet = WearFleet(5, Setting(racks=48, days=365))
    ends = [life for device in fleet.devices for life in device.lives if life.failed]
    silent = sum(life.mode == "silent" for life in ends) / len(ends)
    assert 0.4 < silent < 0.7


def test_wear_shows_before_the_failure_and_not_earlier() -> None:
    fleet = WearFleet(5, Setting(racks=48, days=365))
    errors = COUNTERS["ecc_corrected"]

    def busy(device: Device, at_s: float) -> float:
        return busy_share(grown(errors, points(fleet.history(device, at_s), "ecc_corrected", at_s)), at_s)

    worn = [
        (device, life)
        for device in fleet.devices
        for life in device.lives
        if life.failed and life.mode == "memory" and life.end_s - life.worn_from_s > 3 * DAY_S
        if life.worn_from_s - life.start_s > 2 * DAY_S and life.worn_from_s > 2 * DAY_S and not device.chronic
    ]
    assert len(worn) > 10
    at_end = [busy(device, life.end_s) for device, life in worn[:20]]
    before = [busy(device, life.worn_from_s) for device, life in worn[:20]]
    assert sum(at_end) / len(at_end) > 0.5
    assert sum(before) / len(before) < 0.1
