"""What acting on the forecast saves: each moment's recommendation, paid with what then really happened. Owns the table."""

import msgspec
import numpy as np

from bench.health.landmarks import KINDS, Rows
from bench.health.model import PER_NODE, fleet_base_per_h
from keepstep.core.health.forecast import Forecast, Model, forecast, together
from keepstep.core.health.timing import JOB_END, MAINTENANCE, NEXT_CHECKPOINT, NOW, Situation, recommend

JOBS = ((64, 1800.0), (1024, 1800.0), (8192, 1200.0))
"""(GPUs, seconds between checkpoints)"""
REMAINING_S = 24 * 3600.0


def table(found: Rows, model: Model) -> str:
    """Cost per thousand device-days of three ways: never act, always by the recommendation, and knowing the future."""
    own = msgspec.structs.replace(model, base_per_h=fleet_base_per_h(found))
    lines = [
        "| job | leave all | by recommendation | knowing the future | moved | moved in vain |",
        "|---|---|---|---|---|---|",
    ]
    for gpus, interval_s in JOBS:
        lines.append(_row(found, own, gpus, interval_s))
    return "\n\n".join(
        [
            "### Acting on it: expected GPU-hours lost per 1,000 device-days",
            "A day is left of the job, half an interval is at risk, a spare is ready. Moved: device-days on which work was "
            "taken off before the job's end. In vain: share of those on which the device would have held for the day.",
            "\n".join(lines),
        ]
    )


def _row(found: Rows, model: Model, gpus: int, interval_s: float) -> str:
    usual = together(_whole_node(model))
    at = Situation(
        gpus=gpus, job_remaining_s=REMAINING_S, checkpoint_age_s=interval_s / 2, checkpoint_interval_s=interval_s,
        next_checkpoint_s=interval_s / 2, replaced=usual,
    )  # fmt: skip
    costs = np.zeros((3, len(found.found)))
    moved = np.zeros(len(found.found))
    for row, (kind, strengths) in enumerate(zip(found.kind, found.found, strict=True)):
        when = recommend(forecast(KINDS[kind], strengths, model), at).when
        ahead_s = found.ahead_h[row] * 3600
        costs[:, row] = [paid(JOB_END, ahead_s, at), paid(when, ahead_s, at), _best(ahead_s, at)]
        moved[row] = when in (NOW, NEXT_CHECKPOINT)
    weight = found.weight
    per_thousand = costs @ weight / weight.sum() * 1000
    share = float(moved @ weight / weight.sum())
    vain = float((moved * (found.ahead_h > 24)) @ weight) / max(1e-300, float(moved @ weight))
    told = " | ".join(f"{each:.1f}" for each in per_thousand)
    return f"| {gpus} GPUs | {told} | {100 * share:.3f} % | {100 * vain:.0f} % |"


def paid(when: str, ahead_s: float, at: Situation) -> float:
    """GPU-hours really lost with a choice, when the device fails so far ahead (infinite: not)."""
    wait_s = {NOW: 0.0, NEXT_CHECKPOINT: at.next_checkpoint_s}.get(when, at.job_remaining_s)
    if ahead_s <= wait_s:
        before = ahead_s <= at.next_checkpoint_s
        lost_s = at.checkpoint_age_s + ahead_s if before else at.checkpoint_interval_s / 2
        return at.gpus * (at.detect_s + at.restart_s + lost_s) / 3600
    if when in (JOB_END, MAINTENANCE):
        return 0.0
    return at.gpus * (at.restart_s + (at.checkpoint_age_s if when == NOW else 0.0)) / 3600


def _best(ahead_s: float, at: Situation) -> float:
    return min(paid(when, ahead_s, at) for when in (NOW, NEXT_CHECKPOINT, JOB_END))


def _whole_node(model: Model) -> list[Forecast]:
    return [forecast(kind, {}, model) for kind, count in PER_NODE.items() for _ in range(count)]
