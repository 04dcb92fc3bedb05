"""Whoever sees little, uses no pointer, or looks at a phone: structure, names, contrast, focus, width; in both themes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.web.pages.conftest import sign_in, width_on_a_phone

AUDIT = (Path(__file__).parent / "audit.js").read_text()
VIEWS = (
    "/", "/incidents", "/incidents/inc-0003", "/incidents/inc-0005", "/jobs", "/jobs/job", "/fleet", "/fleet/list",
    "/fleet/nodes/n1", "/fleet/devices/n1/0", "/review", "/find?q=n1", "/jobs/none",
)  # fmt: skip
NAMED = {
    "link", "button", "textbox", "searchbox", "combobox", "radio", "checkbox", "img", "image", "meter", "navigation", "region",
    "search", "table", "dialog", "application", "Date",
}  # fmt: skip


@pytest.fixture(scope="module")
def seat(windows: Any, small: Any) -> Any:
    """One page for all of them."""
    context = windows(reduced_motion="reduce")
    page = context.new_page()
    sign_in(context, small.url)
    yield page
    context.close()


@pytest.mark.parametrize("path", VIEWS)
def test_a_view_can_be_used_by_everybody(small: Any, seat: Any, path: str) -> None:
    seat.set_viewport_size({"width": 1280, "height": 900})
    seat.goto(small.url + path)
    seat.wait_for_selector("#live[data-live=live]")
    for details in seat.query_selector_all("main details"):
        details.evaluate("d => { d.open = true; }")
    complaints = [f"light: {x}" for x in _in_theme(seat, "light")]
    complaints += [f"dark: {x}" for x in _in_theme(seat, "dark") if "contrast" in x]
    complaints += _nameless(seat)
    width = width_on_a_phone(seat)
    complaints += [f"a phone of 390 pixels must scroll to {width}"] if width > 390 else []
    assert complaints == []


@pytest.fixture
def still(seat: Any) -> Any:
    """The page, without updates: they would take away what a test has put there."""
    seat.route("**/*fragment=1*", lambda route: route.abort())
    yield seat
    seat.unroute("**/*fragment=1*")


def test_the_audit_finds_what_is_wrong(small: Any, still: Any) -> None:
    still.goto(f"{small.url}/jobs")
    still.evaluate(
        """() => {
          const main = document.getElementById("main");
          main.insertAdjacentHTML("beforeend", "<h4>deep</h4><table><tr><th>x</th></tr></table><img src='/static/keepstep.svg'>"
            + "<p id='faint'>faint</p><button id='find' aria-describedby='nowhere'></button><b tabindex='2'>first</b>");
          document.getElementById("faint").style.color = "rgb(190, 190, 190)";
        }"""
    )
    told = " ".join([*_in_theme(still, "light"), *_nameless(still)])
    for word in (
        "a level of headings", "no caption", "no scope", "without words", "contrast", "nowhere", "find is there twice",
        "order of focus", "a button has no name",
    ):  # fmt: skip
        assert word in told, word


def _in_theme(page: Any, theme: str) -> list[str]:
    page.evaluate("t => { document.documentElement.dataset.theme = t; }", theme)
    return list(page.evaluate(AUDIT))


def _nameless(page: Any) -> list[str]:
    """From the tree that a screen reader gets: whatever can be used, and every picture, has a name."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    return [
        f"a {node['role']['value']} has no name: {node.get('nodeId')}"
        for node in nodes
        if not node.get("ignored")
        and node.get("role", {}).get("value") in NAMED
        and not str(node.get("name", {}).get("value", "")).strip()
    ]


def test_the_focus_goes_through_a_page_in_order_and_can_be_seen(small: Any, visit: Callable[..., Any]) -> None:
    page = visit(small)
    page.wait_for_selector("#live[data-live=live]")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0, "the skip link is in sight"
    seen: list[int] = []
    for _ in range(30):
        page.keyboard.press("Tab")
        place, outline = page.evaluate(
            """() => [document.activeElement === document.body ? -1
                        : [...document.querySelectorAll('*')].indexOf(document.activeElement),
                      getComputedStyle(document.activeElement).outlineStyle]"""
        )
        if place < 0:
            break
        seen.append(place)
        assert outline != "none"
    assert seen == sorted(seen) and len(seen) > 15


def test_the_skip_link_leads_to_the_content(small: Any, visit: Callable[..., Any]) -> None:
    page = visit(small)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#main:focus")


def test_the_dialog_holds_the_focus_and_has_a_name(small: Any, visit: Callable[..., Any]) -> None:
    page = visit(small)
    page.wait_for_selector("#live[data-live=live]")
    page.click("button[data-post$='/deny']")
    assert page.get_by_role("dialog", name="Deny what inc-0005 asks for?").count() == 1
    for _ in range(5):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    for theme in ("light", "dark"):
        assert [x for x in _in_theme(page, theme) if "contrast" in x] == []
