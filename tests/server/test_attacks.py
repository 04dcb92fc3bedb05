"""Somebody on the wire who is let in as one thing and tries to be another; and what a change of roles leaves behind.

Real connections of the server on a transport that records, a real hub and loop in memory.
"""

import asyncio
import inspect
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from tests.web.site import OWNER_TOKEN, Rig, Unanswered, running_site, story

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.adapters.memory.snapshots import MemorySnapshots
from keepstep.core import facts as f
from keepstep.core.access import OWNER, Principal, Role
from keepstep.core.health.forecast import Forecast
from keepstep.core.health.report import HealthReport
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import Fence, Order
from keepstep.core.policy import Policy
from keepstep.launcher.orders import Answers
from keepstep.ports import Deposed
from keepstep.server.authentication import Authentication
from keepstep.server.clock import ServerClock
from keepstep.server.compaction import Store, compact, prove
from keepstep.server.connection import HELLO_FRAME_LIMIT_BYTES, Connection
from keepstep.server.following import Following
from keepstep.server.hub import EXPIRED_GRACE_S, Hub
from keepstep.server.leading import LeadingSite
from keepstep.server.loop import ControlLoop
from keepstep.server.metrics import metrics_text
from keepstep.server.queries import QUESTIONS
from keepstep.server.reception import Reception
from keepstep.server.registry import Registry, digest_of, new_secret
from keepstep.server.replay import replay
from keepstep.server.replica import Replica, Standing
from keepstep.server.site import Bulletin, KeyReused, NoLeader
from keepstep.server.snapshot import load
from keepstep.wire import messages as m
from keepstep.wire.requests import Hold, StopJob


class Loose:
    family = socket.AF_UNIX


LOOSE = Loose()


class Line(asyncio.Transport):
    """The transport of a connection: keeps what the server writes."""

    def __init__(self, hub: object, serial: str | None = None) -> None:
        super().__init__()
        self.is_open, self.raw, self.hub = True, b"", hub
        self.connection = Connection(hub)  # type: ignore[arg-type]
        self.connection.connection_made(self)
        self.connection.peer_serial = serial

    def get_extra_info(self, name: str, default: object = None) -> object:
        return LOOSE if name == "socket" else default

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.raw += data

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close

    async def say(self, *messages: m.Message) -> list[m.Message]:
        """What is answered, once all is quiet."""
        for message in messages:
            self.connection.data_received(m.encode(message))
        for _ in range(6):
            await asyncio.sleep(0)
        if isinstance(self.hub, Hub | Following):
            await self.hub.in_turn.quiet()
        answers, raw, self.raw = [], self.raw, b""
        while raw:
            size = 4 + int.from_bytes(raw[:4], "big")
            answers.append(m.decode(raw[4:size]))
            raw = raw[size:]
        return answers


def hello(role: str, token: str = "", **said: object) -> m.Hello:
    return m.Hello(protocol=m.PROTOCOL, role=role, token=token, **said)  # type: ignore[arg-type]


def with_rig(scene: Callable[[Rig], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with running_site(story()) as rig:
            await scene(rig)

    asyncio.run(whole())


def test_a_tool_takes_no_session_of_somebody_else_and_no_agents_word() -> None:
    async def scene(rig: Rig) -> None:
        viewer = await rig.token("vera", Role.VIEWER)
        session = rig.books.history.sessions[JobId("job"), NodeId("n0")][-1]
        thief = Line(rig.hub)
        await thief.say(hello("tool", viewer, session=session, node="n9"))
        forecast = Forecast(rates_per_h=(9.0, 9.0, 9.0), usual_per_h=(1.0, 1.0, 1.0))
        await thief.say(m.Health(report=HealthReport(at_s=1.0, index=9.0, forecast=forecast, useful_h=0.0, parts=())))
        assert thief.is_open and not rig.loop.vitals.health, "only agents tell how a node is"
        launcher = Line(rig.hub)
        said = await launcher.say(hello("launcher", OWNER_TOKEN, job="job", node="n0", session=session))
        assert isinstance(said[0], m.Welcome), "the session is still its own's"
        front = Line(rig.hub)
        other = rig.books.history.sessions[JobId("job"), NodeId("n1")][-1]
        assert isinstance((await front.say(hello("front", OWNER_TOKEN, job="job", session=other)))[0], m.Refused)

    with_rig(scene)


def test_a_node_is_no_front() -> None:
    """A front bears witness about the launchers of other nodes."""

    async def scene(rig: Rig) -> None:
        issued = f.CertificateIssued(serial="b1", role="launcher", name="n1", expires_s=rig.clock.at_s + 9.0)
        await rig.tell(issued)
        said = await Line(rig.hub, "b1").say(hello("front", job="job", node="n1", session="front-1"))
        assert isinstance(said[0], m.Refused) and "a front speaks for" in said[0].reason

    with_rig(scene)


def test_a_connection_outlives_its_certificate_only_where_that_was_renewed() -> None:
    async def scene(rig: Rig) -> None:
        for serial, name in (("a1", "n7"), ("b1", "n8")):
            ends_s = rig.clock.at_s + 100.0
            await rig.tell(f.CertificateIssued(serial=serial, role="agent", name=name, expires_s=ends_s))
        lapsed, renewed = Line(rig.hub, "a1"), Line(rig.hub, "b1")
        await lapsed.say(hello("agent", node="n7", session="s7"))
        await renewed.say(hello("agent", node="n8", session="s8"))
        late_s = rig.clock.at_s + 900.0
        await rig.tell(f.CertificateIssued(serial="b2", role="agent", name="n8", expires_s=late_s, replaces="b1"))
        for more_s, stays in ((EXPIRED_GRACE_S, True), (110.0, False)):
            rig.clock.at_s += more_s
            rig.hub.observe()
            await renewed.say()
            assert (lapsed.is_open, renewed.is_open) == (stays, True)
        assert isinstance((await Line(rig.hub, "a1").say(hello("agent", node="n7", session="s7")))[0], m.Refused)
        await rig.tell(f.CertificateRevoked(serial="b2", by="root"))
        assert not renewed.is_open, "it lives by the new one, and ends with it"

    with_rig(scene)


def test_facts_that_a_spool_dropped_are_counted() -> None:
    async def scene(rig: Rig) -> None:
        await rig.tell(f.CertificateIssued(serial="a1", role="agent", name="n7", expires_s=rig.clock.at_s + 9.0))
        agent, tool = Line(rig.hub, "a1"), Line(rig.hub)
        beats = [m.Beat(generation=0, running_s=1.0, ranks=(), dropped=dropped) for dropped in (3, 0, 4, -9)]
        await agent.say(hello("agent", node="n7", session="s7"), *beats)
        await tool.say(hello("tool", OWNER_TOKEN), *beats)
        told = metrics_text(rig.site)[0].decode()
        assert [line for line in told.splitlines() if line.startswith("keepstep_spool_dropped_total{")] == [
            'keepstep_spool_dropped_total{role="agent"} 7.0'
        ]

    with_rig(scene)


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_tool_that_is_connected_asks_nothing_more_when_its_token_ends(how: str) -> None:
    async def scene(rig: Rig) -> None:
        secret = new_secret()
        token = f.TokenIssued(
            id="t7", digest=digest_of(secret), kind="api", role="operator", name="eve", expires_s=rig.clock.at_s + 60.0
        )
        await rig.tell(token)
        tool, act = Line(rig.hub), m.Act(request=Hold(resource="device/n0/0"))
        assert [r.ok for r in (await tool.say(hello("tool", secret), m.Query(what="jobs"), act))[1:]] == [True, True]
        if how == "revoked":
            await rig.tell(f.TokenRevoked(id="t7", by="root"))
            assert not tool.is_open
        else:
            rig.clock.at_s += 60.0
            replies = await tool.say(m.Query(what="jobs"), m.Query(what="review"), act)
            assert {(r.ok, r.kind) for r in replies} == {(False, "Forbidden")}

    with_rig(scene)


def test_a_replica_speaks_only_for_who_is_known_as_it_says() -> None:
    async def scene(rig: Rig) -> None:
        await rig.token("vera", Role.VIEWER)
        await rig.tell(f.CertificateIssued(serial="c1", role="replica", name="s2", expires_s=rig.clock.at_s + 9.0))
        replica = Line(rig.hub, "c1")
        await replica.say(hello("tool"))
        stop = StopJob(job="blue-1")
        for by in (
            Principal(name="vera", role=Role.ADMIN, proof="token:t1"),
            Principal(name="vera", role=Role.VIEWER, proof="token:t2"),
            Principal(name="root", role=Role.ADMIN),
        ):
            [reply] = await replica.say(m.Act(request=stop, by=by))
            assert (reply.ok, reply.kind) == (False, "Forbidden"), by
        [reply] = await replica.say(m.Act(request=stop, by=Principal(name="root", role=Role.ADMIN, proof=OWNER.proof)))
        assert reply.ok

    with_rig(scene)


def test_wrong_arguments_are_answered_and_cost_nobody_the_connection() -> None:
    wrong = (7, -1, "x" * 300, None, [1], {"a": 1}, b"\xff", 1e300, 2**64 - 1, "\0")

    async def scene(rig: Rig) -> None:
        for what, question in QUESTIONS.items():
            for name in [*[*inspect.signature(question).parameters][1:], "state", "open", "since_s", "until_s"]:
                for value in wrong:
                    tool = Line(rig.hub)
                    said = await tool.say(hello("tool", OWNER_TOKEN), m.Query(what=what, args={name: value}))
                    assert len(said) == 2 and tool.is_open, (what, name, value)
                    tool.close()

    with_rig(scene)


def test_strangers_cannot_make_the_server_hold_much_or_fall() -> None:
    async def scene(rig: Rig) -> None:
        deep = b"\x81\xa1a" + b"\x91" * 60_000
        for raw in (
            (HELLO_FRAME_LIMIT_BYTES + 1).to_bytes(4, "big"),
            len(deep).to_bytes(4, "big") + deep,
            b"\0\0\0\x01\xc1",
            b"\0\0\0\0",
            m.encode(m.Query(what="jobs")),
            m.encode(m.Report(number=1, fact=f.TokenRevoked(id="t1", by="eve"))),
        ):
            line = Line(rig.hub)
            line.connection.data_received(raw)
            assert not line.is_open and len(line.connection._rest) == 0
        before = rig.journal.last()
        for number in range(5000):
            await Line(rig.hub).say(hello("tool", f"guess-{number}", user=str(number), session=f"s{number}"))
        assert rig.journal.last() - before <= 101, "refusals in a flood are counted, not kept one by one"

    with_rig(scene)


def test_a_renewal_on_its_way_dies_with_what_it_renews() -> None:
    known = Registry()
    known.note(f.CertificateIssued(serial="a", role="agent", name="n1", expires_s=99.0), 0.0)
    known.note(f.CertificateRevoked(serial="a", by="root"), 1.0)
    known.note(f.CertificateIssued(serial="b", role="agent", name="n1", expires_s=99.0, replaces="a"), 1.0)
    assert known.of_certificate("b", 2.0) is None


def test_whoever_waits_when_the_leader_falls_is_told() -> None:
    async def scene(rig: Rig) -> None:
        rig.hub.deposed = lambda error: None

        def append(*_: object) -> None:
            raise Deposed("another server leads")

        rig.journal.append = append  # type: ignore[method-assign,assignment]
        with pytest.raises(NoLeader):
            await asyncio.wait_for(rig.site.submit(Hold(resource="device/n0/0"), OWNER), 60.0)

    with_rig(scene)


def test_nobody_is_let_in_where_the_lease_may_be_another_ones() -> None:
    async def scene(rig: Rig) -> None:
        reception = Reception()
        reception.become(rig.hub)
        reception.may_answer = lambda: False
        assert await Line(reception).say(hello("tool", OWNER_TOKEN)) == [m.NotLeader()]
        reception.may_answer = lambda: True
        assert isinstance((await Line(reception).say(hello("tool", OWNER_TOKEN)))[0], m.Welcome)

    with_rig(scene)


def test_another_order_under_a_number_that_was_used_is_carried_out() -> None:
    """A server that was restored from a copy counts from where the copy was taken."""
    answers = Answers()
    first = Order(number=7, intent=Fence(job=JobId("a"), node=NodeId("n"), session=Session("s"), generation=1))
    other = msgspec.structs.replace(first, intent=msgspec.structs.replace(first.intent, generation=2))
    answers.keep(first, f.Done())
    assert answers.earlier(first) == f.Done() and answers.earlier(other) is None


class Quiet:
    """Meets ports.Leadership and replica.News, where nothing ever happens."""

    def leader(self) -> None:
        return None

    def wait(self, timeout_s: float) -> bool:
        time.sleep(0.005)
        return False


def test_a_follower_that_slept_through_a_compaction_begins_anew(tmp_path: Path) -> None:
    journal, archive = MemoryJournal(), MemoryArchive()
    snapshots, clock = MemorySnapshots(journal), ServerClock()

    def grow(count: int) -> None:
        for _ in range(count):
            journal.append(clock.now_s(), [f.ServerStarted(server="s", version="0", term=1)])

    def following(_: Bulletin) -> Following:
        books = load(snapshots, journal, archive, files=False)
        identity = Authentication("secret", lambda: books.registry, clock)
        return Following(books, journal, clock, identity, "s2", road=None)  # type: ignore[arg-type]

    async def scene() -> None:
        standing = Standing("s2", "", 5.0, may_lead=False)
        quiet, reception = Quiet(), Reception()
        replica = Replica(standing, quiet, quiet, reception, following, lambda *_: None)  # type: ignore[arg-type,return-value]
        running = asyncio.ensure_future(replica.run())
        await asyncio.wait_for(replica.began.wait(), 60.0)
        grow(50)  # in one step of the event loop: it cannot look in between
        archive.put(journal.last(), [])
        compact(Store(journal, snapshots, archive, tmp_path), 40, "eve", lambda fact: journal.append(1e9, [fact]))
        for _ in range(6000):
            await asyncio.sleep(0.01)
            if replica.desk().world.seq == journal.last() or running.done():
                break
        assert not running.done() and replica.desk().world.seq == journal.last()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    grow(10)
    asyncio.run(scene())


def test_nothing_is_forgotten_on_a_word_alone(tmp_path: Path) -> None:
    """Whoever may note a compaction cannot have the entries dropped that are in no file."""
    journal, archive = MemoryJournal(), MemoryArchive()
    for number in range(20):
        journal.append(float(number), [f.ServerStarted(server="s", version="0", term=1)])
    lie = f.Compacted(
        upto=15, hash="0" * 64, archive="journal-000000000001-000000000015.ksj", digest="0" * 64, by="eve"
    )
    journal.append(30.0, [lie])
    archive.put(journal.last(), [])
    store = Store(journal, MemorySnapshots(journal), archive, tmp_path)
    fact = compact(store, 10, "root", lambda fact: journal.append(40.0, [fact]))
    assert (fact.upto, journal.first()) == (10, 11)
    assert prove(journal, tmp_path).whole


def test_what_comes_late_to_a_hub_that_has_stopped_is_kept_by_nobody() -> None:
    """The process may lead again by then: its journal would take what the old books decide under the new term."""

    async def scene(rig: Rig) -> None:
        rig.hub.stop()
        before = rig.journal.last()
        rig.hub.observe(f.ProbeFailed(source="probe", job=JobId("job"), detail="an order that took long"))
        rig.site.note_refusal("eve", "question tokens", "no")
        await asyncio.sleep(0.01)
        assert rig.journal.last() == before
        with pytest.raises(NoLeader):
            await asyncio.wait_for(rig.site.submit(Hold(resource="device/n0/0"), OWNER), 60.0)
        assert rig.journal.last() == before

    with_rig(scene)


def test_a_server_that_leads_again_says_nothing_that_looks_like_a_repetition() -> None:
    """One process has one identity for all its spells of leading."""

    async def scene(rig: Rig) -> None:
        rig.site.note_refusal("eve", "first", "no")
        assert not (await rig.site.submit(Hold(resource="device/n0/0"), OWNER)).repeated
        await rig.site.submit(Hold(resource="device/n2/0"), OWNER, "key")
        loop = ControlLoop(rig.journal, replay(rig.journal, MemoryArchive()), Policy(), rig.clock)
        loop.start(rig.hub.identity, "0", term=3)
        hub = Hub(
            loop, Authentication(OWNER_TOKEN, lambda: loop.books.registry, rig.clock), rig.hub.identity, rig.clock
        )
        site = LeadingSite(loop, hub, rig.journal, rig.clock)
        hub.run(Unanswered())
        try:
            accepted = await site.submit(Hold(resource="device/n0/1"), OWNER)
            site.note_refusal("eve", "second", "no")
            await asyncio.sleep(0.01)
            assert not accepted.repeated and accepted.entry
            assert (await site.submit(Hold(resource="device/n2/0"), OWNER, "key")).repeated
            with pytest.raises(KeyReused):
                await site.submit(Hold(resource="device/n2/1"), OWNER, "key")
            assert [e.record.what for e in rig.journal.mentioning(("fact:RequestRefused",))] == ["second", "first"]  # type: ignore[union-attr]
        finally:
            if site._telling is not None:
                site._telling.cancel()
            hub.stop()

    with_rig(scene)
