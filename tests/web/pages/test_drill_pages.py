"""Drills in the dashboard: begun from the page of a job, told on those of the incident and of the review."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.core.build import JOB
from tests.core.test_drills import begin, kill, steady
from tests.web.pages.conftest import _serve, width_on_a_phone
from tests.web.served import WAIT_S
from tests.web.site import OWNER_TOKEN, START_S, running_site

from keepstep.core import facts as f
from keepstep.core.access import OWNER, Principal, Role
from keepstep.web.pages import acts

AUDIT = (Path(__file__).parent / "audit.js").read_text()


def drilled_story() -> Any:
    """One drill that passed, on a job that is steady again."""
    plane = steady(spares=0)
    plane.now_s = max(plane.now_s, START_S)
    begin(plane)
    plane.now_s += 0.25
    kill(plane)
    plane.recover()
    plane.wait(60.0)
    return plane


@pytest.fixture
def drilled(loop: Any) -> Iterator[Any]:
    plane = drilled_story()
    yield from _serve(loop, lambda: running_site(plane.journal, now_s=plane.now_s))


def test_one_is_begun_from_the_page_of_its_job(drilled: Any, visit: Callable[..., Any]) -> None:
    page = visit(drilled, "/jobs/job", token=drilled.token("olga", Role.OPERATOR))
    page.wait_for_selector("#live[data-live=live]")
    page.click("#begin-drill summary")
    assert "Not now: job job could not go on without a node" in page.inner_text("section[aria-labelledby=s-drills]")
    page.click("button:has-text('Begin drill kill-rank')")
    said = page.inner_text("#confirm-follows")
    assert (
        "SIGKILL to one rank. The server picks" in said
        and "its 4 ranks on 2 nodes stop" in said
        and "newest checkpoint is step 10" in said
    )
    page.click("#confirm-yes")
    page.wait_for_selector("tr[data-key=drill-0002] .s-injected")
    (entry,) = drilled.rig.journal.mentioning(["fact:DrillRequested"], limit=1)
    assert entry.record == f.DrillRequested(job=JOB, kind="kill-rank", by="olga")
    assert "drill-0002 is not over" in page.inner_text("section[aria-labelledby=s-drills]")
    assert page.evaluate("document.getElementById('begin-drill').open"), "an update shut it"
    for path in ("/jobs/job", "/incidents/inc-0002", "/review"):
        page.goto(drilled.url + path)
        page.wait_for_selector("#s-drills, #s-drill")
        for details in page.query_selector_all("main details"):
            details.evaluate("d => { d.open = true; }")
        assert page.evaluate(AUDIT) == [], path
    assert width_on_a_phone(page) <= 390


def test_what_was_rehearsed_is_told_as_such(drilled: Any) -> None:
    headers = {"Authorization": f"Bearer {OWNER_TOKEN}", "Accept": "text/html"}
    with httpx.Client(base_url=drilled.url, headers=headers, timeout=WAIT_S) as http:
        incident = http.get("/incidents/inc-0002").text
        assert "Nothing failed by itself: drill-0001 (kill-rank against rank 2 on n1), asked for by ann." in incident
        assert incident.count('class="mark good"') == 6 and "noticed after 0.25 s" in incident
        assert "Passed: 1 of 1" in http.get("/review").text
        assert "6 of 6 good" in http.get("/jobs/job").text
        for path in ("/incidents", "/jobs/job"):
            assert 'inc-0002</a> <span class="muted">drill</span>' in http.get(path).text


def test_who_may_not_and_where_not_is_said() -> None:
    plane = steady(labels={"drills": "never"})
    kill_rank, _, lose_node = acts.of_drills(plane.job, plane.world, OWNER, 14)
    assert "allows no drills: it has the label drills=never" in kill_rank.not_now
    assert any("at most about 4 steps of work are done again" in words for words in kill_rank.follows)
    assert kill_rank.body == {"job": "job", "kind": "kill-rank"} and kill_rank.weight == "danger"
    assert "one of its nodes" in lose_node.follows[0]
    (refused, *_) = acts.of_drills(plane.job, plane.world, Principal(name="v", role=Role.VIEWER), 14)
    assert "may not drill" in refused.refused
