"""The dashboard on a phone: what is drawn can be read without moving it, and what stands in rows stands in rows."""

from collections.abc import Callable
from typing import Any

import pytest

PHONE = {"width": 390, "height": 844}
LEGIBLE_PX = 11.0
PLOTS = """() => [...document.querySelectorAll("figure.figure")].map((figure) => {
  const drawn = [...figure.querySelectorAll("svg")].filter((svg) => svg.getClientRects().length);
  const edge = figure.getBoundingClientRect();
  const words = drawn.flatMap((svg) => [...svg.querySelectorAll("text")]).map((word) => word.getBoundingClientRect());
  return {
    drawn: drawn.length,
    scrolls: figure.scrollWidth > figure.clientWidth,
    cut: words.filter((box) => box.left < edge.left - 1 || box.right > edge.right + 1).length,
    smallest: Math.min(...words.map((box) => box.height)),
  };
})"""


@pytest.fixture
def incident(small: Any, visit: Callable[..., Any]) -> Any:
    page = visit(small, "/incidents/inc-0003", viewport=PHONE)
    page.wait_for_selector("#live[data-live=live]")
    return page


def test_the_plots_of_an_incident_fit_a_phone_and_can_be_read(incident: Any) -> None:
    plots = incident.evaluate(PLOTS)
    assert plots
    for plot in plots:
        assert (plot["drawn"], plot["scrolls"], plot["cut"]) == (1, False, 0)
        assert plot["smallest"] >= LEGIBLE_PX
    incident.set_viewport_size({"width": 1280, "height": 900})
    assert [plot["drawn"] for plot in incident.evaluate(PLOTS)] == [1] * len(plots)


def test_a_label_of_two_lines_makes_its_row_as_high(incident: Any) -> None:
    one, two = incident.evaluate(
        """() => {
          const cell = document.querySelector("table.stack td.text");
          const text = cell.textContent;
          cell.textContent = "–";
          const heights = ["What", "What was said of it then"].map((label) => {
            cell.dataset.label = label;
            return cell.offsetHeight;
          });
          cell.textContent = text;
          return heights;
        }"""
    )
    assert two > 1.5 * one
