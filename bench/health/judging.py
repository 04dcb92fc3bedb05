"""How good forecasts are: calibration and ranking, with weights. Owns the figures and their tables; knows no counters."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Array = NDArray[np.float64]
BINS = 8
TOP_SHARE = 0.01


class Bin(Struct, frozen=True):
    forecast: float
    observed: float
    share: float
    """Of all device-hours."""
    failures: float
    """Of all failures, the share in this bin."""
    drawn: int
    """Failures among the rows, unweighted: what the figure rests on."""


class Verdict(Struct, frozen=True):
    rate: float
    brier: float
    skill: float
    """1 - Brier / Brier of always saying the average."""
    ece: float
    """Mean distance of forecast and observed over the bins, weighted by device-hours."""
    auc: float
    lift: float
    """Failures in the riskiest TOP_SHARE of the device-hours against what chance would find."""
    bins: list[Bin]


def judged(p: Array, failed: Array, weight: Array | None = None) -> Verdict:
    w = np.ones(len(p)) if weight is None else weight
    rate = float(np.average(failed, weights=w))
    brier = float(np.average((p - failed) ** 2, weights=w))
    bins = _bins(p, failed, w)
    ece = sum(each.share * abs(each.forecast - each.observed) for each in bins)
    skill = 1 - brier / (rate * (1 - rate))
    return Verdict(rate, brier, skill, ece, _auc(p, failed, w), _lift(p, failed, w), bins)


def _bins(p: Array, failed: Array, w: Array) -> list[Bin]:
    """Cut so that each bin is forecast to hold the same number of failures: else all but one would be at the base rate."""
    order = np.argsort(p, kind="stable")
    mass = np.cumsum((p * w)[order])
    at = np.minimum(BINS - 1, (mass / mass[-1] * BINS).astype(int))
    made = []
    for number in range(BINS):
        rows = order[at == number]
        if len(rows) and w[rows].sum() > 0:
            made.append(
                Bin(
                    float(np.average(p[rows], weights=w[rows])),
                    float(np.average(failed[rows], weights=w[rows])),
                    float(w[rows].sum() / w.sum()),
                    float((w * failed)[rows].sum() / (w * failed).sum()),
                    int(failed[rows].sum()),
                )
            )
    return made


def _auc(p: Array, failed: Array, w: Array) -> float:
    """Probability that one that fails was given more than one that does not; equal forecasts count half."""
    values, position = np.unique(p, return_inverse=True)
    bad = np.bincount(position, weights=w * failed, minlength=len(values))
    good = np.bincount(position, weights=w * (1 - failed), minlength=len(values))
    below = np.cumsum(good) - good
    return float((bad * (below + good / 2)).sum() / (bad.sum() * good.sum()))


def _lift(p: Array, failed: Array, w: Array) -> float:
    """The last of equal forecasts is taken in part, so that ties give neither luck nor loss."""
    values, position = np.unique(-p, return_inverse=True)
    hours = np.bincount(position, weights=w, minlength=len(values))
    bad = np.bincount(position, weights=w * failed, minlength=len(values))
    before = np.cumsum(hours) - hours
    part = np.clip((TOP_SHARE * w.sum() - before) / hours, 0, 1)
    return float((part * bad).sum() / bad.sum() / TOP_SHARE)


def summary(rows: list[tuple[str, Verdict]]) -> str:
    lines = [
        "| forecast | failures | Brier | skill | ECE | AUC | lift at 1 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, v in rows:
        lines.append(
            f"| {name} | {_p(v.rate)} | {v.brier:.3g} | {100 * v.skill:.1f} % | {v.ece:.2g} | {v.auc:.3f} | {v.lift:.1f} |"
        )
    return "\n".join(lines)


def reliability(v: Verdict) -> str:
    lines = [
        "| forecast | observed | device-hours | failures found | failures drawn |",
        "|---|---|---|---|---|",
    ]
    for each in v.bins:
        lines.append(
            f"| {_p(each.forecast)} | {_p(each.observed)} | {100 * each.share:.2g} % "
            f"| {100 * each.failures:.1f} % | {each.drawn} |"
        )
    return "\n".join(lines)


def _p(p: float) -> str:
    return f"{100 * p:.3g} %"
