"""One server of an installation: it follows until nobody leads, then leads until it is deposed. Owns that change of roles.

A lease in the database says who leads, by the database's clock. The lease is only the polite part: every write to the journal
is checked against the term in its own transaction, and every order carries it, so a leader that was stopped and wakes up
changes nothing. Calls to the database that may block run in threads; appends are the loop's own.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from keepstep.core.access import Principal
from keepstep.ports import Deposed, JournalCorrupt, JournalUnavailable, Leader, Leadership
from keepstep.server.desk import Desk
from keepstep.server.following import Following
from keepstep.server.history import Seat
from keepstep.server.meters import Meters
from keepstep.server.reception import Reception
from keepstep.server.refusals import Refusals
from keepstep.server.site import Bulletin, Change, NoLeader, Site
from keepstep.wire.requests import Accepted, Request

log = logging.getLogger("keepstep.server")

ALONE_S = 10 * 365 * 86400.0
AWAY_S = 0.5
"""Between two tries to read a journal whose database is away."""
LOOK_S = 0.2
"""Between two looks of a follower at the lease."""


class Role(Protocol):
    """One spell of leading, see server.leader."""

    @property
    def site(self) -> Site: ...

    def begin(self, term: int) -> None:
        """Take over: from here on it answers."""
        ...

    async def run(self) -> None:
        """Until cancelled. Raises Deposed once another server leads."""
        ...


class News(Protocol):
    def wait(self, timeout_s: float) -> bool:
        """Blocks until the journal has grown, or the time is over."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Standing:
    """What this server is called, where it is reached, and how long its lease holds."""

    identity: str
    address: str
    lease_s: float
    may_lead: bool = True
    alone: bool = False
    """Nobody else can write this database: a lock on this machine says so. The lease is taken at once, and need not be
    renewed."""


class _LeftBehind(Exception):
    """The entry that it wants next is not to be had: compacted away while this server slept, or broken. Who begins anew with
    the newest snapshot will see."""


def _boot_s() -> float:
    """Goes on while the machine sleeps: its lease runs out meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Replica:
    """``make_following`` reads the journal anew; ``make_leader`` puts a leader together from the books of a follower."""

    def __init__(
        self, standing: Standing, leadership: Leadership, news: News, reception: Reception,
        make_following: Callable[[Bulletin], Following], make_leader: Callable[[Following, Bulletin], Role],
    ) -> None:  # fmt: skip
        self.standing = standing
        self._leadership = leadership
        self._news = news
        self._reception = reception
        self._make_following = make_following
        self._make_leader = make_leader
        self._bulletin = Bulletin()
        self._site: Site | None = None
        self.role: Role | None = None
        """While it leads."""
        self._led = False
        """The lease may still be this server's."""
        self._held_until_s = 0.0
        """The lease runs out then, by this machine's own clock; see _boot_s."""
        reception.may_answer = lambda: self.role is None or self._holds_lease()
        self._followed: str | None = None
        """Whom its log says that it follows; None: it has not said it yet."""
        self._refusals = Refusals()
        """While it follows: they go to its log, which nobody is to fill either."""
        self.began = asyncio.Event()
        """Set once it has a role for the first time: questions can be answered from then on."""

    async def run(self) -> None:
        """Until cancelled. What a follower of the role raises that is no change of roles goes through."""
        while True:
            try:
                following, term = await self._follow()
            except _LeftBehind as error:
                log.warning("%s; reading the journal anew", error)
                await self.release()
                continue
            try:
                await self._lead(following, term)
            except Deposed as error:
                log.error("this server does not lead any more (%s); it follows", error)
                self._led = False

    async def release(self) -> None:
        """At the end: let another one lead at once."""
        if not self._led:
            return
        try:
            await asyncio.to_thread(self._leadership.release)
            self._led = False
        except JournalUnavailable as error:
            log.warning("%s; the lease was not given back, and runs out", error)

    async def _follow(self) -> tuple[Following, int]:
        """Until this server leads; returns its books as a follower, up to date, and the term."""
        following = await self._read_books()
        self._followed = None
        listening = asyncio.ensure_future(following.listen())
        try:
            while True:
                leader, answers = await self._look(following)
                if answers and self.standing.may_lead and (leader is None or self.standing.alone):
                    term = await self._acquire()
                    if term is not None:
                        self._led = True
                        if self._take_news(following):
                            return following, term
                        await self.release()
                if self._site is not following:
                    self._become(following)
                self._say_whom(leader)
                self._tell_refusals()
                await asyncio.to_thread(self._news.wait, LOOK_S)
                if answers:
                    self._take_news(following)
        finally:
            listening.cancel()

    async def _read_books(self) -> Following:
        """The journal, from its beginning or its newest snapshot. At the first time a database that is away is an error;
        later it is waited for: in a thread, since what the server still knows is asked for meanwhile."""
        while True:
            try:
                await asyncio.to_thread(self._leadership.leader)
                return self._make_following(self._bulletin)
            except JournalUnavailable as error:
                if not self.began.is_set():
                    raise
                log.warning("%s; trying again", error)
                await asyncio.sleep(AWAY_S)

    async def _look(self, following: Following) -> tuple[Leader | None, bool]:
        """Who leads, and whether the database answers: one that is away says nothing about a leader, and is not read on the
        loop, which would stand still for as long."""
        try:
            leader = await asyncio.to_thread(self._leadership.leader)
        except JournalUnavailable as error:
            log.warning("%s; following what is known", error)
            return following.leader, False
        alive = leader if leader is not None and leader.expires_in_s > 0 else None
        following.leader = alive
        following.books.seat = Seat(
            server=self.standing.identity,
            leader=alive.holder if alive is not None else "",
            address=alive.address if alive is not None else "",
        )
        return alive, True

    def _say_whom(self, leader: Leader | None) -> None:
        """Whenever it is somebody else."""
        whom = f"{leader.holder} at {leader.address or 'no address'}, term {leader.term}" if leader is not None else ""
        if whom == self._followed:
            return
        self._followed = whom
        if whom:
            log.info("server %s follows %s", self.standing.identity, whom)
        else:
            log.warning("server %s follows, and nobody leads", self.standing.identity)

    async def _acquire(self) -> int | None:
        standing = self.standing
        lease_s = ALONE_S if standing.alone else standing.lease_s
        self._held_until_s = _boot_s() + lease_s
        try:
            return await asyncio.to_thread(self._leadership.acquire, standing.identity, standing.address, lease_s)
        except JournalUnavailable as error:
            log.warning("%s; this server cannot lead now", error)
            return None

    def _take_news(self, following: Following) -> bool:
        """Whether its books are up to date now. Raises _LeftBehind."""
        try:
            following.follow()
        except JournalCorrupt as error:
            raise _LeftBehind(str(error)) from error
        except JournalUnavailable as error:
            log.warning("%s; trying again", error)
            return False
        return True

    async def _lead(self, following: Following, term: int) -> None:
        log.info("server %s leads, term %d", self.standing.identity, term)
        own = self.standing.identity
        following.books.seat = Seat(server=own, leads=True, leader=own, address=self.standing.address)
        leader = self._make_leader(following, self._bulletin)
        self.role, self._site = leader, leader.site
        leader.begin(term)
        self.began.set()
        running = asyncio.ensure_future(leader.run())
        lease = asyncio.ensure_future(self._keep_lease())
        try:
            waiting = {running} if self.standing.alone else {running, lease}
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.role = None
            following.books.seat = Seat(server=own)
            self._reception.become(None)
            for task in (running, lease):
                task.cancel()
            await asyncio.gather(running, lease, return_exceptions=True)

    def _holds_lease(self) -> bool:
        """False also in the first moment after this machine or process stood still for too long: somebody else may lead."""
        return _boot_s() < self._held_until_s

    async def _keep_lease(self) -> None:
        """Renews it. Raises Deposed where another one leads, or where it ran out by this machine's own clock."""
        lease_s = self.standing.lease_s
        while not self.standing.alone:
            await asyncio.sleep(lease_s / 3)
            asked_s = _boot_s()
            try:
                if not await asyncio.to_thread(self._leadership.renew, lease_s):
                    raise Deposed("another server took the lease")
                self._held_until_s = asked_s + lease_s
            except JournalUnavailable as error:
                log.warning("%s; the lease was not renewed", error)
            if not self._holds_lease():
                raise Deposed(f"the lease could not be renewed for {lease_s:.0f} s")

    def _become(self, following: Following) -> None:
        self._site = following
        self._reception.become(following)
        self.began.set()

    # ---- site: the present role's

    @property
    def _present(self) -> Site:
        if self._site is None:
            raise NoLeader("this server has only begun to read its journal")
        return self._site

    @property
    def leads(self) -> bool:
        """Not any more once it was deposed, though it shows its old books until it has read the journal anew."""
        return self.role is not None

    @property
    def is_led(self) -> bool:
        follows = self._site is not None and not self._site.leads
        return self.leads or (follows and self._present.is_led)

    @property
    def identity(self) -> str:
        return self.standing.identity

    @property
    def meters(self) -> Meters:
        return self._present.meters

    def desk(self) -> Desk:
        return self._present.desk()

    async def submit(self, request: Request, by: Principal, key: str = "") -> Accepted:
        return await self._present.submit(request, by, key)

    def note_refusal(self, who: str, what: str, why: str) -> None:
        if self.leads:
            self._present.note_refusal(who, what, why)
        elif (told := self._refusals.note(who, what, why, _boot_s())) is not None:
            self._present.note_refusal(told.who, told.what, told.why)

    def _tell_refusals(self) -> None:
        for told in self._refusals.due(_boot_s()):
            self._present.note_refusal(told.who, told.what, f"{told.why} ({told.count} times more)")

    def changes(self) -> AsyncIterator[Change]:
        return self._bulletin.changes()
