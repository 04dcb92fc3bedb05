"""Answers that read the database, off the event loop. Owns how an answer waits for a read; knows no question.

An answer is made of the books, which are the loop's, and of reads of the database, which may take long or hang. So it is begun;
where it needs a read it is left, the read is made in a thread, and the answer is made anew with what was read, on the books as
they are by then. A database that answered once is asked at hand for what is quick; one that did not is not asked again.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from keepstep.core.decision import Entry
from keepstep.ports import Archive, Journal, JournalCorrupt, JournalUnavailable, Page
from keepstep.server.desk import Desk

Answer = TypeVar("Answer")
Kind = Literal["incident", "job", "fault"]
READS_MAX = 16
"""The books may change so that an answer asks for something else each time: then the last try is made on the loop."""


async def answer_aside(
    desk: Callable[[], Desk], make: Callable[[Desk], Answer], away: Callable[[JournalUnavailable], None] | None = None
) -> Answer:
    """``make(desk())``. Raises what ``make`` raises, of the database's errors too; ``away`` is told instead that the database
    cannot be read, and the answer is made as if nothing were in it."""
    reads = _Reads(away)
    for _ in range(READS_MAX):
        looked = desk()
        looked.archive = _Archive(looked.archive, reads)
        if looked.journal is not None:
            looked.journal = cast(Journal, _Journal(looked.journal, reads))
        try:
            return make(looked)
        except _NotYet as wanted:
            await reads.make(wanted)
    return make(desk())


class _NotYet(BaseException):
    """Out of an answer that needs this read. No handler of the answer's is to take it for a failure."""

    def __init__(self, asked: Hashable, read: Callable[[], Any]) -> None:
        self.asked, self.read = asked, read


class _Reads:
    """What was read for one answer."""

    def __init__(self, tell_away: Callable[[JournalUnavailable], None] | None) -> None:
        self._tell_away = tell_away
        self._found: dict[Hashable, Any] = {}
        self._refused: dict[Hashable, Exception] = {}
        self._away: JournalUnavailable | None = None

    async def make(self, wanted: _NotYet) -> None:
        try:
            self._found[wanted.asked] = await asyncio.to_thread(wanted.read)
        except JournalUnavailable as error:
            self._away = error
        except (ValueError, JournalCorrupt) as error:  # the answer's to handle, where it asked
            self._refused[wanted.asked] = error

    def of(self, asked: Hashable, read: Callable[[], Answer], nothing: Answer, *, quick: bool = True) -> Answer:
        try:
            return self._of(asked, read, quick)
        except JournalUnavailable as error:
            if self._tell_away is None:
                raise
            self._tell_away(error)
            return nothing

    def _of(self, asked: Hashable, read: Callable[[], Answer], quick: bool) -> Answer:
        if asked in self._found:
            return cast(Answer, self._found[asked])
        if asked in self._refused:
            raise self._refused[asked]
        if self._away is not None:
            raise self._away
        if quick and self._found:
            return read()
        raise _NotYet(asked, read)


class _Archive:
    def __init__(self, archive: Archive, reads: _Reads) -> None:
        self._archive, self._reads = archive, reads
        self.complete_to, self.records, self.put = archive.complete_to, archive.records, archive.put

    def list(
        self, kind: Kind, where: Mapping[str, str] = {}, *, cursor: str = "", limit: int = 100,
        since_s: float = 0.0, until_s: float | None = None,
    ) -> Page:  # fmt: skip
        """It counts all that fit, and words are looked for in each."""
        asked = (kind, tuple(sorted(where.items())), cursor, limit, since_s, until_s)
        return self._reads.of(
            asked,
            lambda: self._archive.list(kind, where, cursor=cursor, limit=limit, since_s=since_s, until_s=until_s),
            Page(records=()),
            quick=False,
        )

    def get(self, kind: Kind, id: str) -> bytes | None:
        return self._reads.of((kind, id), lambda: self._archive.get(kind, id), None)


class _Journal:
    """As far as questions ask it."""

    def __init__(self, journal: Journal, reads: _Reads) -> None:
        self._journal, self._reads = journal, reads

    def first(self) -> int:
        return self._reads.of("first", self._journal.first, 0)

    def last(self) -> int:
        return self._reads.of("last", self._journal.last, 0)

    def mentioning(self, subjects_wanted: Sequence[str], *, before: int | None = None, limit: int = 100) -> list[Entry]:
        asked = (tuple(subjects_wanted), before, limit)
        return self._reads.of(asked, lambda: self._journal.mentioning(subjects_wanted, before=before, limit=limit), [])
