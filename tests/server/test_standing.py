"""What one server says of who leads, whatever becomes of the lease: in its log, and in its answers. The lease is scripted."""

import asyncio
import logging
import time
from collections.abc import Callable

import pytest

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.core import facts as f
from keepstep.ports import Deposed, JournalUnavailable, Leader
from keepstep.server.authentication import Authentication
from keepstep.server.clock import ServerClock
from keepstep.server.following import Following
from keepstep.server.history import Seat
from keepstep.server.queries import answer
from keepstep.server.reception import Reception
from keepstep.server.refusals import APART_MAX, WINDOW_S
from keepstep.server.replay import replay
from keepstep.server.replica import Replica, Standing
from keepstep.server.site import Bulletin
from keepstep.server.status_queries import Status

WAIT_S = 60.0
ONE = Leader(term=1, holder="one", address="tcp:h1:1", expires_in_s=9.0)
TWO = Leader(term=2, holder="two", address="", expires_in_s=9.0)


class Lease:
    """Meets ports.Leadership and replica.News."""

    def __init__(self) -> None:
        self.now: Leader | None = None
        self.looks = 0
        self.free = 0
        """So many terms are to be had."""

    def leader(self) -> Leader | None:
        self.looks += 1
        return self.now

    def acquire(self, holder: str, address: str, ttl_s: float) -> int | None:
        self.free -= 1
        return 7 if self.free >= 0 else None

    def renew(self, ttl_s: float) -> bool:
        return True

    def release(self) -> None:
        pass

    def wait(self, timeout_s: float) -> bool:
        time.sleep(0.002)
        return False

    def close(self) -> None:
        pass


class Spell:
    """Meets replica.Role: leads until it is told that it does not any more."""

    def __init__(self, following: Following) -> None:
        self.site = following
        self.over = asyncio.Event()

    def begin(self, term: int) -> None:
        pass

    async def run(self) -> None:
        await self.over.wait()
        raise Deposed("another server took the lease")


class Stage:
    """A replica, and what a test may do to it."""

    def __init__(self, *, may_lead: bool) -> None:
        self.journal, self.lease, self.clock = MemoryJournal(), Lease(), ServerClock()
        self.journal.append(1.0, [f.ServerStarted(server="one", version="0", term=1)])
        self.spells: list[Spell] = []
        self.away = False
        standing = Standing("me", "tcp:me:1", 1000.0, may_lead=may_lead)
        self.replica = Replica(standing, self.lease, self.lease, Reception(), self._following, self._lead)

    def _following(self, bulletin: Bulletin) -> Following:
        if self.away:
            raise JournalUnavailable("the database is away")
        books = replay(self.journal, MemoryArchive())
        identity = Authentication("secret", lambda: books.registry, self.clock)
        return Following(books, self.journal, self.clock, identity, "me", road=None)  # type: ignore[arg-type]

    def _lead(self, following: Following, bulletin: Bulletin) -> Spell:
        self.spells.append(Spell(following))
        return self.spells[-1]

    async def until(self, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < deadline_s, self.seat
            await asyncio.sleep(0.005)

    async def look(self) -> None:
        """At the lease, a few times more."""
        enough = self.lease.looks + 4
        await self.until(lambda: self.lease.looks >= enough)

    @property
    def seat(self) -> Seat:
        return self.replica.desk().seat

    def status(self) -> Status:
        said = answer(self.replica.desk(), "status", {})
        assert isinstance(said, Status)
        return said


def play(stage: Stage, scene: Callable[[Stage], object]) -> None:
    async def run() -> None:
        running = asyncio.ensure_future(stage.replica.run())
        try:
            await asyncio.wait_for(stage.replica.began.wait(), WAIT_S)
            await scene(stage)  # type: ignore[misc]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    caplog.set_level(logging.INFO, "keepstep.server")
    return lambda word: [text for text in caplog.messages if word in text]


def test_a_follower_says_whom_it_follows_at_each_change_and_only_then(said) -> None:
    stage = Stage(may_lead=False)

    async def scene(stage: Stage) -> None:
        for leader in (None, ONE, TWO, None):
            stage.lease.now = leader
            await stage.look()
            status = stage.status()
            assert (status.server, status.leads) == ("me", False)
            known = (leader.holder, leader.address) if leader is not None else ("", "")
            assert (status.leader, status.leader_address) == known

    play(stage, scene)
    assert said("follows") == [
        "server me follows, and nobody leads", "server me follows one at tcp:h1:1, term 1",
        "server me follows two at no address, term 2", "server me follows, and nobody leads",
    ]  # fmt: skip


def test_who_leads_says_so_and_not_any_more_once_it_is_deposed(said) -> None:
    """Between the two roles it has only its old books, for as long as the database is away."""
    stage = Stage(may_lead=True)
    stage.lease.free = 1

    async def scene(stage: Stage) -> None:
        assert stage.replica.leads and stage.replica.is_led
        assert stage.seat == Seat(server="me", leads=True, leader="me", address="tcp:me:1")
        stage.away, stage.lease.now = True, ONE
        stage.spells[0].over.set()
        await stage.until(lambda: bool(said("trying again")))
        assert not stage.replica.leads and not stage.replica.is_led
        assert stage.seat == Seat(server="me")
        stage.away = False
        await stage.until(lambda: stage.seat.leader == "one" and stage.replica.is_led)
        assert not stage.replica.leads

    play(stage, scene)
    assert len(said("does not lead any more")) == len(said("follows one at")) == 1


def test_strangers_do_not_fill_the_log_of_a_follower(said) -> None:
    stage = Stage(may_lead=False)

    async def scene(stage: Stage) -> None:
        for number in range(3 * APART_MAX):
            stage.replica.note_refusal(f"(unknown) at host-{number}", "GET /healthz", "no")
            stage.replica.note_refusal("(unknown) at host-0", "GET /healthz", "no")
        assert len(said("refused GET /healthz to (unknown)")) == APART_MAX
        for window in stage.replica._refusals._open.values():
            window[0] -= WINDOW_S
        await stage.until(lambda: len(said("times more")) == 2)

    play(stage, scene)
    first, others = sorted(said("times more"), key=len)
    assert f"host-0: no ({3 * APART_MAX} times more)" in first
    assert f"({2 * APART_MAX - 1} times more)" in others
