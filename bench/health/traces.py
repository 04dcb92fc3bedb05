"""Failures of real machines: LANL's nodes and Titan's cards. Owns how the traces are read and what recurrence they show.

LANL: Los Alamos National Laboratory, failure data 1996–2005 (LA-UR-05-7318), provided by Los Alamos. Titan: Ostrouchov et al.,
SC20 (TitanGPULife); the dates of its events are those of inventories, so only the order of months is used of it.
"""

import csv
import datetime
import io
import lzma
import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bench.health.fitting import fit_poisson
from keepstep.core.health.features import RECURRENCE_DAYS, REMEMBERED_DAYS

TRACES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
LEAST_NODES = 100
"""Smaller systems are single large machines, whose nodes are none of the kind that this is about."""
TERMS = (*RECURRENCE_DAYS, "repeated")
PERIOD_DAYS = 90
"""A system's own base rate is taken anew for each: fleets age, and grow up."""
EPOCH = datetime.datetime(1995, 1, 1)

Days = NDArray[np.float64]


class System(Struct, frozen=True):
    """One machine: node → (day it failed, day it was back), in order."""

    name: int
    nodes: int
    failures: dict[int, list[tuple[float, float]]]
    first_day: int
    last_day: int


def systems() -> list[System]:
    """LANL's systems of at least LEAST_NODES nodes."""
    rows = list(csv.DictReader(io.StringIO(_text("LANL_LA-UR-05-7318_1996-2005.csv.xz"))))
    found: dict[int, dict[int, list[tuple[float, float]]]] = {}
    sizes: dict[int, int] = {}
    for row in rows:
        started, fixed = _day(row["Prob Started"]), _day(row["Prob Fixed"])
        if started is None or not row["nodes"].strip().isdigit() or not row["nodenumz"].strip().isdigit():
            continue
        system = int(row["System"])
        sizes[system] = int(row["nodes"])
        back = fixed if fixed is not None and fixed >= started else started
        found.setdefault(system, {}).setdefault(int(row["nodenumz"]), []).append((started, back))
    made = []
    for name, failures in sorted(found.items()):
        if sizes[name] >= LEAST_NODES:
            days = [day for each in failures.values() for day, _ in each]
            ordered = {node: sorted(each) for node, each in failures.items()}
            made.append(System(name, sizes[name], ordered, int(min(days)), int(max(days)) + 1))
    return made


def training(every: list[System]) -> list[System]:
    return [each for each in every if each.name % 2 == 0]


def held_out(every: list[System]) -> list[System]:
    return [each for each in every if each.name % 2 == 1]


class Grid(Struct, frozen=True):
    """One row per node and day of a system: what was known at its start, and whether the node failed in it."""

    features: NDArray[np.float64]
    failed: NDArray[np.bool_]
    day: NDArray[np.int64]


def grid(system: System) -> Grid:
    days = np.arange(system.first_day, system.last_day, dtype=np.float64)
    parts = [_node_rows(system.failures.get(node, []), days) for node in range(system.nodes)]
    return Grid(
        np.concatenate([each[0] for each in parts]),
        np.concatenate([each[1] for each in parts]),
        np.tile(days.astype(np.int64), system.nodes),
    )


def _node_rows(failures: list[tuple[float, float]], days: Days) -> tuple[Days, NDArray[np.bool_]]:
    found = np.zeros((len(days), len(TERMS)))
    started = np.array([a for a, _ in failures])
    back = np.array([b for _, b in failures])
    failed = np.zeros(len(days), dtype=bool)
    if len(failures):
        at = np.floor(started).astype(int) - int(days[0])
        failed[at[(at >= 0) & (at < len(days))]] = True
        seen = np.searchsorted(started, days, side="right")
        returned = np.maximum.accumulate(back)[np.maximum(seen - 1, 0)]
        age = np.where(seen > 0, np.maximum(0.0, days - returned), np.inf)
        for column, limit in enumerate(RECURRENCE_DAYS.values()):
            found[:, column] = age < limit
        old = np.searchsorted(started, days - REMEMBERED_DAYS, side="right")
        found[:, -1] = np.log1p(seen - old)
    return found, failed


class Recurrence(Struct, frozen=True):
    """Nats per term, and the intercept that keeps the average at the base rate."""

    nats: dict[str, float]
    intercept: float


def fit(grids: Mapping[int, Grid]) -> Recurrence:
    """Poisson regression over all node-days; each system has a base rate of its own per PERIOD_DAYS."""
    features = np.concatenate([each.features for each in grids.values()])
    failed = np.concatenate([each.failed for each in grids.values()])
    group = np.concatenate([s * 10_000 + each.day // PERIOD_DAYS for s, each in grids.items()])
    cells, inverse = np.unique(np.column_stack([group, features]), axis=0, return_inverse=True)
    exposure = np.bincount(inverse.ravel()).astype(np.float64)
    events = np.bincount(inverse.ravel(), weights=failed).astype(np.float64)
    groups, position = np.unique(cells[:, 0], return_inverse=True)
    weights = fit_poisson(cells[:, 1:], exposure, events, position, len(groups))
    average = float(np.average(np.exp(cells[:, 1:] @ weights), weights=exposure))
    return Recurrence(dict(zip(TERMS, map(float, weights), strict=True)), -math.log(average))


def forecasts(each: Grid, system: System, recurrence: Recurrence, prior_per_day: float) -> NDArray[np.float64]:
    """P(failure within the day) per row, from what was known before it: a base learned over the 180 days before."""
    first, count = system.first_day, system.last_day - system.first_day
    per_day = np.bincount(each.day - first, weights=each.failed, minlength=count)
    sums = np.concatenate([[0.0], np.cumsum(per_day)])
    now = np.arange(count)
    start = np.maximum(0, now - 180)
    base = (2.0 + sums[now] - sums[start]) / (2.0 / prior_per_day + (now - start) * system.nodes)
    weights = np.array([recurrence.nats[term] for term in TERMS])
    rate = base[each.day - first] * np.exp(recurrence.intercept + each.features @ weights)
    return np.asarray(-np.expm1(-rate))


def again_within(system: System, days: float) -> float:
    """How many times more often a node fails again so soon than nodes of its system fail on average."""
    pairs = hits = total = 0
    for each in system.failures.values():
        total += len(each)
        for (_, back), (after, _) in pairwise(each):
            pairs += 1
            hits += 0 <= after - back <= days
    rate = total / (system.nodes * (system.last_day - system.first_day))
    return hits / total / -math.expm1(-rate * days) if total else 0.0


def by_age(every: list[System]) -> list[tuple[str, float]]:
    """(age since the last failure, rate against the system's average), over all systems; by exposure, without a model."""
    edges = [0.0, *RECURRENCE_DAYS.values(), np.inf]
    events, expected = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
    for system in every:
        each = grid(system)
        rate = each.failed.mean()
        bins = len(RECURRENCE_DAYS) - each.features[:, :-1].sum(axis=1).astype(int)
        events += np.bincount(bins, weights=each.failed, minlength=len(edges) - 1)
        expected += rate * np.bincount(bins, minlength=len(edges) - 1)
    names = ["< 1 day", "1–7 days", "7–30 days", "30–90 days", "> 90 days or never"]
    return [(name, float(a / b)) for name, a, b in zip(names, events, expected, strict=True)]


def titan_again() -> tuple[int, int, float, float]:
    """(cards, cards with an event, events a card-year before its first, and after its first one), all kinds of event."""
    cards: dict[str, list[tuple[str, float, str]]] = {}
    for row in csv.DictReader(io.StringIO(_text("titan_gc_full.csv.xz"))):
        cards.setdefault(row["SN"], []).append(
            (row["remove"], float(row["duration"] or 0) / 86400 / 365.25, row["event"])
        )
    before = after = first = again = 0.0
    with_event = 0
    for spans in cards.values():
        if len(spans) > 20:
            continue  # A placeholder of the inventory, not a card.
        had = False
        for _, years, event in sorted(spans):
            before, after = (before, after + years) if had else (before + years, after)
            if event:
                again, first, had = (again + 1, first, True) if had else (again, first + 1, True)
        with_event += had
    return len(cards), with_event, first / before, again / after if after else 0.0


def _text(name: str) -> str:
    return lzma.decompress((TRACES / name).read_bytes()).decode("utf-8", "replace")


def _day(text: str) -> float | None:
    for form in _FORMS:
        try:
            return (datetime.datetime.strptime(text.strip(), form) - EPOCH).total_seconds() / 86400
        except ValueError:
            continue
    return None


_FORMS = ("%m/%d/%Y %H:%M", "%m/%d/%y %H:%M")


def each_pair(every: list[System]) -> Iterator[tuple[int, Grid]]:
    for system in every:
        yield system.name, grid(system)
