"""What is read in the database is read beside the loop, and an answer is of the books as they are when it is sent."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import pytest
from tests.web.site import story

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.core.decision import Entry
from keepstep.ports import JournalUnavailable, Page
from keepstep.server.aside import READS_MAX, answer_aside
from keepstep.server.desk import Desk
from keepstep.server.history import Books
from keepstep.server.queries import answer
from keepstep.server.replay import replay

PATIENCE_S = 60.0
AWAY = "cannot read the journal db: connection refused"


class Medium:
    """What both of them lie in: it may stand still, or be away; and it knows who read."""

    def __init__(self) -> None:
        self.goes_on, self.is_away = threading.Event(), False
        self.goes_on.set()
        self.readers: list[threading.Thread] = []

    def read(self) -> None:
        self.readers.append(threading.current_thread())
        assert self.goes_on.wait(PATIENCE_S)
        if self.is_away:
            raise JournalUnavailable(AWAY)


class Archive(MemoryArchive):
    def __init__(self, medium: Medium) -> None:
        super().__init__()
        self.medium = medium

    def list(
        self, kind: Literal["incident", "job", "fault"], where: Mapping[str, str] = {}, *, cursor: str = "",
        limit: int = 100, since_s: float = 0.0, until_s: float | None = None,
    ) -> Page:  # fmt: skip
        self.medium.read()
        return super().list(kind, where, cursor=cursor, limit=limit, since_s=since_s, until_s=until_s)

    def get(self, kind: Literal["incident", "job", "fault"], id: str) -> bytes | None:
        self.medium.read()
        return super().get(kind, id)


class Journal(MemoryJournal):
    def __init__(self, medium: Medium) -> None:
        super().__init__()
        self.medium = medium

    def mentioning(self, subjects_wanted: Sequence[str], *, before: int | None = None, limit: int = 100) -> list[Entry]:
        self.medium.read()
        return super().mentioning(subjects_wanted, before=before, limit=limit)


class Place:
    def __init__(self) -> None:
        self.medium = Medium()
        self.journal = Journal(self.medium)
        for at_s, record in story():
            self.journal.append(at_s, [record])
        self.books: Books = replay(self.journal, Archive(self.medium))
        self.medium.readers.clear()

    def desk(self) -> Desk:
        return Desk(self.books, None, self.books.history.last_s + 40.0, self.journal)

    def ask(self, what: str, **args: Any) -> Awaitable[Any]:
        return answer_aside(self.desk, lambda desk: answer(desk, what, args))


@pytest.fixture
def place() -> Place:
    return Place()


def here(scene: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await scene()

    return asyncio.run(whole())


@pytest.mark.parametrize(
    ("what", "args"),
    [
        ("jobs", {}), ("incidents", {"q": "inc"}), ("incident", {"id": "inc-0003"}), ("postmortem", {"id": "inc-0003"}),
        ("journal", {"about": ["n1"]}), ("faults", {"closed": True}), ("resource", {"id": "device/n1/0"}),
    ],
)  # fmt: skip
def test_it_is_the_answer_that_is_made_at_hand(place: Place, what: str, args: dict[str, Any]) -> None:
    assert here(lambda: place.ask(what, **args)) == answer(place.desk(), what, args)


def test_the_loop_goes_on_while_the_database_stands_still(place: Place) -> None:
    async def scene() -> Any:
        place.medium.goes_on.clear()
        asking = asyncio.ensure_future(place.ask("incidents"))
        while not place.medium.readers:
            await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not asking.done()
        place.books.world.open_incidents.clear()
        place.medium.goes_on.set()
        return await asking

    found = here(scene)
    assert threading.main_thread() not in place.medium.readers
    assert all(line.state not in ("open", "waiting") for line in found.incidents), "of the books as they were by then"


def test_a_database_that_is_away_is_asked_once_for_an_answer(place: Place) -> None:
    place.medium.is_away = True
    with pytest.raises(JournalUnavailable, match="connection refused"):
        here(lambda: place.ask("postmortem", id="inc-0005"))
    assert len(place.medium.readers) == 1
    found = here(lambda: place.ask("jobs"))
    assert [job.id for job in found.jobs] and found.note.startswith(f"what is over is missing: {AWAY}")


def test_whoever_can_do_without_is_told_and_gets_the_rest(place: Place) -> None:
    place.medium.is_away = True
    told: list[JournalUnavailable] = []

    def make(desk: Desk) -> Any:
        return answer(desk, "postmortem", {"id": "inc-0005"}), desk.journal and desk.journal.mentioning(["n1"])

    made, entries = here(lambda: answer_aside(place.desk, make, told.append))
    assert made.record.id == "inc-0005" and entries == []
    assert told and {str(error) for error in told} == {AWAY}
    assert len(place.medium.readers) == 1


def test_what_is_wrong_with_a_question_is_for_the_answer_to_handle(place: Place) -> None:
    def make(desk: Desk) -> str:
        try:
            desk.archive.list("job", cursor="nonsense")
        except ValueError as error:
            return str(error)
        return ""

    assert "is no cursor" in here(lambda: answer_aside(place.desk, make))


def test_an_answer_that_never_asks_for_the_same_twice_is_made_in_the_end(place: Place) -> None:
    cursors = iter(range(10 * READS_MAX))

    def make(desk: Desk) -> int:
        return desk.archive.list("job", {"q": str(next(cursors))}).total

    assert here(lambda: answer_aside(place.desk, make)) == 0
    assert len(place.medium.readers) == READS_MAX + 1
