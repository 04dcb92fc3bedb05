"""Plots are well-formed, say what they show, and nothing that a caller hands in becomes markup."""

import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.review import drawing, plots
from keepstep.review.drawing import NARROW, WIDTH
from keepstep.review.plots import Axes, Mark, Series, Span

SVG = "{http://www.w3.org/2000/svg}"
EVIL = '</title><script>alert(1)</script>" onload="x'
_numbers = st.floats(allow_nan=True, allow_infinity=True)
_words = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=50)


def test_a_narrow_plot_keeps_within_its_width_and_may_stand_beside_the_wide_one() -> None:
    spans = [Span("state selected", 0.0, 700.0), Span("caught up", 700.0, 3900.0)]
    points = Series("s", tuple((60.0 * n, 1.0 + n % 3) for n in range(60)))
    wide, narrow = (
        [
            parsed(plots.waterfall("t", "d", spans, width=width)),
            parsed(plots.line("t", "d", [points, points], width=width)),
        ]
        for width in (WIDTH, NARROW)
    )
    for small, large in zip(narrow, wide, strict=True):
        assert small.get("viewBox", "").startswith(f"0 0 {NARROW} ")
        assert not {x.get("id") for x in small.iter() if x.get("id")} & {x.get("id") for x in large.iter()}
        edges = [
            float(x.get("x2") or float(x.get("x", 0)) + float(x.get("width", 0)))
            for x in small.iter()
            if x is not small
        ]
        assert max(edges) <= NARROW
        assert len(small.findall(f"{SVG}text")) < len(large.findall(f"{SVG}text"))


def parsed(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    names = {x.get("id") for x in root.iter()}
    assert set((root.get("aria-labelledby") or "").split()) <= names
    assert not [x for x in root.iter() if x.tag.endswith("script") or "style" in x.attrib]
    assert not [key for x in root.iter() for key in x.attrib if key.startswith("on")]
    for element in root.iter():
        for key in ("x", "y", "width", "height", "x1", "x2", "y1", "y2", "cx", "cy"):
            if (value := element.get(key)) is not None:
                assert math.isfinite(float(value))
    return root


def words(root: ElementTree.Element) -> str:
    return " ".join("".join(x.itertext()) for x in root.iter(f"{SVG}text"))


def every_plot(title: str, name: str, values: list[float]) -> list[str]:
    pairs = [(name, abs(x)) for x in values if math.isfinite(x) and abs(x) < 1e12]
    return [
        plots.line(title, name, [Series(name, tuple(enumerate(values)))], marks=[Mark(0.0, name)]),
        plots.bars(title, name, pairs, unit="GPU-h"),
        plots.columns(title, name, pairs, unit="s"),
        plots.stacked(title, name, [(name, {name: value, "b": 1.0}) for _, value in pairs]),
        plots.histogram(title, name, [(name, int(value)) for _, value in pairs]),
        plots.waterfall(title, name, [Span(name, 0.0, value, name) for _, value in pairs]),
    ]


@given(_words, _words, st.lists(_numbers, max_size=8))
@settings(max_examples=40, deadline=None)
def test_anything_becomes_a_well_formed_picture(title: str, name: str, values: list[float]) -> None:
    bounded = [x for x in values if not math.isfinite(x) or abs(x) < 1e12]
    for svg in every_plot(title, name, bounded):
        assert (parsed(svg).find(f"{SVG}title").text or "") == title  # type: ignore[union-attr]


@pytest.mark.parametrize("values", [[5e-324, 5e-324], [0.0, 1e-310], [7.0, 7.0], [0.0], [-1e-320, 1e11]])
def test_numbers_that_hardly_differ(values: list[float]) -> None:
    for svg in every_plot("t", "n", values):
        parsed(svg)


def test_what_is_handed_in_is_text() -> None:
    for svg in every_plot(EVIL, EVIL, [1.0, 2.0]):
        assert "<script" not in svg
        parsed(svg)


def test_values_are_told_beside_the_bars() -> None:
    told = words(parsed(plots.stacked("t", "d", [("r1", {"a": 2.0, "b": 3.0})], unit="GPU-h")))
    assert "5 GPU-h" in told and "a" in told and "b" in told


def test_colour_is_not_the_only_difference() -> None:
    root = parsed(plots.stacked("t", "d", [("r", {f"p{i}": 1.0 for i in range(6)})]))
    patterns = [ElementTree.tostring(x[-1]) for x in root.iter(f"{SVG}pattern")]
    assert len(patterns) == 6 and len(set(patterns)) == 6
    lines = parsed(plots.line("t", "d", [Series(f"s{i}", ((0, i), (1, i))) for i in range(4)]))
    dashes = {x.get("stroke-dasharray") for x in lines.iter(f"{SVG}path")}
    assert len(dashes) == 4


def test_a_gap_is_not_drawn_over() -> None:
    root = parsed(plots.line("t", "d", [Series("s", ((0, 1), (1, math.nan), (2, 1), (3, 2)))]))
    (path,) = [x.get("d") or "" for x in root.iter(f"{SVG}path")]
    assert path.count("M") == 2


@pytest.mark.parametrize(
    ("low", "high", "kind", "told"),
    [
        (0, 10, "number", ["0", "2", "4", "6", "8", "10"]),
        (0, 0.04, "share", ["0 %", "1 %", "2 %", "3 %", "4 %"]),
        (0, 100, "seconds", ["0", "30 s", "1 min", "1 min 30 s"]),
        (1_790_000_000, 1_790_400_000, "day", ["2026-09-22", "2026-09-23", "2026-09-24", "2026-09-25", "2026-09-26"]),
    ],
)
def test_ticks_are_round(low: float, high: float, kind: drawing.Kind, told: list[str]) -> None:
    assert [drawing.label(x, kind) for x in drawing.ticks(low, high, 5, kind)] == told


def test_the_style_themes_by_custom_properties() -> None:
    assert all(f"var(--kp-{i}," in plots.STYLE for i in range(8)) and Axes().from_zero
