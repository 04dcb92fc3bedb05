"""What the web and other readers stand on: a server that leads, one that follows, or a journal file look the same from here.

Owns the shape of asking, of requests, and of being told that something changed. Everything runs on the server's event loop,
so nothing here may block for long: one answer looks at one page of a list.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from keepstep.core.access import Principal
from keepstep.core.decision import Entry
from keepstep.core.mentions import subjects
from keepstep.server.desk import Desk
from keepstep.server.meters import Meters
from keepstep.wire.requests import Accepted, Request


class NoLeader(ConnectionError):
    """Nobody leads now, or the leader cannot be reached: the request was not taken. It may be tried again."""


class KeyReused(ValueError):
    """The idempotency key was used for another request."""


class Change(Struct, frozen=True, kw_only=True):
    """Something is in the journal that was not."""

    seq: int
    """Newest entry."""
    subjects: tuple[str, ...]
    """What the new entries are about, see core.mentions; bounded. Empty: too many to say."""


class Site(Protocol):
    @property
    def leads(self) -> bool: ...

    @property
    def is_led(self) -> bool:
        """False: nobody leads, as far as this server knows. What it shows is as old as the journal, and nothing is decided."""
        ...

    @property
    def identity(self) -> str:
        """Names this life of the server."""
        ...

    @property
    def meters(self) -> Meters:
        """The server's own figures; they begin anew with each spell of leading."""
        ...

    def desk(self) -> Desk:
        """As of now. Not to be kept over an ``await``."""
        ...

    async def submit(self, request: Request, by: Principal, key: str = "") -> Accepted:
        """Durable when it returns. ``key``: the same one with the same request does nothing a second time.

        Raises requests.Forbidden, desk.UnknownSubject, requests.Conflict, ValueError (wrong input), KeyReused, NoLeader.
        """
        ...

    def note_refusal(self, who: str, what: str, why: str) -> None:
        """For the journal; equal ones within a minute become one fact."""
        ...

    def changes(self) -> AsyncIterator[Change]:
        """From now on. A slow reader gets fewer and wider ones, never old ones."""
        ...


class Bulletin:
    """Tells any number of readers that entries were kept. Holds one pending change for each, however slow it is."""

    SUBJECTS_MAX = 256

    def __init__(self) -> None:
        self._readers: dict[asyncio.Event, dict[str, None]] = {}
        self._seq = 0

    def publish(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        self._seq = entries[-1].seq
        about = dict.fromkeys(s for entry in entries for s in subjects(entry.record)) if self._readers else {}
        for event, pending in self._readers.items():
            pending.update(about)
            event.set()

    async def changes(self) -> AsyncIterator[Change]:
        event: asyncio.Event = asyncio.Event()
        pending: dict[str, None] = {}
        self._readers[event] = pending
        try:
            while True:
                await event.wait()
                event.clear()
                about = tuple(pending) if len(pending) <= self.SUBJECTS_MAX else ()
                pending.clear()
                yield Change(seq=self._seq, subjects=about)
        finally:
            del self._readers[event]
