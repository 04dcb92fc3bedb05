"""What the windows of one part show, as strengths of at least 0, of which 0 means "nothing remarkable". Pure; weighs nothing.

Each strength grows with what it is made of and is 0 where that is missing, so with weights of at least 0 more errors never
lower a risk and a missing counter never raises it. The trend is in here as ``rising``: the greater of the rates of 6 and of 24
hours. Beside ``rate`` (24 hours) it adds something exactly where the last hours are worse than the day; ``surge`` does so for 1
hour.
"""

import statistics
from collections.abc import Mapping, Sequence

from msgspec import Struct

from keepstep.core.health.level import COUNTERS, STRONGEST, strength
from keepstep.core.health.window import DAY_S, History, busy_share, full, grown, per_day, points, recent
from keepstep.core.observation import kind_of

TERMS: dict[str, tuple[str, ...]] = {
    "ecc_corrected": ("rate", "rising", "surge", "sustained"),
    "ecc_uncorrected": ("level", "rate"),
    "rows_remapped": ("level", "rate"),
    "pcie_replays": ("rate", "rising", "sustained"),
    "pcie_resets": ("rate", "rising"),
    "nvlink_errors": ("rate", "rising", "sustained"),
    "throttle_s": ("rate", "rising"),
    "nic_symbol_errors": ("rate", "rising", "sustained"),
    "link_downed": ("rate", "rising"),
    "dram_corrected": ("rate", "rising", "sustained"),
    "temperature_c": ("spread", "alone"),
    "margin_c": ("near",),
    "step_time_ratio": ("slow",),
    "together": ("memory_heat_pcie",),
    "past_failures": ("within_1d", "within_7d", "within_30d", "within_90d", "repeated"),
}
"""Counter → the terms that are made of it. Their order is the order of every table."""

FEATURES: tuple[str, ...] = tuple(f"{counter}.{term}" for counter, terms in TERMS.items() for term in terms)

ORDINARY_SPREAD_C = 2.0
SPREAD_C = 4.0
ORDINARY_DISTANCE_C = 5.0
DISTANCE_C = 5.0
NEAR_C = 12.0
ORDINARY_SLOWNESS = 0.03
SLOWNESS = 0.05
RECURRENCE_DAYS = {"within_1d": 1.0, "within_7d": 7.0, "within_30d": 30.0, "within_90d": 90.0}
REMEMBERED_DAYS = 365.0

Strengths = dict[str, float]


class Heat(Struct, frozen=True):
    """What its siblings of the same kind in the same node show: the same load, the same air."""

    mean_c: float
    spread_c: float


def strengths(past: History, now_s: float, siblings: Heat | None = None, alone: bool = True) -> Strengths:
    """Feature → strength, without those that are 0. ``alone``: there are no siblings; else no ``siblings`` means not all are
    seen, and then nothing is said by comparison."""
    found: Strengths = {}
    for name in past.series:
        if COUNTERS[name].shape == "counter":
            found.update(_of_counter(past, name, now_s))
    found.update(_of_temperature(past, now_s, siblings, alone))
    found.update(_of_gauges(past, now_s))
    found.update(_of_failures(past, now_s))
    found["together.memory_heat_pcie"] = min(
        found.get("ecc_corrected.rising", 0.0),
        found.get("temperature_c.spread", 0.0),
        found.get("pcie_resets.rising", 0.0),
    )
    return {name: value for name, value in found.items() if value > 0}


def heat(past: History, now_s: float) -> Heat | None:
    """Mean of the last hour and spread over 6; None where it was not measured."""
    hour, day = recent(past, "temperature_c", now_s, 1), recent(past, "temperature_c", now_s, 6)
    if not hour or len(day) < 4:
        return None
    return Heat(statistics.fmean(hour), statistics.pstdev(day))


def siblings_of(part: str, histories: Mapping[str, History], now_s: float) -> tuple[Heat | None, bool]:
    """(median heat of the other parts of its kind, whether there are none). No heat unless every one of them is measured: else
    a sensor that falls silent could make another part look worse."""
    kind = kind_of(part)
    others = [heat(past, now_s) for name, past in histories.items() if name != part and kind_of(name) == kind]
    if not others:
        return None, True
    seen = [one for one in others if one is not None]
    if len(seen) < len(others) or len(seen) < 3:
        return None, False
    means, spreads = [one.mean_c for one in seen], [one.spread_c for one in seen]
    return Heat(statistics.median(means), statistics.median(spreads)), False


def blind(past: History, now_s: float) -> list[str]:
    """The counters that stand at their end."""
    return [n for n in past.series if COUNTERS[n].full_at and full(COUNTERS[n], points(past, n, now_s))]


def _of_counter(past: History, name: str, now_s: float) -> Strengths:
    counter, terms = COUNTERS[name], TERMS[name]
    at = points(past, name, now_s)
    if not at:
        return {}
    found: Strengths = {}
    if "level" in terms:
        found[f"{name}.level"] = strength(at[-1][1], counter.scale)
    growths = grown(counter, at)
    if not growths:
        return found
    day, quarter = (strength(per_day(growths, now_s, hours), counter.scale) for hours in (24.0, 6.0))
    found[f"{name}.rate"] = day
    if "rising" in terms:
        found[f"{name}.rising"] = max(day, quarter)
    if "surge" in terms:
        found[f"{name}.surge"] = max(day, quarter, strength(per_day(growths, now_s, 1.0), counter.scale))
    if "sustained" in terms:
        found[f"{name}.sustained"] = busy_share(growths, now_s) * day
    return found


def _of_temperature(past: History, now_s: float, siblings: Heat | None, alone: bool) -> Strengths:
    own = heat(past, now_s)
    if own is None or (siblings is None and not alone):
        return {}
    if siblings is None:
        return {"temperature_c.spread": _over(own.spread_c - ORDINARY_SPREAD_C, SPREAD_C)}
    return {
        "temperature_c.spread": _over(own.spread_c - siblings.spread_c - ORDINARY_SPREAD_C, SPREAD_C),
        "temperature_c.alone": _over(own.mean_c - siblings.mean_c - ORDINARY_DISTANCE_C, DISTANCE_C),
    }


def _of_gauges(past: History, now_s: float) -> Strengths:
    found: Strengths = {}
    margins = recent(past, "margin_c", now_s, 6)
    if margins:
        found["margin_c.near"] = _over(NEAR_C - statistics.fmean(margins), NEAR_C)
    ratios = recent(past, "step_time_ratio", now_s, 6)
    if ratios:
        found["step_time_ratio.slow"] = _over(statistics.median(ratios) - 1.0 - ORDINARY_SLOWNESS, SLOWNESS)
    return found


def _of_failures(past: History, now_s: float) -> Strengths:
    times = [at_s for at_s in past.failed_at_s if at_s <= now_s]
    found: Strengths = {}
    last_s = max(_returns(past.repaired_at_s, now_s, times), default=None)
    if last_s is not None:
        for term, days in RECURRENCE_DAYS.items():
            found[f"past_failures.{term}"] = float(now_s - last_s < days * DAY_S)
    remembered = sum(at_s > now_s - REMEMBERED_DAYS * DAY_S for at_s in times)
    found["past_failures.repeated"] = strength(float(remembered), 1.0)
    return found


def _returns(repaired_at_s: float | None, now_s: float, times: Sequence[float]) -> list[float]:
    """When it came back into service: a repair counts from its end, a failure without one from itself."""
    return [*times, *([repaired_at_s] if repaired_at_s is not None and repaired_at_s <= now_s else [])]


def _over(excess: float, unit: float) -> float:
    return min(STRONGEST, max(0.0, excess) / unit)
