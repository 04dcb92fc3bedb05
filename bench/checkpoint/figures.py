"""Figures of a comparison: what was taken in turns in one run, its ratios, and the table. Owns no measurement."""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Act = Callable[[], float]
"""Does one thing and returns the seconds that count."""


def timed(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def interleave(acts: Mapping[str, Act], repetitions: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Seconds of every act; in each repetition all take their turn, so that a neighbour's load meets each of them."""
    taken: dict[str, list[float]] = {name: [] for name in acts}
    for repetition in range(repetitions + warm_up):
        for name, act in acts.items():
            seconds = act()
            if repetition >= warm_up:
                taken[name].append(seconds)
    return taken


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """Repetition by repetition."""
    return [a / b for a, b in zip(of, to, strict=True)]


@dataclass
class Row:
    """One line of the table. ``goal``: bound of the median of ``ratio``; None where the line only informs."""

    what: str
    ours: str
    beside: str
    ratio: list[float]
    goal: float | None = None
    at_most: bool = True

    def is_met(self) -> bool | None:
        if self.goal is None:
            return None
        middle = statistics.median(self.ratio)
        return middle <= self.goal if self.at_most else middle >= self.goal

    def cells(self) -> list[str]:
        sign = "≤" if self.at_most else "≥"
        goal = "–" if self.goal is None else f"{sign} {self.goal:.3g}"
        met = {True: "yes", False: "**no**", None: "–"}[self.is_met()]
        return [self.what, self.ours, self.beside, show(self.ratio), goal, met]


@dataclass
class Table:
    """Rows in the order in which they were measured, and the load of the machine meanwhile."""

    rows: list[Row] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def add(self, *rows: Row) -> None:
        self.loads.append(os.getloadavg()[0])
        for row in rows:
            self.rows.append(row)
            print(" | ".join(row.cells()), flush=True)

    def render(self) -> str:
        head = "| what | ours | beside it | ratio | goal | met |\n" + "|" + "---|" * 6
        return "\n".join([head, *("| " + " | ".join(row.cells()) + " |" for row in self.rows)])


def show(values: Sequence[float], unit: str = "") -> str:
    """Median, with minimum and maximum where there are several."""
    middle = f"{statistics.median(values):.3g}"
    spread = f" ({min(values):.3g}–{max(values):.3g})" if len(values) > 1 else ""
    return middle + unit + spread


def rate(size_bytes: int, seconds: Sequence[float]) -> str:
    return show([size_bytes / each / 1e9 for each in seconds], " GB/s")


def duration(seconds: Sequence[float]) -> str:
    if statistics.median(seconds) < 1:
        return show([each * 1e3 for each in seconds], " ms")
    return show(seconds, " s")
