"""What is asked while the database cannot be reached is answered from memory, as far as memory goes, and says how old it is."""

from collections.abc import Mapping
from typing import Literal

import pytest
from tests.web.site import story

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.cli import faults, incidents, jobs
from keepstep.ports import JournalUnavailable, Page
from keepstep.server.desk import Desk
from keepstep.server.queries import answer
from keepstep.server.replay import replay

AWAY = "cannot read the journal db: connection refused"
SAID = f"what is over is missing: {AWAY}; the rest is as of entry"


class AwayArchive(MemoryArchive):
    """Of a database that is away."""

    def list(
        self, kind: Literal["incident", "job", "fault"], where: Mapping[str, str] = {}, *, cursor: str = "",
        limit: int = 100, since_s: float = 0.0, until_s: float | None = None,
    ) -> Page:  # fmt: skip
        raise JournalUnavailable(AWAY)

    def get(self, kind: Literal["incident", "job", "fault"], id: str) -> bytes | None:
        raise JournalUnavailable(AWAY)


@pytest.fixture
def desk() -> Desk:
    journal = MemoryJournal()
    for at_s, record in story():
        journal.append(at_s, [record])
    books = replay(journal, MemoryArchive())
    books.archive = AwayArchive()
    return Desk(books, None, books.history.last_s + 40.0, journal)


def test_jobs_that_run_are_listed_with_a_note_of_how_old_it_is(desk: Desk) -> None:
    found = answer(desk, "jobs", {})
    assert {job.id for job in found.jobs} == set(desk.world.live_jobs)
    assert found.note.startswith(SAID) and found.note.endswith(f"entry {desk.world.seq}, 40 s old")
    assert jobs._jobs(found)[-1] == found.note


def test_so_are_open_incidents_and_faults(desk: Desk) -> None:
    found = answer(desk, "incidents", {"job": "blue-1"})
    assert [line.id for line in found.incidents] == ["inc-0005"] and found.note.startswith(SAID)
    assert incidents._incidents(found)[-1] == found.note
    found = answer(desk, "faults", {"closed": True})
    assert found.faults and found.note.startswith(SAID)
    assert faults._faults(found, "no fault")[-1] == found.note


def test_pages_go_on_and_the_archives_own_page_is_refused(desk: Desk) -> None:
    first = answer(desk, "jobs", {"limit": 1})
    second = answer(desk, "jobs", {"limit": 1, "cursor": first.next})
    assert {job.id for job in (*first.jobs, *second.jobs)} == set(desk.world.live_jobs) and second.next == ""
    with pytest.raises(JournalUnavailable, match="connection refused"):
        answer(desk, "jobs", {"live": False, "cursor": "WyJhcmNoaXZlIiwwLCJ4Il0"})
