"""What thousands at once cost the loop: a pass is bounded, and whoever comes back gets its own orders without a look at all."""

import asyncio

import pytest

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.core import facts as f
from keepstep.core.ids import NodeId, Session, device_resource
from keepstep.core.intents import Quarantine
from keepstep.core.policy import Breaker, Policy
from keepstep.ports import JournalUnavailable
from keepstep.server.authentication import Authentication
from keepstep.server.history import Books
from keepstep.server.hub import Hub
from keepstep.server.loop import FACTS_PER_PASS, ControlLoop, Received
from keepstep.wire import messages as m

NODES = 3 * FACTS_PER_PASS


class Clock:
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


class Failing(MemoryJournal):
    fails = False

    def append(self, at_s, records, origins=()):  # type: ignore[no-untyped-def]
        if self.fails:
            raise JournalUnavailable("disk full")
        return super().append(at_s, records, origins)


def joined(number: int) -> f.AgentJoined:
    node = NodeId(f"n{number}")
    parts = (f.NodePart(names=("gpu/0000:10:00", f"gpu/G{number}"), serial=f"s{number}", slot=0),)
    return f.AgentJoined(node=node, session=Session(f"a{number}"), boot_id="b", parts=parts)


def loop_of(journal: MemoryJournal) -> ControlLoop:
    policy = Policy(breaker=Breaker(absolute=10 * NODES))
    loop = ControlLoop(journal, Books(archive=MemoryArchive()), policy, Clock())
    loop.start("life-1", "0")
    return loop


def test_a_fleet_that_joins_at_once_is_taken_in_portions() -> None:
    loop = loop_of(MemoryJournal())
    for number in range(NODES):
        loop.receive(Received(joined(number), Session(f"a{number}"), 1))
    seen = []
    while len(loop.books.world.agents) < NODES:
        before = len(loop.books.world.agents)
        loop.work()
        seen.append(len(loop.books.world.agents) - before)
        assert (loop.pause_s() == 0.0) == (len(loop.books.world.agents) < NODES), "it goes on at once while some wait"
    assert max(seen) <= FACTS_PER_PASS and len(seen) == 4, "the server's own first word is one of them"
    assert len(loop.collect().acks) == NODES


def test_each_gets_its_own_open_orders_and_only_durable_ones() -> None:
    journal = Failing()
    loop = loop_of(journal)
    for number in range(50):
        loop.receive(Received(joined(number), Session(f"a{number}"), 1))
    loop.work()
    for number in range(49):
        signal = f.SignalSeen(resource=device_resource(NodeId(f"n{number}"), 0), signal="xid.79", boot_id="b")
        loop.receive(Received(signal, Session(f"a{number}"), 2))
    loop.work()
    for number in range(49):
        [order] = loop.open_orders_for(Session(f"a{number}"))
        assert isinstance(order.intent, Quarantine) and order.intent.node == f"n{number}"
    assert loop.open_orders_for(Session("a49")) == []
    journal.fails = True
    last = f.SignalSeen(resource=device_resource(NodeId("n49"), 0), signal="xid.79", boot_id="b")
    loop.receive(Received(last, Session("a49"), 2))
    with pytest.raises(JournalUnavailable):
        loop.work()
    assert loop.open_orders_for(Session("a49")) == [], "it is decided, and not in the journal"
    journal.fails = False
    loop.work()
    assert len(loop.open_orders_for(Session("a49"))) == 1


def test_a_word_of_an_agent_that_was_thought_silent_is_acted_on_at_once() -> None:
    """The order goes to that very agent: a report says as much as a beat that it lives."""
    clock = Clock()
    loop = ControlLoop(MemoryJournal(), Books(archive=MemoryArchive()), Policy(), clock)
    loop.start("life-1", "0")
    hub = Hub(loop, Authentication("secret", lambda: loop.books.registry, clock), "life-1", clock)
    node, session = NodeId("n0"), Session("a0")
    hello = m.Hello(protocol=m.PROTOCOL, token="secret", role="agent", node=node, session=session)

    async def story() -> list[m.Message]:
        hub.run(Nobody())
        connection = Silent(hello)
        assert isinstance(hub.accept(connection, hello), m.Welcome)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        hub.received(connection, m.Report(number=1, fact=joined(0)))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for _ in range(20):
            clock.at_s += 0.4
            loop.work()
        assert loop.books.world.agents[node].silent_since_s is not None
        seen = f.SignalSeen(resource=device_resource(node, 0), signal="xid.79", boot_id="b", session=session)
        hub.received(connection, m.Report(number=2, fact=seen))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        hub.stop()
        return connection.sent

    assert any(isinstance(x, m.Command) and isinstance(x.order.intent, Quarantine) for x in asyncio.run(story()))


class Nobody:
    def submit(self, orders: object) -> None:
        list(orders)  # type: ignore[call-overload]


class Silent:
    """Stands where a Connection does."""

    encrypted, peer_serial, peer = False, None, "test"

    def __init__(self, hello: m.Hello) -> None:
        self.hello = hello
        self.sent: list[m.Message] = []

    def send(self, message: m.Message) -> None:
        self.sent.append(message)

    def close(self) -> None:
        pass
