"""Small plots as SVG text: lines, bars, columns, stacked bars, histograms, waterfalls. Pure; owns their layout.

The dashboard puts them into its pages, reports carry them inside. STYLE is their CSS, see drawing.py.
"""

import math
from collections.abc import Sequence
from html import escape

from msgspec import Struct

from keepstep.review.drawing import (
    COLOURS,
    DASHES,
    LEAST_SPAN,
    STYLE,
    WIDTH,
    Kind,
    element,
    fill,
    label,
    legend,
    name_of,
    nothing,
    patterns,
    picture,
    rule,
    text,
    ticks,
)
from keepstep.review.wording import duration, number

__all__ = ("STYLE", "Axes", "Mark", "Series", "Span", "bars", "columns", "histogram", "line", "stacked", "waterfall")

_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 14.0, 26.0
_NAMES = 190.0
_ROW = 22.0


class Series(Struct, frozen=True):
    name: str
    points: tuple[tuple[float, float], ...]


class Mark(Struct, frozen=True):
    """A vertical line with a word."""

    x: float
    text: str


class Span(Struct, frozen=True):
    """One row of a waterfall. Times are seconds since whatever all rows count from."""

    name: str
    start: float
    end: float
    note: str = ""


class Axes(Struct, frozen=True, kw_only=True):
    x: str = ""
    y: str = ""
    x_kind: Kind = "number"
    y_kind: Kind = "number"
    from_zero: bool = True
    """Whether the y axis begins at nought."""


PLAIN = Axes()


class _Frame(Struct, frozen=True, kw_only=True):
    """Where values lie in the picture."""

    low: tuple[float, float]
    high: tuple[float, float]
    height: float
    width: int = WIDTH

    def x(self, value: float) -> float:
        return _LEFT + (self.width - _LEFT - _RIGHT) * (value - self.low[0]) / (self.high[0] - self.low[0])

    def y(self, value: float) -> float:
        bottom = self.height - _BOTTOM
        return bottom - (bottom - _TOP) * (value - self.low[1]) / (self.high[1] - self.low[1])


# ---- lines


def line(
    title: str, desc: str, series: Sequence[Series], *, axes: Axes = PLAIN, marks: Sequence[Mark] = (), width: int = WIDTH
) -> str:  # fmt: skip
    """Values that are not finite are gaps."""
    points = [p for one in series for p in one.points if math.isfinite(p[0]) and math.isfinite(p[1])]
    if not points:
        return nothing(title, desc)
    frame = _frame(points, marks, axes, width)
    body = [*_axes(frame, axes)]
    for index, one in enumerate(series):
        body.append(_path(frame, one, index))
    body += [_mark(frame, mark, row) for row, mark in enumerate(marks)]
    bottom = frame.height
    if len(series) > 1:
        key, bottom = _line_legend([one.name for one in series], frame.height + 10, width)
        body.append(key)
    return picture(title, desc, bottom, body, width)


def _frame(points: Sequence[tuple[float, float]], marks: Sequence[Mark], axes: Axes, width: int) -> _Frame:
    xs, ys = [p[0] for p in points] + [mark.x for mark in marks], [p[1] for p in points]
    low, high = min(ys), max(ys)
    if axes.from_zero:
        low, high = min(0.0, low), max(0.0, high)
    if high - low < LEAST_SPAN:
        high = low + max(abs(low), 1.0)
    margin = (high - low) * 0.06
    left, right = min(xs), max(xs)
    if right - left < LEAST_SPAN:
        left, right = left - 0.5, right + 0.5
    low = low if axes.from_zero and low == 0 else low - margin
    return _Frame(low=(left, low), high=(right, high + margin), height=240.0, width=width)


def _axes(frame: _Frame, axes: Axes) -> list[str]:
    bottom, right = frame.height - _BOTTOM, frame.width - _RIGHT
    body = []
    for value in ticks(frame.low[1], frame.high[1], 4, axes.y_kind):
        y = frame.y(value)
        body.append(rule(_LEFT, y, right, y, "kp-grid"))
        body.append(text(_LEFT - 6, y + 4, label(value, axes.y_kind), "end", quiet=True))
    for value in ticks(frame.low[0], frame.high[0], _fitting(6, frame.width), axes.x_kind):
        x = frame.x(value)
        body.append(rule(x, bottom, x, bottom + 4, "kp-axis"))
        anchor = "end" if x > frame.width - 50 else "middle"
        body.append(text(x, bottom + 17, label(value, axes.x_kind), anchor, quiet=True))
    body.append(rule(_LEFT, bottom, right, bottom, "kp-axis"))
    if axes.y:
        body.append(text(2, _TOP - 3, axes.y, quiet=True))
    if axes.x:
        body.append(text(right, bottom - 5, axes.x, "end", quiet=True))
    return body


def _fitting(ticks_wanted: int, width: int) -> int:
    return max(2, ticks_wanted * width // WIDTH)


def _path(frame: _Frame, series: Series, index: int) -> str:
    steps, pen = [], "M"
    for x, y in series.points:
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        steps.append(f"{pen}{frame.x(x):.1f} {frame.y(y):.1f}")
        pen = "L"
    colour = index % len(COLOURS)
    lone = [element("circle", cx=frame.x(x), cy=frame.y(y), r=3, fill=COLOURS[colour], class_=f"kp-f{colour}")
            for x, y in series.points if len(series.points) <= 12 and math.isfinite(x) and math.isfinite(y)]  # fmt: skip
    return element("path", d="".join(steps), **_stroke(colour)) + "".join(lone)


def _stroke(colour: int) -> dict[str, object]:
    return {
        "fill": "none",
        "stroke": COLOURS[colour],
        "stroke_width": 2,
        "stroke_dasharray": DASHES[colour],
        "class_": f"kp-s{colour}",
    }


def _mark(frame: _Frame, mark: Mark, row: int) -> str:
    x = frame.x(mark.x)
    side, shift = ("end", -4) if x > frame.width * 0.75 else ("start", 4)
    words = text(x + shift, _TOP + 10 + 14 * (row % 4), mark.text, side, limit=40)
    return rule(x, _TOP, x, frame.height - _BOTTOM, "kp-mark") + words


def _line_legend(names: Sequence[str], top: float, width: int) -> tuple[str, float]:
    made, x = [], 8.0
    for index, words in enumerate(names):
        if x + 40 + 7.2 * min(len(words), 30) > width and x > 8:
            x, top = 8.0, top + 18
        made.append(element("path", d=f"M{x:.0f} {top - 4:.0f}h22", **_stroke(index % len(COLOURS))))
        made.append(text(x + 28, top, words, limit=30))
        x += 40 + 7.2 * min(len(words), 30)
    return "".join(made), top + 10


# ---- bars


def bars(title: str, desc: str, items: Sequence[tuple[str, float]], *, unit: str = "") -> str:
    """Horizontal, one a row, with the value beside it."""
    return stacked(title, desc, [(name, {"": value}) for name, value in items], unit=unit)


def stacked(title: str, desc: str, rows: Sequence[tuple[str, dict[str, float]]], *, unit: str = "") -> str:
    """Horizontal; the parts of a row one after another, and their sum beside it. Values are not negative."""
    if not rows:
        return nothing(title, desc)
    name = name_of(title, desc)
    parts = list(dict.fromkeys(part for _, values in rows for part in values))
    most = max(math.fsum(values.values()) for _, values in rows)
    most = most if most > LEAST_SPAN else 1.0
    room = WIDTH - _NAMES - 110
    body, y = [patterns(name, len(parts))], 8.0
    for words, values in rows:
        body.append(text(_NAMES - 8, y + 13, words, "end", limit=28))
        x = _NAMES
        for part, value in values.items():
            width = room * value / most
            told = f"{words}{', ' + part if part else ''}: {_with(value, unit)}"
            body.append(_block(name, parts.index(part), (x, y, width, _ROW - 6), told))
            x += width
        body.append(text(x + 6, y + 13, _with(math.fsum(values.values()), unit), quiet=True))
        y += _ROW
    if parts != [""]:
        key, y = legend(name, parts, y + 14)
        body.append(key)
    return picture(title, desc, y + 4, body)


def _with(value: float, unit: str) -> str:
    return duration(value) if unit == "s" else f"{number(value)} {unit}".strip()


def _block(name: str, index: int, box: tuple[float, float, float, float], told: str) -> str:
    x, y, width, height = box
    inner = element("title", escape(told))
    return element("rect", inner, x=x, y=y, width=max(0.5, width), height=max(0.5, height), fill=fill(name, index))


def columns(title: str, desc: str, items: Sequence[tuple[str, float]], *, unit: str = "") -> str:
    """Vertical; for values in an order, such as days."""
    if not items:
        return nothing(title, desc)
    name = name_of(title, desc)
    most = max(value for _, value in items)
    most = most if most > LEAST_SPAN else 1.0
    frame = _Frame(low=(0.0, 0.0), high=(float(len(items)), most * 1.08), height=210.0)
    body = [patterns(name, 1)]
    for value in ticks(0.0, most, 4, "seconds" if unit == "s" else "number"):
        y = frame.y(value)
        body.append(rule(_LEFT, y, WIDTH - _RIGHT, y, "kp-grid"))
        body.append(text(_LEFT - 6, y + 4, _with(value, unit) if unit == "s" else number(value), "end", quiet=True))
    gap = 0.15 if len(items) <= 60 else 0.0
    every = max(1, math.ceil(len(items) * max(len(words) for words, _ in items) * 7.4 / (WIDTH - _LEFT)))
    for index, (words, value) in enumerate(items):
        left, right, top = frame.x(index + gap), frame.x(index + 1 - gap), frame.y(value)
        box = (left, top, right - left, frame.height - _BOTTOM - top)
        body.append(_block(name, 0, box, f"{words}: {_with(value, unit)}"))
        if index % every == 0:
            body.append(text((left + right) / 2, frame.height - _BOTTOM + 17, words, "middle", quiet=True))
    body.append(rule(_LEFT, frame.height - _BOTTOM, WIDTH - _RIGHT, frame.height - _BOTTOM, "kp-axis"))
    if unit and unit != "s":
        body.append(text(2, _TOP - 3, unit, quiet=True))
    return picture(title, desc, frame.height, body)


def histogram(title: str, desc: str, counts: Sequence[tuple[str, int]], *, unit: str = "") -> str:
    """``counts``: (name of the bin, how many)."""
    return columns(title, desc, [(words, float(count)) for words, count in counts], unit=unit)


def waterfall(title: str, desc: str, spans: Sequence[Span], *, width: int = WIDTH) -> str:
    """What came after what, and how long each took: one row each, on one axis of time."""
    if not spans:
        return nothing(title, desc)
    name = name_of(title, desc, width)
    low, high = min(0.0, *(x.start for x in spans)), max(0.001, *(x.end for x in spans))
    names = min(_NAMES, 0.3 * width)
    room = width - names - 90

    def at(value: float) -> float:
        return names + room * (value - low) / (high - low)

    bottom = 8 + _ROW * len(spans)
    body = [patterns(name, len(COLOURS))]
    for value in ticks(low, high, _fitting(5, width), "time"):
        body.append(rule(at(value), 4, at(value), bottom, "kp-grid"))
        body.append(text(at(value), bottom + 15, label(value, "time"), "middle", quiet=True))
    for row, span in enumerate(spans):
        y = 8 + _ROW * row
        body.append(text(names - 8, y + 13, span.name, "end", limit=int(names / 6.7)))
        told = f"{span.name}: {duration(span.end - span.start)}" + (f", {span.note}" if span.note else "")
        box = (at(span.start), y, at(span.end) - at(span.start), _ROW - 6)
        body.append(_block(name, row % len(COLOURS), box, told))
        body.append(text(at(span.end) + 6, y + 13, duration(span.end - span.start), quiet=True))
    return picture(title, desc, bottom + 24, body, width)
