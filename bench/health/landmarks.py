"""Moments of a simulated fleet: what was known then, and when the part failed. Owns the sampling.

Moments before failures are drawn more often than others; each carries the hours of service that it stands for, so that weighted
figures are those of the whole fleet.
"""

from collections.abc import Iterator
from random import Random

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keepstep.core.health.cluster import INLET_RISE_C, NETWORK_COUNTERS, inlet
from keepstep.core.health.features import FEATURES, Strengths, siblings_of, strengths
from keepstep.core.health.window import DAY_S, HOUR_S
from keepstep.sim.wear import Device, Life, Setting, WearFleet

KINDS = ("gpu", "nic", "node")
AHEAD_S = DAY_S
STRATA = ((0.0, 1.0, 2), (1.0, 6.0, 2), (6.0, 24.0, 3))
"""(hours before the failure: from, until; moments drawn in it)"""
WORN, RETURNED, CHRONIC = 2, 2, 2
"""Moments drawn while wear shows, in RETURNED_S after a repair, and in a life with counters that mean nothing."""
RETURNED_S = 30 * DAY_S


class Rows(Struct, frozen=True):
    kind: NDArray[np.int64]
    found: list[Strengths]
    ahead_h: NDArray[np.float64]
    """Until its failure; infinite where it does not fail while watched."""
    weight: NDArray[np.float64]
    """Hours of service that it stands for."""

    def matrix(self) -> NDArray[np.float64]:
        made = np.zeros((len(self.found), len(FEATURES)))
        for row, each in enumerate(self.found):
            for name, value in each.items():
                made[row, FEATURES.index(name)] = value
        return made


def joined(every: list[Rows]) -> Rows:
    return Rows(
        np.concatenate([each.kind for each in every]),
        [found for each in every for found in each.found],
        np.concatenate([each.ahead_h for each in every]),
        np.concatenate([each.weight for each in every]),
    )


def rows(seed: int, setting: Setting, ordinary_nodes: int) -> Rows:
    """Rows of one fleet: at every time that is rare and matters, and ``ordinary_nodes`` whole nodes at any other."""
    fleet, rng = WearFleet(seed, setting), Random(f"landmarks/{seed}")
    last_s = fleet.end_s - AHEAD_S
    made: list[tuple[int, Strengths, float, float]] = []
    for device in fleet.devices:
        for life in device.lives:
            for at_s, hours in _drawn(device, life, last_s, rng):
                made.append((KINDS.index(device.kind), _found(fleet, device, at_s), _ahead(life, at_s), hours))
    made.extend(_ordinary(fleet, last_s, ordinary_nodes, rng))
    return Rows(
        np.array([each[0] for each in made]),
        [each[1] for each in made],
        np.array([each[2] for each in made]),
        np.array([each[3] for each in made]),
    )


def _drawn(device: Device, life: Life, last_s: float, rng: Random) -> Iterator[tuple[float, float]]:
    """(moment, hours that it stands for) in the spans that are drawn from more often."""
    for from_s, until_s, count in _marked(device, life, last_s):
        hours = (until_s - from_s) / HOUR_S
        for _ in range(count):
            yield rng.uniform(from_s, until_s), hours / count


def _marked(device: Device, life: Life, last_s: float) -> Iterator[tuple[float, float, int]]:
    """(from, until, moments) of the spans of a life that are drawn from more often; they do not overlap."""
    near_s = life.end_s - (AHEAD_S if life.failed else 0.0)
    worn_s = min(life.worn_from_s, near_s)
    quiet_s = min(worn_s, life.start_s + RETURNED_S) if life is not device.lives[0] else life.start_s
    spans = [
        (life.end_s - far * HOUR_S, life.end_s - near * HOUR_S, count) for near, far, count in STRATA if life.failed
    ]
    spans += [(worn_s, near_s, WORN), (life.start_s, quiet_s, RETURNED)]
    if device.chronic:
        spans.append((quiet_s, worn_s, CHRONIC))
    for from_s, until_s, count in spans:
        from_s, until_s = max(0.0, life.start_s, from_s), min(last_s, until_s)
        if until_s > from_s:
            yield from_s, until_s, count


def _ordinary(
    fleet: WearFleet, last_s: float, count: int, rng: Random
) -> Iterator[tuple[int, Strengths, float, float]]:
    """Whole nodes at random moments; each part that is in none of the stretches above stands for its kind."""
    seen: list[tuple[int, Strengths, float]] = []
    names = list(fleet.nodes)
    for _ in range(count):
        node, at_s = rng.choice(names), rng.uniform(0, last_s)
        histories = fleet.node_histories(node, at_s)
        for device in fleet.nodes[node]:
            life = fleet.in_service(device, at_s)
            if life is not None and not any(a <= at_s < b for a, b, _ in _marked(device, life, last_s)):
                siblings, alone = siblings_of(device.part, histories, at_s)
                found = _excused(fleet, device, at_s, strengths(histories[device.part], at_s, siblings, alone))
                seen.append((KINDS.index(device.kind), found, _ahead(life, at_s)))
    hours = _ordinary_hours(fleet, last_s)
    for kind in range(len(KINDS)):
        own = [each for each in seen if each[0] == kind]
        for number, found, ahead_h in own:
            yield number, found, ahead_h, hours[kind] / len(own)


def _ordinary_hours(fleet: WearFleet, last_s: float) -> list[float]:
    hours = [0.0] * len(KINDS)
    for device in fleet.devices:
        for life in device.lives:
            whole_s = max(0.0, min(last_s, life.end_s) - max(0.0, life.start_s))
            hours[KINDS.index(device.kind)] += (
                whole_s - sum(b - a for a, b, _ in _marked(device, life, last_s))
            ) / HOUR_S
    return hours


def _found(fleet: WearFleet, device: Device, at_s: float) -> Strengths:
    """Strengths of one device beside its siblings; those of other kinds say nothing about it."""
    kin = [each for each in fleet.nodes[device.node] if each.kind == device.kind]
    histories = {each.part: fleet.history(each, at_s, "" if each is device else "temperature_c") for each in kin}
    siblings, alone = siblings_of(device.part, histories, at_s)
    return _excused(fleet, device, at_s, strengths(histories[device.part], at_s, siblings, alone))


def _excused(fleet: WearFleet, device: Device, at_s: float, found: Strengths) -> Strengths:
    """Without the errors of a port in a rack whose inlet rose: those that ``clusters`` finds to be cooling. Asking the inlet
    alone does for a simulated rack, since its ports err together whenever it is warm."""
    if device.kind != "nic" or not any(name.split(".")[0] in NETWORK_COUNTERS for name in found):
        return found
    (host,) = (each for each in fleet.nodes[device.node] if each.kind == "node")
    air = inlet(fleet.history(host, at_s, "inlet_c"), at_s)
    if air is None or air.peak_c - air.usual_c < INLET_RISE_C:
        return found
    return {name: value for name, value in found.items() if name.split(".")[0] not in NETWORK_COUNTERS}


def _ahead(life: Life, at_s: float) -> float:
    return (life.end_s - at_s) / HOUR_S if life.failed else float("inf")
