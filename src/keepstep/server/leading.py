"""The site of a server that leads: requests become facts of its loop. Owns idempotency keys; judges nothing itself."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import msgspec

from keepstep.core.access import Principal
from keepstep.core.facts import Fact
from keepstep.core.ids import Session
from keepstep.ports import Clock, Journal
from keepstep.server.desk import Desk
from keepstep.server.hub import Hub
from keepstep.server.loop import ControlLoop
from keepstep.server.meters import Meters
from keepstep.server.refusals import WINDOW_S, Refusals
from keepstep.server.requests import fact_of
from keepstep.server.site import Change, KeyReused
from keepstep.wire.requests import Accepted, IssueToken, Request

_PREFIX = "ask-"


class LeadingSite:
    """Meets server.site.Site."""

    def __init__(self, loop: ControlLoop, hub: Hub, journal: Journal, clock: Clock) -> None:
        self._loop = loop
        self._hub = hub
        self._journal = journal
        self._clock = clock
        self._refusals = Refusals()
        self._telling: asyncio.TimerHandle | None = None
        self._asked = 0
        self._on_the_way: dict[str, Session] = {}
        """Beginning of a session's name, which is of one asker and one key -> the session whose request is not in the journal
        yet."""
        hub.act = self.submit
        hub.refused = self.note_refusal

    leads = True

    @property
    def identity(self) -> str:
        return self._hub.identity

    @property
    def meters(self) -> Meters:
        return self._loop.meters

    def desk(self) -> Desk:
        return Desk(self._loop.books, self._loop.vitals, self._clock.now_s(), self._journal)

    async def submit(self, request: Request, by: Principal, key: str = "") -> Accepted:
        books = self._loop.books
        session = self._session_of(request, by, key)
        if self._loop.acked(session):
            return Accepted(entry=0, subject=self._subject(request), repeated=True)
        fact, subject = fact_of(request, by, books, self._clock.now_s())
        prefix = session[: session.rindex("-") + 1]
        self._on_the_way[prefix] = session
        try:
            entry = await self._hub.take(fact, session)
        finally:
            self._on_the_way.pop(prefix, None)
        return Accepted(entry=entry, subject=subject)

    def _session_of(self, request: Request, by: Principal, key: str) -> Session:
        """One request with one key is one session of one report: the loop takes it once, over restarts too."""
        if not key:
            self._asked += 1
            return Session(f"{_PREFIX}{self.identity}-{self._asked}")
        # By the proof besides the name: two people may be called alike.
        asker = hashlib.blake2b(f"{by.proof}\0{by.name}\0{key}".encode(), digest_size=12).hexdigest()
        what = hashlib.blake2b(msgspec.msgpack.encode(request), digest_size=12).hexdigest()
        session = Session(f"{_PREFIX}{asker}-{what}")
        prefix = f"{_PREFIX}{asker}-"
        other = self._on_the_way.get(prefix) or self._loop.known_session(prefix)
        if other is not None and other != session:
            raise KeyReused("this idempotency key was used for another request; take a fresh one")
        return session

    def _subject(self, request: Request) -> str:
        """Of a request that was taken before."""
        if isinstance(request, IssueToken):
            return self._loop.books.registry.by_digest.get(request.digest, "")
        named = (getattr(request, name, "") for name in ("job", "resource", "subject", "id", "serial"))
        return next((name for name in named if name), "policy")

    def note_refusal(self, who: str, what: str, why: str) -> None:
        told = self._refusals.note(who, what, why, self._clock.now_s())
        if told is not None:
            self._hub.observe(told)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(WINDOW_S, self._tell_refusals)

    def _tell_refusals(self) -> None:
        self._telling = None
        self._hub.observe(*self._refusals.due(self._clock.now_s()))
        if self._refusals.pending:
            self._telling = asyncio.get_running_loop().call_later(WINDOW_S, self._tell_refusals)

    def changes(self) -> AsyncIterator[Change]:
        return self._hub.bulletin.changes()

    def report(self, *facts: Fact) -> None:
        self._hub.observe(*facts)
