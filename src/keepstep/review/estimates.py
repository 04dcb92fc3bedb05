"""How sure a figure is: shares, spreads, rates and trends, each with its count, and "too few" instead of a wild number.

Pure arithmetic. Owns the statistics and the least counts; knows nothing of incidents.
"""

import itertools
import math
from collections.abc import Sequence

from msgspec import Struct

LEAST = 5
"""Fewer of anything: no figure is given."""
LEAST_P95 = 20
"""Of fewer values the nearest rank at 95 % is only the largest one."""
LEAST_TREND = 8
LEAST_TREND_DAYS = 1.0
"""A slope a day is told of points that are a day apart: two minutes of saves say nothing of tomorrow."""
SURE = 0.05
"""A p-value below which chance is not believed."""
_Z = 1.959964
_BINS = 120
"""Points that a slope is taken through: of a longer series the median of each span, since pairs grow with the square."""


def too_few(count: int, least: int = LEAST) -> str:
    """Empty where there are enough."""
    return f"too few: {count}, at least {least} are needed" if count < least else ""


class Share(Struct, frozen=True, kw_only=True):
    """``hits`` of ``n``; Wilson's 95 % interval."""

    n: int
    hits: int
    value: float | None
    low: float
    high: float
    note: str = ""


class Spread(Struct, frozen=True, kw_only=True):
    """Nearest-rank percentiles: always one of the values. ``None`` where there are too few of them."""

    n: int
    p50: float | None = None
    p95: float | None = None
    mean: float | None = None
    max: float | None = None
    note: str = ""


class Trend(Struct, frozen=True, kw_only=True):
    """Theil and Sen's slope, as a share of the median per day, with its 95 % interval."""

    n: int
    per_day: float | None = None
    low: float | None = None
    high: float | None = None
    median: float | None = None
    verdict: str = "too few"
    """``rising``, ``falling``, ``steady`` or ``too few``."""
    note: str = ""


def share(hits: int, n: int, least: int = LEAST) -> Share:
    low, high = wilson(hits, n)
    return Share(n=n, hits=hits, value=hits / n if n >= least else None, low=low, high=high, note=too_few(n, least))


def spread(values: Sequence[float]) -> Spread:
    n = len(values)
    if not n:
        return Spread(n=0, note=too_few(0))
    ordered = sorted(values)
    return Spread(
        n=n,
        p50=nearest(ordered, 0.5) if n >= LEAST else None,
        p95=nearest(ordered, 0.95) if n >= LEAST_P95 else None,
        mean=math.fsum(ordered) / n if n >= LEAST else None,
        max=ordered[-1],
        note=too_few(n) or (f"p95 needs {LEAST_P95}" if n < LEAST_P95 else ""),
    )


def nearest(ordered: Sequence[float], at: float) -> float:
    """The nearest rank: always one of the values. ``at`` 0 to 1; there must be at least one."""
    return ordered[max(0, math.ceil(at * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a share; everything is possible where nothing was seen."""
    if not n:
        return 0.0, 1.0
    seen, square = hits / n, _Z * _Z
    centre = (seen + square / (2 * n)) / (1 + square / n)
    half = _Z * math.sqrt(seen * (1 - seen) / n + square / (4 * n * n)) / (1 + square / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def poisson_interval(count: int) -> tuple[float, float]:
    """95 % interval of a Poisson mean of which ``count`` were seen (Byar's, four digits right from five on)."""
    above = count + 1
    low = count * (1 - 1 / (9 * count) - _Z / (3 * math.sqrt(count))) ** 3 if count else 0.0
    return max(0.0, low), above * (1 - 1 / (9 * above) + _Z / (3 * math.sqrt(above))) ** 3


def binomial_tail(hits: int, n: int, chance: float) -> float:
    """Probability of ``hits`` or more out of ``n``."""
    if hits <= 0 or chance >= 1.0:
        return 1.0
    if chance <= 0.0 or hits > n:
        return 0.0
    odds, rest = chance / (1 - chance), 1 - chance
    first = math.lgamma(n + 1) - math.lgamma(hits + 1) - math.lgamma(n - hits + 1)
    term = math.exp(first + hits * math.log(chance) + (n - hits) * math.log(rest))
    total, k = 0.0, hits
    while k <= n and (term > total * 1e-15 or k <= n * chance):
        total += term
        term *= (n - k) / (k + 1) * odds
        k += 1
    return min(1.0, total)


def poisson_tail(hits: int, mean: float) -> float:
    """Probability of ``hits`` or more where ``mean`` are expected."""
    if hits <= 0:
        return 1.0
    if mean <= 0.0:
        return 0.0
    term, total, k = math.exp(hits * math.log(mean) - mean - math.lgamma(hits + 1)), 0.0, hits
    while term > total * 1e-15 or k <= mean:
        total += term
        k += 1
        term *= mean / k
    return min(1.0, total)


def score_trend(counts: Sequence[int], exposures: Sequence[float]) -> float | None:
    """Two-sided p-value of "events per exposure neither grow nor shrink with the index"; None where it cannot be said."""
    n, whole = sum(counts), math.fsum(exposures)
    if n < LEAST_TREND or whole <= 0:
        return None
    shares = [exposure / whole for exposure in exposures]
    centre = math.fsum(share * i for i, share in enumerate(shares))
    variance = n * math.fsum(share * (i - centre) ** 2 for i, share in enumerate(shares))
    if variance <= 0:
        return None
    seen = math.fsum(count * i for i, count in enumerate(counts))
    return math.erfc(abs(seen - n * centre) / math.sqrt(2 * variance))


def trend(points: Sequence[tuple[float, float]]) -> Trend:
    """``points``: (day, value), values positive. Robust: half of them may be wild and the slope holds."""
    n = len(points)
    if n < LEAST_TREND:
        return Trend(n=n, note=too_few(n, LEAST_TREND))
    level = median([value for _, value in points])
    ordered = _thinned(sorted(points))
    if ordered[-1][0] - ordered[0][0] < LEAST_TREND_DAYS:
        return Trend(n=n, note="too few: all within a day")
    slopes = sorted(
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for i, earlier in enumerate(ordered)
        for later in ordered[i + 1 :]
        if later[0] > earlier[0]
    )
    if not slopes or level <= 0:
        return Trend(n=n, note="too few: all at one moment")
    count = len(ordered)
    spread_of_s = _Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    below = max(0, math.floor((len(slopes) - spread_of_s) / 2))
    above = min(len(slopes) - 1, math.ceil((len(slopes) + spread_of_s) / 2))
    low, high = slopes[below] / level, slopes[above] / level
    verdict = "rising" if low > 0 else "falling" if high < 0 else "steady"
    return Trend(n=n, per_day=median(slopes) / level, low=low, high=high, median=level, verdict=verdict)


def _thinned(ordered: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(ordered) <= _BINS:
        return ordered
    edges = [round(i * len(ordered) / _BINS) for i in range(_BINS + 1)]
    bins = [ordered[a:b] for a, b in itertools.pairwise(edges)]
    return [(median([day for day, _ in one]), median([value for _, value in one])) for one in bins]
