"""The site of a server that leads: requests become facts of its loop. Owns idempotency keys; judges nothing itself."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import msgspec

from keepstep.core.access import Principal
from keepstep.core.ids import Session
from keepstep.ports import Clock, Journal
from keepstep.server.desk import Desk
from keepstep.server.drill_queries import drill_asked_for
from keepstep.server.hub import Hub
from keepstep.server.loop import SESSIONS_MAX, ControlLoop
from keepstep.server.meters import Meters
from keepstep.server.refusals import WINDOW_S, Refusals
from keepstep.server.requests import Conflict, fact_of
from keepstep.server.site import Change, KeyReused
from keepstep.wire.requests import Accepted, BeginDrill, IssueToken, Request

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
        self._of_key = {_key_of(session): session for session in loop.sessions(_PREFIX)}
        """What one asker's key was used for: in the journal, or on the way to it."""
        self._beginning: set[Session] = set()
        """Requests for a drill on their way to the journal."""
        hub.act = self.submit
        hub.refused = self.note_refusal

    leads = True
    is_led = True

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
            return Accepted(entry=0, subject=self._subject(request, by), repeated=True)
        fact, subject = fact_of(request, by, books, self._clock.now_s())
        if key:
            self._of_key[_key_of(session)] = session
            if len(self._of_key) > SESSIONS_MAX:
                del self._of_key[next(iter(self._of_key))]
        with self._alone(request, session):
            entry = await self._hub.take(fact, session)
        return Accepted(entry=entry, subject=subject)

    @contextmanager
    def _alone(self, request: Request, session: Session) -> Iterator[None]:
        """Of two drills that are asked for at once, the books know of neither yet: one would be told the other's id."""
        if not isinstance(request, BeginDrill):
            yield
            return
        if self._beginning - {session}:
            raise Conflict("another drill is just being begun; there is one drill at a time")
        self._beginning.add(session)
        try:
            yield
        finally:
            self._beginning.discard(session)

    def _session_of(self, request: Request, by: Principal, key: str) -> Session:
        """One request with one key is one session of one report: the loop takes it once, over restarts too."""
        if not key:
            return Session(f"{_PREFIX}{secrets.token_hex(16)}")
        # By the proof besides the name: two people may be called alike.
        asker = hashlib.blake2b(f"{by.proof}\0{by.name}\0{key}".encode(), digest_size=12).hexdigest()
        what = hashlib.blake2b(msgspec.msgpack.encode(request), digest_size=12).hexdigest()
        session = Session(f"{_PREFIX}{asker}-{what}")
        if self._of_key.get(_key_of(session), session) != session:
            raise KeyReused("this idempotency key was used for another request; take a fresh one")
        return session

    def _subject(self, request: Request, by: Principal) -> str:
        """Of a request that was taken before."""
        if isinstance(request, IssueToken):
            return self._loop.books.registry.by_digest.get(request.digest, "")
        if isinstance(request, BeginDrill):
            return drill_asked_for(self._loop.books.world, request, by)
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


def _key_of(session: Session) -> str:
    """What stands for asker and key in the name of a session; of one without a key the whole name."""
    return session.rpartition("-")[0] if session.count("-") > 1 else session
