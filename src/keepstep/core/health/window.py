"""The last day of one part's counters: bounded histories, and what grew in which window. Pure; it does not say what is bad.

A history keeps one sample per counter and quarter of an hour, the last of it, for a day and one sample more. Counters that are
reset, wrap, stand full, come late, twice or not at all are ordinary: none gives a negative amount.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec
from msgspec import Struct

from keepstep.core.health.level import COUNTERS, Counter, usable

BUCKET_S = 900.0
KEPT = 97
"""A day of quarters of an hour, and one before, from which the first of them grew."""
HOUR_S = 3600.0
DAY_S = 86400.0
KEPT_FAILURES = 64
NEAR_WRAP = 0.9
STALE_S = 2 * HOUR_S
"""A gauge that was last read longer ago says nothing about now."""

Point = tuple[float, float]
"""(when it was read, the reading)"""


class Sample(Struct, frozen=True):
    counter: str
    at_s: float
    value: float


class History(Struct, frozen=True, kw_only=True):
    """What is known about one part. Made by ``history`` or ``extended``, so that every series is in order and bounded."""

    series: Mapping[str, tuple[Point, ...]] = {}
    failed_at_s: tuple[float, ...] = ()
    """When this part failed before, in order; by its serial number, so that it follows the part."""
    repaired_at_s: float | None = None
    """When it last came back from a repair or a reset that was meant to cure it."""


class Growth(Struct, frozen=True):
    """An amount, and the time between the two samples that show it."""

    from_s: float
    until_s: float
    amount: float


def history(
    samples: Iterable[Sample], failed_at_s: Iterable[float] = (), repaired_at_s: float | None = None
) -> History:
    """A history of samples in any order. Unknown counters and readings that cannot be true are left out."""
    times = tuple(sorted(failed_at_s))[-KEPT_FAILURES:]
    return extended(History(failed_at_s=times, repaired_at_s=repaired_at_s), samples)


def extended(old: History, samples: Iterable[Sample]) -> History:
    """The history with more samples, in any order; what is then older than a day falls out."""
    touched: dict[str, dict[int, Point]] = {}
    for sample in samples:
        if sample.counter not in COUNTERS or not usable(sample.value) or not usable(sample.at_s):
            continue
        buckets = touched.get(sample.counter)
        if buckets is None:
            buckets = touched[sample.counter] = {_bucket(at[0]): at for at in old.series.get(sample.counter, ())}
        bucket, point = _bucket(sample.at_s), (sample.at_s, sample.value)
        known = buckets.get(bucket)
        if known is None or known < point:
            buckets[bucket] = point
    kept = {name: tuple(sorted(buckets.values())[-KEPT:]) for name, buckets in touched.items()}
    return msgspec.structs.replace(old, series={**old.series, **kept})


def points(past: History, counter: str, now_s: float) -> list[Point]:
    """The samples since the last repair and up to now, in order. What a repair may have cured does not count; a sample that
    claims to come from the future has a wrong clock."""
    repaired_at_s = past.repaired_at_s
    from_s = repaired_at_s if repaired_at_s is not None and repaired_at_s <= now_s else -math.inf
    return [point for point in past.series.get(counter, ()) if from_s <= point[0] <= now_s]


def grown(counter: Counter, at: list[Point]) -> list[Growth]:
    """What was added between each two samples, never negative."""
    found = []
    for (from_s, old), (until_s, new) in pairwise(at):
        amount = _added(counter, max(0.0, old), max(0.0, new))
        if amount > 0:
            found.append(Growth(from_s, until_s, amount))
    return found


def _added(counter: Counter, old: float, new: float) -> float:
    if new >= old:
        return new - old
    wrap = min((top for top in counter.wraps_at if old < top), default=None)
    if wrap is not None and old >= NEAR_WRAP * wrap and new < (1 - NEAR_WRAP) * wrap:
        return new + wrap - old
    return new  # It was reset and has counted from 0 since.


def amount(growths: list[Growth], from_s: float, until_s: float) -> float:
    """How much of it falls into a window. Between two samples it is spread evenly: a gap must not look like a burst."""
    total = 0.0
    for one in growths:
        overlap = min(one.until_s, until_s) - max(one.from_s, from_s)
        if overlap > 0:
            total += one.amount * overlap / (one.until_s - one.from_s)
    return total


def per_day(growths: list[Growth], now_s: float, hours: float) -> float:
    """The rate over the last hours, as an amount a day. Time without samples counts as quiet."""
    return amount(growths, now_s - hours * HOUR_S, now_s) * 24.0 / hours


def busy_share(growths: list[Growth], now_s: float) -> float:
    """The share of the last 24 hours in which it grew: 1/24 for one burst, 1 for steady wear."""
    hours: set[int] = set()
    for one in growths:
        if one.until_s > now_s - DAY_S:
            first = max(0, int((now_s - min(one.until_s, now_s)) // HOUR_S))
            last = min(23, int((now_s - max(one.from_s, now_s - DAY_S)) // HOUR_S))
            # A gap of many hours shows that it grew, not that it grew in each of them.
            hours.update(range(first, last + 1) if last - first <= 1 else (first,))
    return len(hours) / 24.0


def recent(past: History, counter: str, now_s: float, hours: float) -> list[float]:
    """The readings of a gauge in the last hours; none where the newest one is stale."""
    at = points(past, counter, now_s)
    if not at or at[-1][0] < now_s - STALE_S:
        return []
    return [value for at_s, value in at if at_s > now_s - hours * HOUR_S]


def full(counter: Counter, at: list[Point]) -> bool:
    """Whether the counter stands at its end, where it can count no more: nothing follows from its silence."""
    return bool(at) and at[-1][1] in counter.full_at


def _bucket(at_s: float) -> int:
    return int(at_s // BUCKET_S)
