"""Intervals of several tiers at once (memory, peer, disk, object store). Owns the joint optimum; no clock, no I/O.

Tiers stand in order, the most frequent first. A save of a tier is made from a snapshot of the tier below, so its interval is a
multiple of that one's. Each tier has the failures that it is the first to survive: after one, the state comes from that tier.

Stalls add up, and failures of different tiers are independent:

    efficiency = (1 - sum of stall / interval) * product over tiers of exp(-lost(rate * interval) - rate * outage)

This is exact for one tier, and to first order the two-level result ``sum of sqrt(2 * rate * stall)``. Where stalls are small it
falls apart into one problem per tier; what couples them is solved here: the order of the tiers, and the time that stalls take.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from keepstep.checkpoint.interval.optimal import Save, lost, lost_slope

KEEP_COST = 1.05
"""Intervals in use are kept while what they cost is within this factor of the best..."""
KEEP_RATIO = 1.4
"""...or while each is within this factor of the best: a tier that a write time holds has no flat optimum."""
_CLOSE = 1e-12
_ROUNDS = 200

HeldBy = Literal["cost", "write time", "declared minimum", "declared maximum", "tier below"]


class Tier(Struct, frozen=True, kw_only=True):
    """One tier, as it was measured and declared."""

    name: str
    save: Save
    """``stall_s``: what this tier adds to the stall of the tier below, whose snapshot it shares. ``durable_s``: until this tier
    holds it."""
    rate_per_s: float
    """Failures that this tier survives and the tiers below do not."""
    restart_s: float
    """From such a failure until the loop trains again, the restore from this tier included."""
    least_s: float = 0.0
    most_s: float = 86_400.0


class TierChoice(Struct, frozen=True, kw_only=True):
    """What was chosen for a tier, and what it is worth."""

    name: str
    interval_s: float
    """Wall time from the start of a save to the start of the next."""
    every: int
    """In saves of the tier below; 1 for the first."""
    held_by: HeldBy
    stall_share: float
    """Of the wall time."""
    failure_share: float
    """Of the wall time: lost work, latency and restart of the failures that are this tier's."""
    loss_s: float
    """What one such failure costs."""
    overhead_halved: float | None
    """Overhead of the whole plan with half this interval; None where a save would not be written before the next."""
    overhead_doubled: float | None


class Choice(Struct, frozen=True, kw_only=True):
    """Intervals for all tiers."""

    overhead: float
    """Share of the wall time that does not become lasting progress."""
    kept: bool
    """The intervals in use were close enough to the best ones."""
    tiers: tuple[TierChoice, ...]

    @property
    def intervals_s(self) -> tuple[float, ...]:
        return tuple(tier.interval_s for tier in self.tiers)


class _Block(Struct):
    """Neighbouring tiers that share an interval, because each would want to be more frequent than the one below."""

    tiers: list[Tier]
    least_s: float
    most_s: float
    interval_s: float = 0.0


def choose(tiers: Sequence[Tier], current_s: Sequence[float] | None = None) -> Choice:
    """Intervals of the least overhead, in whole multiples; or ``current_s``, where those are allowed and nearly as good.

    Raises ValueError where the declared maxima leave no time to train.
    """
    wanted_s = in_multiples(tiers, optimum(tiers))
    kept = current_s is not None and _still_good(tiers, current_s, wanted_s)
    intervals_s = tuple(current_s) if kept and current_s is not None else wanted_s
    return Choice(
        overhead=overhead(tiers, intervals_s),
        kept=kept,
        tiers=tuple(_described(tiers, intervals_s, place) for place in range(len(tiers))),
    )


def overhead(tiers: Sequence[Tier], intervals_s: Sequence[float]) -> float:
    """Expected share of the wall time that does not become lasting progress."""
    outages = sum(tier.rate_per_s * (tier.restart_s + tier.save.durable_s - tier.save.stall_s) for tier in tiers)
    return -math.expm1(-_variable(tiers, intervals_s) - outages)


def optimum(tiers: Sequence[Tier]) -> tuple[float, ...]:
    """The best intervals, not yet in multiples. Never falling from tier to tier, never below a write time."""
    if not tiers:
        raise ValueError("no tiers: name at least one")
    floors = [_floor_s(tier) for tier in tiers]
    least = [max(floors[: place + 1]) for place in range(len(tiers))]
    ceilings = [max(tier.most_s, floor) for tier, floor in zip(tiers, floors, strict=True)]
    most = [max(min(ceilings[place:]), least[place]) for place in range(len(tiers))]
    stalled = sum(tier.save.stall_s / most_s for tier, most_s in zip(tiers, most, strict=True))
    if stalled >= 1:
        raise ValueError(
            f"saves at the longest intervals allowed would stall the loop for {stalled:.0%} of the time: raise the maxima"
        )

    def solved(useful: float) -> tuple[float, ...]:
        return _in_order(tiers, least, most, useful)

    def excess(useful: float) -> float:
        return useful - 1 + sum(t.save.stall_s / s for t, s in zip(tiers, solved(useful), strict=True))

    # A second of stall costs 1/useful seconds of progress; how much is useful depends on the intervals in turn.
    return solved(_root(excess, 1e-9, 1.0))


def in_multiples(tiers: Sequence[Tier], intervals_s: Sequence[float]) -> tuple[float, ...]:
    """Each interval as a whole multiple of the one before: the nearest by ratio that is not below a write time."""
    chosen = [intervals_s[0]]
    for tier, wanted_s in zip(tiers[1:], intervals_s[1:], strict=True):
        below_s, floor_s = chosen[-1], _floor_s(tier)
        fewest = max(1, math.ceil(floor_s / below_s - 1e-9))
        whole = max(fewest, math.floor(wanted_s / below_s + 1e-9))
        fits = whole == fewest or (whole + 1) * below_s <= max(tier.most_s, wanted_s)
        options = (whole * below_s, (whole + 1) * below_s) if fits else (whole * below_s,)
        # Costs are symmetrical in the ratio to the best interval.
        chosen.append(min(options, key=lambda interval_s, best_s=wanted_s: abs(math.log(interval_s / best_s))))
    return tuple(chosen)


def _floor_s(tier: Tier) -> float:
    return max(tier.least_s, tier.save.durable_s)


def _variable(tiers: Sequence[Tier], intervals_s: Sequence[float]) -> float:
    """The part of the overhead that the intervals decide, as an exponent."""
    stalled = sum(tier.save.stall_s / interval_s for tier, interval_s in zip(tiers, intervals_s, strict=True))
    if stalled >= 1:
        return math.inf
    return -math.log1p(-stalled) + sum(
        lost(tier.rate_per_s * interval_s) for tier, interval_s in zip(tiers, intervals_s, strict=True)
    )


def _still_good(tiers: Sequence[Tier], current_s: Sequence[float], wanted_s: Sequence[float]) -> bool:
    if len(current_s) != len(tiers):
        return False
    for tier, now_s, best_s in zip(tiers, current_s, wanted_s, strict=True):
        # Beyond the maximum is fine only where the best is, too: a write time or a tier below forced it.
        if now_s < _floor_s(tier) or now_s > max(tier.most_s, best_s):
            return False
    for below_s, above_s in pairwise(current_s):
        times = above_s / below_s
        if times < 1 - 1e-9 or abs(times - round(times)) > 1e-6 * times:
            return False
    if _variable(tiers, current_s) <= KEEP_COST * _variable(tiers, wanted_s) + _CLOSE:
        return True
    return all(1 / KEEP_RATIO <= now / best <= KEEP_RATIO for now, best in zip(current_s, wanted_s, strict=True))


def _in_order(tiers: Sequence[Tier], least: list[float], most: list[float], useful: float) -> tuple[float, ...]:
    """Best intervals that never fall, by pooling neighbours that are out of order (isotonic: the terms are convex)."""
    blocks: list[_Block] = []
    for tier, least_s, most_s in zip(tiers, least, most, strict=True):
        block = _Block([tier], least_s, most_s)
        block.interval_s = _stationary(block, useful)
        while blocks and blocks[-1].interval_s > block.interval_s:
            below = blocks.pop()
            block = _Block(
                below.tiers + block.tiers, max(below.least_s, block.least_s), min(below.most_s, block.most_s)
            )
            block.interval_s = _stationary(block, useful)
        blocks.append(block)
    return tuple(block.interval_s for block in blocks for _ in block.tiers)


def _stationary(block: _Block, useful: float) -> float:
    stall_s = sum(tier.save.stall_s for tier in block.tiers) / useful
    rates = [tier.rate_per_s for tier in block.tiers]

    def slope(interval_s: float) -> float:
        risk = sum(rate * interval_s * lost_slope(rate * interval_s) for rate in rates)
        return risk - stall_s / interval_s

    if slope(block.least_s) >= 0:
        return block.least_s
    if slope(block.most_s) <= 0:
        return block.most_s
    # Between half of a failure's interval lost and all of it: the root is within a factor of sqrt(2).
    young_s = math.sqrt(2 * stall_s / sum(rates))
    low, high = max(block.least_s, 0.7 * young_s), min(block.most_s, 1.01 * young_s)
    return _root(slope, low, high)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where ``rising`` crosses 0, by regula falsi (Illinois); an end where it does not."""
    at_low, at_high = rising(low), rising(high)
    if at_low >= 0:
        return low
    if at_high <= 0:
        return high
    middle, side = low, 0
    for _ in range(_ROUNDS):
        before = middle
        middle = high - at_high * (high - low) / (at_high - at_low)
        value = rising(middle)
        if value == 0 or abs(middle - before) <= _CLOSE * abs(middle):
            break
        if value > 0:
            high, at_high = middle, value
            at_low = at_low / 2 if side > 0 else at_low
            side = 1
        else:
            low, at_low = middle, value
            at_high = at_high / 2 if side < 0 else at_high
            side = -1
    return middle


def _described(tiers: Sequence[Tier], intervals_s: Sequence[float], place: int) -> TierChoice:
    tier, interval_s = tiers[place], intervals_s[place]
    below_s = intervals_s[place - 1] if place else 0.0
    outage_s = tier.restart_s + tier.save.durable_s - tier.save.stall_s

    def at(other_s: float) -> float | None:
        """With this interval. The order is kept: later tiers go along where it grows, earlier ones where it shrinks."""
        moved = [min(s, other_s) for s in intervals_s[:place]] + [max(s, other_s) for s in intervals_s[place:]]
        moved[place] = other_s
        allowed = all(s >= _floor_s(t) for s, t in zip(moved, tiers, strict=True))
        return overhead(tiers, moved) if allowed else None

    return TierChoice(
        name=tier.name,
        interval_s=interval_s,
        every=round(interval_s / below_s) if place else 1,
        held_by=_held_by(tier, interval_s, below_s),
        stall_share=tier.save.stall_s / interval_s,
        failure_share=-math.expm1(-lost(tier.rate_per_s * interval_s) - tier.rate_per_s * outage_s),
        loss_s=interval_s / 2 + tier.save.durable_s + tier.restart_s,
        overhead_halved=at(interval_s / 2),
        overhead_doubled=at(interval_s * 2),
    )


def _held_by(tier: Tier, interval_s: float, below_s: float) -> HeldBy:
    near = 1 + 1e-6
    floor_s = _floor_s(tier)
    if interval_s <= floor_s * near or (0 < interval_s - below_s < floor_s and below_s):
        return "write time" if tier.save.durable_s >= tier.least_s else "declared minimum"
    if below_s and interval_s <= below_s * near:
        return "tier below"
    if interval_s * near >= tier.most_s or (below_s and interval_s + below_s > tier.most_s):
        return "declared maximum"
    return "cost"
