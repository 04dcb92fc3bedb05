"""The health of a node and its parts: ``assess`` makes it from histories, ``explain`` says it to a person. Pure.

A report is a forecast with reasons, not a verdict: no part is taken out of service because of it alone.
"""

from collections.abc import Collection, Mapping

from msgspec import Struct

from keepstep.core.health.features import TERMS, blind, siblings_of, strengths
from keepstep.core.health.forecast import Forecast, Model, forecast, together, useful_hours
from keepstep.core.health.level import COUNTERS
from keepstep.core.health.risk import Share, index, shares
from keepstep.core.health.weights import MODEL
from keepstep.core.health.window import History
from keepstep.core.observation import kind_of

USEFUL_HORIZON_H = 30 * 24.0
SHOWN_PARTS = 8
SHOWN_INDEX = 1.0
SHOWN_SHARES = 4

TERM_TEXTS: dict[str, str] = {
    "level": "so far",
    "rate": "over 24 h",
    "rising": "rising over 6 h",
    "surge": "rising within the hour",
    "sustained": "hour after hour",
    "spread": "unsteady",
    "alone": "above its siblings",
    "near": "close to the limit",
    "slow": "above the other ranks",
    "memory_heat_pcie": "corrected memory errors, unsteady temperature and PCIe recoveries rise together",
    "within_1d": "failed or repaired within a day",
    "within_7d": "failed or repaired within 7 days",
    "within_30d": "failed or repaired within 30 days",
    "within_90d": "failed or repaired within 90 days",
    "repeated": "failed before",
}


class PartHealth(Struct, frozen=True, kw_only=True):
    part: str
    index: float
    """0 … 100, see ``risk.py``."""
    forecast: Forecast
    shares: tuple[Share, ...]
    """What the index is made of, strongest first."""
    explained: tuple[str, ...] = ()
    """Counters that were left out, because something outside explains them."""
    blind: tuple[str, ...] = ()
    """Counters that stand at their end and can show nothing."""
    seen: tuple[str, ...] = ()
    """What was measured at all: the index of a part that shows nothing is 0 as well."""


class HealthReport(Struct, frozen=True, kw_only=True):
    at_s: float
    index: float
    """Of the node: from how many more failures than usual its parts together are expected to have."""
    forecast: Forecast
    useful_h: float
    """Hours of the next 30 days that it is expected to work for before it fails."""
    parts: tuple[PartHealth, ...]
    """The riskiest first."""


def assess(
    histories: Mapping[str, History],
    now_s: float,
    *,
    model: Model = MODEL,
    explained: Collection[tuple[str, str]] = (),
) -> HealthReport:
    """The health of one node from the histories of its parts (the empty part is the node itself).

    ``explained``: (part, counter) pairs that have an origin outside, see ``cluster.py``; they do not count against the part.
    """
    parts = [_part(part, histories, now_s, model, explained) for part in sorted(histories)]
    whole = together(one.forecast for one in parts)
    return HealthReport(
        at_s=now_s,
        index=index(whole),
        forecast=whole,
        useful_h=useful_hours(whole, USEFUL_HORIZON_H),
        parts=tuple(sorted(parts, key=lambda one: (-one.forecast.ratio, one.part))),
    )


def _part(
    part: str, histories: Mapping[str, History], now_s: float, model: Model, explained: Collection[tuple[str, str]]
) -> PartHealth:
    past = histories[part]
    siblings, alone = siblings_of(part, histories, now_s)
    left_out = {counter for name, counter in explained if name == part}
    found = {
        name: value
        for name, value in strengths(past, now_s, siblings, alone).items()
        if name.split(".")[0] not in left_out
    }
    of = forecast(kind_of(part), found, model)
    return PartHealth(
        part=part,
        index=index(of),
        forecast=of,
        shares=tuple(shares(kind_of(part), found, of, model)),
        explained=tuple(sorted(left_out & past.series.keys())),
        blind=tuple(blind(past, now_s)),
        seen=tuple(sorted(past.series)),
    )


def explain(report: HealthReport) -> list[str]:
    """Lines for a person: the node, then its riskiest parts with what their index is made of."""
    lines = [
        f"risk index {report.index:.0f} of 100: {_ratio(report.forecast)} · {_chances(report.forecast)}",
        f"expected to work for {report.useful_h / 24:.1f} of the next {USEFUL_HORIZON_H / 24:.0f} days",
    ]
    shown = [one for one in report.parts if one.index >= SHOWN_INDEX][:SHOWN_PARTS]
    for one in shown:
        lines.append(f"{one.part or 'node'}: {one.index:.0f} · {_ratio(one.forecast)} · {_chances(one.forecast)}")
        lines.extend(f"  +{share.nats:.1f}  {_text(share)}" for share in one.shares[:SHOWN_SHARES])
    if not shown:
        lines.append("nothing in what was measured makes a part fail more often than average")
    for one in report.parts:
        if one.explained:
            lines.append(f"{one.part or 'node'}: {', '.join(one.explained)} left out, explained by something it shares")
        if one.blind:
            lines.append(f"{one.part or 'node'}: {', '.join(one.blind)} stands at its end; reset it to see anything")
    unseen = [one.part or "node" for one in report.parts if not one.seen]
    if unseen:
        lines.append(f"not measured: {', '.join(unseen[:SHOWN_PARTS])}{' …' if len(unseen) > SHOWN_PARTS else ''}")
    return lines


def _ratio(of: Forecast) -> str:
    return f"{of.ratio:.1f} times the average failures" if of.ratio >= 1.05 else "no more failures than average"


def _chances(of: Forecast) -> str:
    return "fails within 1 h {}, 6 h {}, 24 h {}".format(*(_percent(p) for p in of.within))


def _percent(p: float) -> str:
    return f"{100 * p:.2g} %" if p < 0.995 else "> 99 %"


def _text(share: Share) -> str:
    if share.counter in COUNTERS:
        return f"{COUNTERS[share.counter].text} {TERM_TEXTS[share.term]}"
    return TERM_TEXTS[share.term]


assert {term for terms in TERMS.values() for term in terms} == TERM_TEXTS.keys(), "every term has its words"
