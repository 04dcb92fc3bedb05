"""Searches of the archive that take long, off the event loop. Owns how an answer waits for one: it is begun, the search is made
in a thread, and the answer is made anew with what was found, on the books as they are by then.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from keepstep.ports import Archive, Page
from keepstep.server.desk import Desk

Answer = TypeVar("Answer")
TRIES = 3


class _NotYet(Exception):
    """Raised out of an answer: it needs this search."""

    def __init__(self, asked: tuple[Any, ...]) -> None:
        self.asked = asked


class _Ahead:
    """An archive that answers only the one search that was made ahead, and what is quick."""

    def __init__(self, archive: Archive, made: tuple[Any, ...] | None, found: Page | None) -> None:
        self._archive, self._made, self._found = archive, made, found
        self.complete_to, self.get, self.records, self.put = (
            archive.complete_to,
            archive.get,
            archive.records,
            archive.put,
        )

    def list(
        self, kind: Literal["incident", "job", "fault"], where: Mapping[str, str] = {}, *, cursor: str = "",
        limit: int = 100, since_s: float = 0.0, until_s: float | None = None,
    ) -> Page:  # fmt: skip
        asked = (kind, tuple(sorted(where.items())), cursor, limit, since_s, until_s)
        if self._found is None or asked != self._made:
            raise _NotYet(asked)
        return self._found


async def answer_ahead(desk: Callable[[], Desk], make: Callable[[Desk], Answer]) -> Answer:
    """``make(desk())``, whose searches of the archive are made in a thread. Where the books change under it too often, the
    last try is made on the loop. Raises what ``make`` and the archive raise."""
    made: tuple[Any, ...] | None = None
    found: Page | None = None
    for _ in range(TRIES):
        looked = desk()
        archive = looked.archive
        looked.archive = _Ahead(archive, made, found)
        try:
            return make(looked)
        except _NotYet as wanted:
            made = wanted.asked
            found = await asyncio.to_thread(_search, archive, made)
    return make(desk())


def _search(archive: Archive, asked: tuple[Any, ...]) -> Page:
    kind, where, cursor, limit, since_s, until_s = asked
    return archive.list(kind, dict(where), cursor=cursor, limit=limit, since_s=since_s, until_s=until_s)
