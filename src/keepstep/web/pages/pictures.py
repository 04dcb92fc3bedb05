"""Plots of a review, chosen from its figures. Owns which there are; they are drawn by ``keepstep.review.plots``."""

from collections.abc import Iterator

from msgspec import Struct

from keepstep.review import plots
from keepstep.review.figures import Review
from keepstep.review.wording import duration
from keepstep.web.pages.units import utc, words

LOSSES_SHOWN = 12
GPU_H = "GPU-h"


class Picture(Struct, frozen=True, kw_only=True):
    """``svg`` is empty where there is nothing to draw."""

    title: str
    svg: str = ""
    narrow: str = ""
    """The same for a phone; empty where that scrolls the wide one."""


def pictures(review: Review) -> dict[str, Picture]:
    """By the name under which the page asks for them."""
    return dict((*_of_cost(review), *_of_recovery(review), *_of_trends(review)))


def _of_cost(review: Review) -> Iterator[tuple[str, Picture]]:
    parts: dict[str, dict[str, float]] = {}
    for bad in review.time.badput:
        parts.setdefault(words(bad.category), {})[words(bad.cause) or "any"] = bad.gpu_h
    title, desc = "Badput by cause", "GPU-hours that led nowhere, by category and cause"
    yield (
        "badput",
        Picture(title=title, svg=plots.stacked(title, desc, list(parts.items()), unit=GPU_H) if parts else ""),
    )
    for name, losses in (("cause", review.cost.by_cause), ("class", review.cost.by_class)):
        title, items = f"Lost by {name}", [(words(loss.name), loss.gpu_h) for loss in losses[:LOSSES_SHOWN]]
        drawn = plots.bars(title, "GPU-hours that incidents cost", items, unit=GPU_H) if items else ""
        yield f"by_{name}", Picture(title=title, svg=drawn)
    days = [(utc(day.start_s)[5:10], day.lost_gpu_h) for day in review.cost.by_day]
    title = "Lost by day"
    drawn = (
        plots.columns(title, "GPU-hours that incidents cost, by day (UTC)", days, unit=GPU_H) if review.cost.n else ""
    )
    yield "by_day", Picture(title=title, svg=drawn)


def _of_recovery(review: Review) -> Iterator[tuple[str, Picture]]:
    title = "Median time by stage"
    stages = [(words(s.stage), s.every.p50) for s in review.recoveries.stages if s.every.p50 is not None]
    yield (
        "stages",
        Picture(title=title, svg=plots.bars(title, "Seconds of a recovery", stages, unit="s") if stages else ""),
    )
    title, counts = "Work lost between checkpoints", review.recoveries.lost_histogram
    edges = [(f"≤ {duration(edge)}" if edge >= 0 else "more", n) for edge, n in counts]
    drawn = plots.histogram(title, "Recoveries by how much was done again", edges) if any(n for _, n in counts) else ""
    yield "lost", Picture(title=title, svg=drawn)


def _of_trends(review: Review) -> Iterator[tuple[str, Picture]]:
    saves = tuple((start_s, median_s) for start_s, median_s, _ in review.saves.by_day)
    yield "saves", _line("Checkpoint write time, median by day", saves, plots.Axes(x_kind="day", y_kind="seconds"))
    weeks = tuple((week.start_s, week.mtbf_gpu_h) for week in review.failures.weeks if week.mtbf_gpu_h is not None)
    yield "weeks", _line("GPU-hours between failures, by week", weeks, plots.Axes(x_kind="day", y=GPU_H))


def _line(title: str, points: tuple[tuple[float, float], ...], axes: plots.Axes) -> Picture:
    drawn = plots.line(title, title, [plots.Series(title, points)], axes=axes) if len(points) > 1 else ""
    return Picture(title=title, svg=drawn)
