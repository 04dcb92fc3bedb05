"""Who is slow: step times of ranks against their peers and against themselves. Pure; knows no cause and no card.

Robust throughout: medians and the median deviation, so that a pause for a checkpoint or one odd step is nothing. A slow-down
of everybody is no straggler, and neither is a job whose ranks have always differed: that is how it is laid out.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    ratio: float = 1.03
    """How much slower than expected counts. One slow card was seen to cost a job 5.7 %, and to lose 2.5 % in a benchmark."""
    deviations: float = 5.0
    """How far out of the spread of its peers."""
    sustained: float = 0.8
    """Part of the steps in which it must be slow."""
    min_ranks: int = 4
    min_steps: int = 8
    warm_up: int = 2
    """First steps that are not counted: compilation, caches, loading."""
    most: float = 0.25
    """More ranks than this part are no stragglers but two sorts of ranks."""


LIMITS = Limits()
_TO_SIGMA = 1.4826
_FLOOR = 0.004
"""Spread below this part of the median is not believed: clocks and schedulers are not better."""
_SHORT = 20
_CANDIDATES = 64


class Straggler(Struct, frozen=True, kw_only=True):
    rank: int
    ratio: float
    """Its time over that of its peers; for ``self`` over its own before."""
    since_step: int
    against: Literal["peers", "self"]


class Slowdown(Struct, frozen=True, kw_only=True):
    ratio: float
    since: int
    """Index of the first slow sample."""
    before: float
    after: float


def stragglers(times: Mapping[int, Sequence[float]], limits: Limits = LIMITS) -> list[Straggler]:
    """Ranks that are slower than their peers, or became slower than they were beside them. Ordered by rank.

    ``times`` holds for each rank the seconds of its own work in each step, in the order of steps.
    """
    series = {rank: _usable(values, limits) for rank, values in sorted(times.items())}
    series = {rank: values for rank, values in series.items() if len(values) >= limits.min_steps}
    if len(series) < limits.min_ranks:
        return []
    length = min(map(len, series.values()))
    usual = [median(values[at] for values in series.values()) for at in range(length)]
    relative = {rank: [values[at] / usual[at] for at in range(length)] for rank, values in series.items()}
    found = _against_peers(relative, limits) or _against_self(relative, limits)
    return found if len(found) <= max(1, int(len(series) * limits.most)) else []


def _usable(values: Sequence[float], limits: Limits) -> list[float]:
    """Without the warm-up; a sample that is no time takes the place of its neighbour."""
    kept = list(values[limits.warm_up :])
    good = [value for value in kept if math.isfinite(value) and value > 0]
    if len(good) * 2 < len(kept) or not good:
        return []
    middle = median(good)
    return [value if math.isfinite(value) and value > 0 else middle for value in kept]


def _against_peers(relative: Mapping[int, Sequence[float]], limits: Limits) -> list[Straggler]:
    middles = {rank: median(values) for rank, values in relative.items()}
    usual = median(middles.values())
    spread = _spread(list(middles.values()), usual)
    within = median(_spread(values, middles[rank]) / math.sqrt(len(values)) for rank, values in relative.items())
    line = max(usual * limits.ratio, usual + limits.deviations * max(spread, 1.25 * within))
    slow = [rank for rank, middle in middles.items() if middle > line]
    if len(slow) > max(1, int(len(relative) * limits.most)):
        return []
    return [
        Straggler(rank=rank, ratio=middles[rank] / usual, since_step=limits.warm_up, against="peers")
        for rank in slow
        if sum(value > usual * (1 + (limits.ratio - 1) / 2) for value in relative[rank])
        >= limits.sustained * len(relative[rank])
    ]


def _against_self(relative: Mapping[int, Sequence[float]], limits: Limits) -> list[Straggler]:
    found = []
    for rank, values in relative.items():
        change = slowdown(values, limits)
        if change is not None and change.after > limits.ratio:
            since = change.since + limits.warm_up
            found.append(Straggler(rank=rank, ratio=change.ratio, since_step=since, against="self"))
    return found


def slowdown(values: Sequence[float], limits: Limits = LIMITS) -> Slowdown | None:
    """A lasting rise of one series, up to its end; None where there is none or too little is known."""
    if len(values) < 5 or not all(math.isfinite(value) and value > 0 for value in values):
        return None
    least = 2 if len(values) < _SHORT else max(8, len(values) // 8)
    last = len(values) - least
    step = max(1, (last - least) // _CANDIDATES)
    best, score = None, 0.0
    for at in range(least, last + 1, step):
        change = _change(values, at, limits)
        if change is not None:
            weight = (change.ratio - 1) * math.sqrt(at * (len(values) - at))
            if weight > score:
                best, score = change, weight
    return best


def _change(values: Sequence[float], at: int, limits: Limits) -> Slowdown | None:
    before, after = values[:at], values[at:]
    low, high = median(before), median(after)
    if high < low * limits.ratio:
        return None
    if len(values) < _SHORT:
        apart = min(after) - max(before)
        clear = apart > 1.5 * (max(before) - min(before) + max(after) - min(after))
    else:
        noise = max(_spread(before, low), _spread(after, high))
        slow = sum(value > (low + high) / 2 for value in after)
        fast = sum(value < (low + high) / 2 for value in before)
        clear = (
            high - low > 2.5 * noise
            and slow >= limits.sustained * len(after)
            and fast >= limits.sustained * len(before)
        )
    return Slowdown(ratio=high / low, since=at, before=low, after=high) if clear else None


def _spread(values: Sequence[float], middle: float) -> float:
    return max(_TO_SIGMA * median(abs(value - middle) for value in values), _FLOOR * middle)
