"""A server that follows: it reads what the leader writes, answers questions, and passes requests on. Decides nothing.

Its books are as old as the last look at the journal, at most a fraction of a second. What lives in the leader's memory only
(the newest step of a running job) is asked of the leader while somebody looks.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Protocol

from keepstep.core.access import Principal
from keepstep.core.vitals import Vitals
from keepstep.ports import Clock, Journal, Leader
from keepstep.server.answering import answer_to, outcome_of
from keepstep.server.authentication import Authentication
from keepstep.server.connection import Connection
from keepstep.server.desk import Desk
from keepstep.server.history import Books
from keepstep.server.in_turn import InTurn
from keepstep.server.meters import Meters
from keepstep.server.replay import catch_up
from keepstep.server.site import Bulletin, Change, NoLeader
from keepstep.server.vitals_view import Beats, unpack
from keepstep.wire.messages import PROTOCOL, Act, Enrol, Hello, Message, NotLeader, Query, Refused, Welcome
from keepstep.wire.requests import Accepted, Request

log = logging.getLogger("keepstep.server")

BEATS_S = 1.0
LOOKING_S = 10.0
"""Somebody who asked so lately still looks."""
BEATS_OLD_S = 10.0
"""Older beats are not shown: a rank that stands still must not look as if it ran."""


class Road(Protocol):
    """The way to the leader. Calls block; each raises what the leader's answer means, and NoLeader where there is none."""

    def ask(self, address: str, request: Request, by: Principal, key: str) -> Accepted: ...

    def beats(self, address: str) -> Beats: ...


class Following:
    """Meets connection.Hub, and is the site of a follower."""

    leads = False

    def __init__(
        self, books: Books, journal: Journal, clock: Clock, authentication: Authentication, identity: str, road: Road
    ) -> None:  # fmt: skip
        self.books = books
        self._journal = journal
        self._clock = clock
        self._authentication = authentication
        self.identity = identity
        self.road = road
        self._told_s = -1e18
        self._principals: dict[Connection, Principal] = {}
        self.in_turn = InTurn()
        self.bulletin = Bulletin()
        self.meters = Meters()
        self.leader: Leader | None = None
        """As it was last seen in the database."""
        self.vitals: Vitals | None = None
        """What the leader last told of live jobs."""
        self.looked_s = -1e18
        """When somebody last asked something."""

    def follow(self) -> int:
        """Take what the leader appended; returns how many entries. Raises what the journal raises."""
        before = self.books.world.seq
        count = catch_up(self.books, self._journal, files=False)
        if count:
            self.bulletin.publish(self._journal.mentioning((), limit=min(count, Bulletin.SUBJECTS_MAX))[::-1])
            log.debug("followed from entry %d to %d", before, self.books.world.seq)
        return count

    # ---- clients (connection.Hub)

    def accept(self, connection: Connection, hello: Hello) -> Message:
        if hello.protocol != PROTOCOL:
            return Refused(reason=f"the client speaks protocol {hello.protocol}, this server speaks {PROTOCOL}")
        if hello.role != "tool":
            return NotLeader(leader=self.leader.address if self.leader is not None else "")
        principal = self._authentication.identify(hello, connection)
        if isinstance(principal, Refused):
            log.warning("refused: %s", principal.reason)
            return principal
        self._principals[connection] = principal
        return Welcome(protocol=PROTOCOL, server=self.identity, term=self.leader.term if self.leader else 0)

    def enrol(self, connection: Connection, message: Enrol) -> None:
        connection.send(NotLeader(leader=self.leader.address if self.leader is not None else ""))

    def received(self, connection: Connection, message: Message) -> None:
        asker = self._principals[connection]
        match message:
            case Query():
                self.in_turn.answer(connection, answer_to(message, self.desk, asker, self.note_refusal))
            case Act():
                held = self._authentication.holds
                self.in_turn.answer(connection, outcome_of(message, asker, self.submit, self.note_refusal, held))
            case _:
                connection.drop(f"it sent {type(message).__name__} to a follower")

    def closed(self, connection: Connection) -> None:
        self._principals.pop(connection, None)

    # ---- site

    @property
    def is_led(self) -> bool:
        return self.leader is not None

    def desk(self) -> Desk:
        self.looked_s = self._clock.now_s()
        vitals = self.vitals if self._clock.now_s() - self._told_s < BEATS_OLD_S else None
        return Desk(self.books, vitals, self._clock.now_s(), self._journal)

    async def listen(self) -> None:
        """Until cancelled: what lives in the leader's memory only, as long as somebody looks."""
        while True:
            await asyncio.sleep(BEATS_S)
            leader = self.leader
            if leader is None or self._clock.now_s() - self.looked_s > LOOKING_S:
                continue
            try:
                self.vitals = unpack(await asyncio.to_thread(self.road.beats, leader.address))
                self._told_s = self._clock.now_s()
            except NoLeader as error:
                log.debug("the leader tells nothing of its ranks: %s", error)

    async def submit(self, request: Request, by: Principal, key: str = "") -> Accepted:
        if self.leader is None or not self.leader.address:
            raise NoLeader("no server leads now; try again in a few seconds")
        return await asyncio.to_thread(self.road.ask, self.leader.address, request, by, key)

    def note_refusal(self, who: str, what: str, why: str) -> None:
        """Only the leader writes: a follower has its log."""
        log.warning("refused %s to %s: %s", what, who, why)

    def changes(self) -> AsyncIterator[Change]:
        return self.bulletin.changes()
