"""How long to train between two saves: one kind of save against one kind of failure. Owns the formulas; no clock, no I/O.

Two costs of a save are kept apart. The *stall* is what the loop pays. The *latency until durable* is how long the state of
that save cannot be restored yet: writing goes on behind the loop. A failure costs half an interval (on average), the latency,
and the restart; the price of a shorter interval is the stall alone.

``work`` is the literature's interval: time spent training between two saves, without the stall. Everywhere else in this package
an *interval* runs from the start of a save to the start of the next: work plus stall. Failures come at a constant rate.
"""

import math

from msgspec import Struct

_SERIES_BELOW = 1e-2


class Save(Struct, frozen=True, kw_only=True):
    """What a save costs."""

    stall_s: float
    """Training time that the loop loses for it."""
    durable_s: float
    """From its start until the state can be restored from it; at least the stall, and above 0."""

    def __post_init__(self) -> None:
        if not 0 <= self.stall_s <= self.durable_s < math.inf or self.durable_s <= 0:
            raise ValueError(
                f"a save that stalls for {self.stall_s} s and is durable after {self.durable_s} s: "
                "needs 0 <= stall <= durable, and durable above 0"
            )


class Risk(Struct, frozen=True, kw_only=True):
    """What a failure costs."""

    rate_per_s: float
    restart_s: float
    """From the failure until the loop trains again: detection, decision, start, restore. Without the lost work."""

    def __post_init__(self) -> None:
        if not 0 <= self.rate_per_s < math.inf or not 0 <= self.restart_s < math.inf:
            raise ValueError(
                f"a failure rate of {self.rate_per_s} per s with {self.restart_s} s of restart: both must be 0 or more"
            )


def young_work_s(stall_s: float, mtbf_s: float) -> float:
    """Young 1974: first order, for stalls far below the mean time between failures."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_work_s(stall_s: float, mtbf_s: float) -> float:
    """Daly 2006: higher order; within 0.6 % of :func:`exact_work_s` while the stall is below half of the MTBF."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    share = stall_s / (2 * mtbf_s)
    return math.sqrt(2 * stall_s * mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - stall_s


def exact_work_s(stall_s: float, mtbf_s: float) -> float:
    """Where :func:`efficiency` is greatest: ``mtbf * (1 + W(-exp(-1 - stall / mtbf)))``. Neither latency nor restart is in it.

    By Newton on ``u + exp(-(u + c)) = 1``, which is convex, from its right end: it comes down on the root and cannot miss it.
    """
    cost = stall_s / mtbf_s
    share = 1.0
    while cost > 0:
        off = share + math.expm1(-(share + cost))
        lower = share - off / -math.expm1(-(share + cost))
        if not lower < share:
            return share * mtbf_s
        share = lower
    return 0.0


def efficiency(interval_s: float, save: Save, risk: Risk) -> float:
    """Share of the wall time that becomes lasting progress, for saves every ``interval_s``. Exact for a constant failure rate.

    Failures during a restart and during a save are in it; a save that was on its way when the failure came is lost.
    """
    if interval_s < save.durable_s or interval_s <= save.stall_s:
        raise ValueError(
            f"saves every {interval_s:g} s, each durable after {save.durable_s:g} s: two would be in flight; "
            f"use at least {save.durable_s:g} s"
        )
    outage_s = risk.restart_s + save.durable_s - save.stall_s
    work = 1 - save.stall_s / interval_s
    return work * math.exp(-lost(risk.rate_per_s * interval_s) - risk.rate_per_s * outage_s)


def waste(interval_s: float, save: Save, risk: Risk) -> float:
    """Share of the wall time that does not become lasting progress: stalls, lost work and restarts."""
    return 1 - efficiency(interval_s, save, risk)


def loss_s(interval_s: float, save: Save, risk: Risk) -> float:
    """What one failure costs on average, in seconds of wall time."""
    return interval_s / 2 + save.durable_s + risk.restart_s


def best_interval_s(save: Save, risk: Risk, *, least_s: float = 0.0, most_s: float = 86_400.0) -> float:
    """The interval of the greatest efficiency within the bounds. Never below the latency: no two saves in flight."""
    least_s = max(least_s, save.durable_s)
    if risk.rate_per_s == 0:
        return max(least_s, most_s)
    return max(least_s, min(most_s, exact_work_s(save.stall_s, 1 / risk.rate_per_s) + save.stall_s))


def lost(expected: float) -> float:
    """What lost work takes, as an exponent: ``-log(x / (exp(x) - 1))`` for x failures expected per interval; about x/2."""
    if expected < _SERIES_BELOW:
        return expected / 2 + expected**2 / 24 - expected**4 / 2880
    return expected + math.log(-math.expm1(-expected) / expected)


def lost_slope(expected: float) -> float:
    """Derivative of :func:`lost`: from 1/2 (an interval is lost by half) to 1 (nearly every interval is lost whole)."""
    if expected < _SERIES_BELOW:
        return 0.5 + expected / 12 - expected**3 / 720
    return 1 / -math.expm1(-expected) - 1 / expected
