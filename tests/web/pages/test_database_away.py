"""The database is away at 3 a.m.: what the server has in memory is shown, with a word on what is missing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import httpx
import pytest
from tests.web.site import OWNER_TOKEN

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.core.decision import Entry
from keepstep.ports import JournalUnavailable, Page

SAID = "cannot read the journal PostgreSQL database fleet: &lt;connection&gt; refused"


def refuse() -> Any:
    raise JournalUnavailable("cannot read the journal PostgreSQL database fleet: <connection> refused")


class AwayArchive(MemoryArchive):
    def list(
        self, kind: Literal["incident", "job", "fault"], where: Mapping[str, str] = {}, *, cursor: str = "",
        limit: int = 100, since_s: float = 0.0, until_s: float | None = None,
    ) -> Page:  # fmt: skip
        return refuse()

    def get(self, kind: Literal["incident", "job", "fault"], id: str) -> bytes | None:
        return refuse()

    def records(self, kind: Any, since_s: float = 0.0, until_s: float | None = None) -> Any:
        return refuse()


class AwayJournal(MemoryJournal):
    def mentioning(self, subjects_wanted: Sequence[str], *, before: int | None = None, limit: int = 100) -> list[Entry]:
        return refuse()


@pytest.fixture
def get(served: Any) -> Callable[[str], httpx.Response]:
    served.rig.books.archive = AwayArchive()
    served.rig.site._journal = AwayJournal()

    def ask(path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {OWNER_TOKEN}", "Accept": "text/html"}
        return httpx.get(served.url + path, headers=headers, timeout=120.0)

    return ask


def test_what_goes_on_is_shown_and_what_is_missing_is_said(get: Callable[[str], httpx.Response]) -> None:
    for path, shows in {
        "/": "blue-1", "/incidents": "inc-0005", "/incidents/inc-0005": "blue-1", "/jobs": "blue-1", "/jobs/job": "n0",
        "/fleet/nodes/n1": "n1", "/fleet/devices/n1/0": "n1-gpu0", "/find?q=n1": "n1-gpu0",
    }.items():  # fmt: skip
        answer = get(path)
        assert answer.status_code == 200, (path, answer.text[:500])
        assert shows in answer.text and f"The database cannot be read ({SAID})" in answer.text, path


def test_what_may_be_over_is_not_said_not_to_be(get: Callable[[str], httpx.Response]) -> None:
    for path, said in {
        "/incidents/inc-0999": "there is no incident",
        "/jobs/old": "there is no job",
        "/review": "no review without what is over",
    }.items():
        answer = get(path)
        assert answer.status_code == 503, path
        assert said in answer.text and f"The database cannot be read ({SAID})" in answer.text


def test_the_fleet_asks_no_database(get: Callable[[str], httpx.Response]) -> None:
    assert [get(path).status_code for path in ("/fleet", "/fleet/list", "/fleet/map")] == [200, 200, 200]


def test_the_api_says_it_in_its_lists_and_refuses_what_it_cannot_know(get: Callable[[str], httpx.Response]) -> None:
    jobs = get("/api/v1/jobs")
    assert jobs.status_code == 200 and jobs.json()["note"].startswith("what is over is missing: cannot read")
    for path in ("/api/v1/incidents/inc-0999", "/api/v1/journal", "/review/export"):
        refused = get(path)
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json"), path
        assert "refused" in refused.json()["detail"]
