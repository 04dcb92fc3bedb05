"""Lost GPU-hours, by cause, class, model and day. Pure."""

import math
from collections.abc import Callable, Sequence

from keepstep.review.figures import Cost, Day, Loss
from keepstep.review.goodput import HOUR_S
from keepstep.review.records import IncidentRecord

DAY_S = 86_400.0
NAMES_TOLD = 40
"""Rows of a table; what is smaller is one row, so that the sum stays."""


def cost_of(faults: Sequence[IncidentRecord]) -> Cost:
    total = math.fsum(x.lost_gpu_s for x in faults)
    return Cost(
        n=len(faults),
        gpu_h=total / HOUR_S,
        by_cause=_losses(faults, lambda x: x.cause, total),
        by_class=_losses(faults, lambda x: x.failure_class or f"({x.cause})", total),
        by_model=_losses(faults, lambda x: x.labels.get("model") or "(no label)", total),
        by_day=_days(faults),
    )


def _losses(
    faults: Sequence[IncidentRecord], name: Callable[[IncidentRecord], str], total: float
) -> tuple[Loss, ...]:  # fmt: skip
    groups: dict[str, list[IncidentRecord]] = {}
    for incident in faults:
        groups.setdefault(name(incident), []).append(incident)
    ordered = sorted(groups.items(), key=lambda item: (-math.fsum(x.lost_gpu_s for x in item[1]), item[0]))
    rest = [x for _, members in ordered[NAMES_TOLD:] for x in members]
    told = [*ordered[:NAMES_TOLD], ("(others)", rest)] if rest else ordered
    return tuple(_loss(name, members, total) for name, members in told)


def _loss(name: str, members: list[IncidentRecord], total: float) -> Loss:
    recovery = math.fsum(x.ranks * x.downtime_s for x in members)
    wasted = math.fsum(x.ranks * x.redone_s for x in members)
    return Loss(
        name=name,
        incidents=len(members),
        gpu_h=(recovery + wasted) / HOUR_S,
        recovery_gpu_h=recovery / HOUR_S,
        wasted_gpu_h=wasted / HOUR_S,
        share=(recovery + wasted) / total if total > 0 else None,
    )


def _days(faults: Sequence[IncidentRecord]) -> tuple[Day, ...]:
    days: dict[float, list[float]] = {}
    for incident in faults:
        days.setdefault(math.floor(incident.closed_s / DAY_S) * DAY_S, []).append(incident.lost_gpu_s)
    return tuple(
        Day(start_s=start, incidents=len(lost), lost_gpu_h=math.fsum(lost) / HOUR_S)
        for start, lost in sorted(days.items())
    )
