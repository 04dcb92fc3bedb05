"""The connection to a server over real sockets: what is reported arrives once and in order, whatever breaks."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.server_link import servers
from tests.adapters.server_link.servers import (
    Owner,
    ScriptedServer,
    follower,
    link_to,
    refusing,
    running,
    settled,
    until,
    word,
)

from keepstep.adapters.server_link.address import Address, parse_address
from keepstep.adapters.server_link.errors import ServerRefused
from keepstep.adapters.server_link.link import ServerLink
from keepstep.adapters.server_link.spool import FACTS_MAX
from keepstep.core.ids import JobId, NodeId, Session, node_resource
from keepstep.core.intents import Order, Release
from keepstep.wire import messages
from keepstep.wire.messages import Beat, Command, NotLeader, Superseded

NOBODY = Address("tcp", host="127.0.0.1", port=1)
"""Where nobody listens."""
DEADLINE_S = servers.DEADLINE_S


FREE = Release(job=JobId("j"), node=NodeId("n0"), session=Session("s"), resource=node_resource(NodeId("n0")))


def order(number: int, term: int) -> Command:
    return Command(order=Order(number=number, intent=FREE), term=term)


def test_a_link_that_is_cancelled_ends_at_whatever_moment() -> None:
    """That of its connection and of the server's first word too: what goes on after its end would hold up whoever leaves."""

    async def all_moments() -> list[int]:
        server, lost = await ScriptedServer().start(), []
        for moment in range(60):
            life = asyncio.ensure_future(link_to([server.address], Owner()).run())
            for _ in range(moment):
                await asyncio.sleep(0)
            life.cancel()
            await asyncio.wait([life], timeout=60.0)
            if not life.done():
                lost.append(moment)
                life.cancel()
        await server.stop()
        await settled()
        return lost

    assert asyncio.run(all_moments()) == []


def test_a_beat_tells_once_how_many_facts_found_no_room() -> None:
    server, owner = ScriptedServer(acks=False), Owner()

    async def make() -> ServerLink:
        await server.start()
        return link_to([server.address], owner)

    async def scene(link: ServerLink) -> None:
        beat = Beat(generation=0, running_s=0.1, ranks=())
        for number in range(FACTS_MAX + 2):
            link.report(word(number))
        link.say(beat)  # nobody hears it: the next one tells
        await until(lambda: link.is_up, "a connection")
        link.say(beat)
        link.say(beat)
        link.report(word(9))
        link.say(beat)
        await until(lambda: len(server.beats) == 3, "beats")

    running(scene, make)
    assert [beat.dropped for beat in server.beats] == [2, 0, 1]


# ---- once and in order


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 1500), max_size=12), pauses=st.lists(st.booleans(), min_size=40, max_size=40))
def test_reports_arrive_once_and_in_order_over_any_cuts(cuts: list[int], pauses: list[bool]) -> None:
    """Each connection is cut after some number of bytes: in a frame, in its length, before Hello, between all."""
    server, owner = ScriptedServer(cuts=list(cuts)), Owner()

    async def make() -> ServerLink:
        await server.start()
        return link_to([server.address], owner)

    async def scene(link: ServerLink) -> None:
        for number, pause in enumerate(pauses, 1):
            link.report(word(number))
            link.say(Beat(generation=0, running_s=0.1, ranks=()))
            if pause:
                await asyncio.sleep(0)
        await until(lambda: link.is_empty, "all acknowledgements")
        await server.stop()

    running(scene, make)
    assert [report.number for report in server.journal] == list(range(1, len(pauses) + 1))
    assert [report.fact for report in server.journal] == [word(n) for n in range(1, len(pauses) + 1)]


def test_what_is_not_acknowledged_is_repeated_and_what_is_acknowledged_is_not() -> None:
    server, owner = ScriptedServer(acks=False), Owner()

    async def make() -> ServerLink:
        await server.start()
        return link_to([server.address], owner)

    async def scene(link: ServerLink) -> None:
        link.report(word(1))
        link.report(word(2))
        await until(lambda: len(server.journal) == 2, "two reports")
        assert not link.is_empty and not await link.drained(0.01)
        kept = server.journal.pop()
        await server.stop()
        server.acks = True
        await server.start()
        assert await link.drained(DEADLINE_S)
        assert server.journal[-1] == kept and server.repeated == 0
        await server.stop()

    running(scene, make)


def test_a_server_that_is_stopped_delays_and_one_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """A real process: SIGSTOP, SIGCONT, SIGKILL and a new one on the same socket."""
    path, kept, owner = tmp_path / "s.sock", tmp_path / "kept", Owner()

    def start() -> subprocess.Popen[str]:
        path.unlink(missing_ok=True)
        made = subprocess.Popen(
            [sys.executable, servers.__file__, str(path), str(kept)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert made.stdout is not None and made.stdout.readline() == "up\n"
        return made

    def journal() -> list[int]:
        return [int(line) for line in kept.read_text().split()] if kept.exists() else []

    process = start()

    async def make() -> ServerLink:
        return link_to([parse_address(f"unix:{path}")], owner)

    async def scene(link: ServerLink) -> None:
        nonlocal process
        link.report(word(1))
        assert await link.drained(DEADLINE_S)
        os.kill(process.pid, signal.SIGSTOP)
        link.report(word(2))
        assert not await link.drained(0.2)
        assert link.is_up and link.silent_s == 0.0
        os.kill(process.pid, signal.SIGCONT)
        assert await link.drained(DEADLINE_S)
        await until(lambda: journal() == [1, 2], "the journal")
        process.kill()
        await until(lambda: not link.is_up, "the loss")
        link.report(word(3))
        await asyncio.to_thread(process.wait)
        assert process.stdout is not None
        process.stdout.close()
        assert link.silent_s > 0.0
        process = await asyncio.to_thread(start)
        assert await link.drained(DEADLINE_S)
        await until(lambda: journal() == [3], "the new server's journal")

    try:
        running(scene, make)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert owner.problems == ["the server is gone"]


def test_a_flood_that_nobody_reads_ends_the_connection_and_not_the_memory() -> None:
    """The server stops reading: the socket's buffer is bounded, reports wait in the spool."""
    owner = Owner()

    async def make() -> ServerLink:
        return link_to([server_address[0]], owner)

    server_address: list[Address] = []

    async def scene(link: ServerLink) -> None:
        await until(lambda: link.is_up, "the connection")
        big = Beat(generation=0, running_s=0.1, ranks=(VITALS,) * 20_000)
        for _ in range(60):
            link.say(big)
            await asyncio.sleep(0)
        assert not link.is_up or owner.problems

    async def play() -> None:
        held = asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(messages.encode(messages.Welcome(protocol=messages.PROTOCOL, server="deaf")))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await held.wait()
            writer.transport.abort()

        listening = await asyncio.start_server(deaf, "127.0.0.1", 0)
        server_address.append(Address("tcp", host="127.0.0.1", port=listening.sockets[0].getsockname()[1]))
        link = await make()
        life = asyncio.ensure_future(link.run())
        await scene(link)
        life.cancel()
        held.set()
        listening.close()
        await asyncio.gather(life, return_exceptions=True)
        await settled()

    asyncio.run(play())


VITALS = messages.RankVitals(
    rank=0, phase="step", step=1, idle_s=0.0, phase_s=0.0, step_time_s=0.0, loss=0.0, state="R", cpu_s=0.0
)


# ---- several servers, leaders, terms


def test_a_follower_sends_us_to_the_leader_at_once() -> None:
    leader, owner = ScriptedServer(term=3), Owner()

    async def make() -> ServerLink:
        await leader.start()
        following = await ScriptedServer(greeting=follower(str(leader.address))).start()
        return link_to([NOBODY, following.address], owner, backoff=SLOW)

    async def scene(link: ServerLink) -> None:
        await until(lambda: link.is_up, "the leader")
        assert link.term == 3

    running(scene, make)
    assert len(leader.hellos) == 1 and leader.hellos[0].token == "secret"


SLOW = servers.Backoff(first_s=1e7, last_s=1e7, refused_s=1e7)
"""Whoever pauses even once does not arrive before the test's deadline, whatever part of the window is drawn."""


def test_followers_that_point_at_each_other_are_asked_a_few_times_only() -> None:
    one, two, owner = ScriptedServer(), ScriptedServer(), Owner()

    async def make() -> ServerLink:
        await one.start()
        await two.start()
        one.greeting, two.greeting = follower(str(two.address)), follower(str(one.address))
        return link_to([one.address, two.address], owner, backoff=SLOW)

    async def scene(link: ServerLink) -> None:
        await until(lambda: owner.problems, "the end of the chase")
        await asyncio.sleep(0.05)
        assert not link.is_up

    running(scene, make)
    assert 4 <= len(one.hellos) + len(two.hellos) <= 8


def test_a_server_that_ceases_to_lead_is_left() -> None:
    old, new, owner = ScriptedServer(term=1), ScriptedServer(term=2), Owner()

    async def make() -> ServerLink:
        await old.start()
        await new.start()
        return link_to([old.address], owner)

    async def scene(link: ServerLink) -> None:
        await until(lambda: link.is_up, "the old leader")
        old.say(NotLeader(leader=str(new.address)))
        await until(lambda: link.term == 2, "the new leader")

    running(scene, make)


def test_a_server_of_an_older_term_is_hung_up_on_also_after_a_reconnect() -> None:
    new, old, owner = ScriptedServer(term=7), ScriptedServer(term=6), Owner()

    async def make() -> ServerLink:
        await new.start()
        await old.start()
        return link_to([new.address, old.address], owner)

    async def scene(link: ServerLink) -> None:
        link.report(word(1))
        assert await link.drained(DEADLINE_S)
        await new.stop()
        link.report(word(2))
        await until(lambda: len(old.hellos) >= 2, "the deposed server")
        assert not link.is_up and old.journal == []
        new.term = 8
        await new.start()
        assert await link.drained(DEADLINE_S)
        assert link.term == 8

    running(scene, make)
    assert any("term 6" in problem and "deposed" in problem for problem in owner.problems)


def test_an_order_of_an_older_term_is_never_handed_on(caplog: pytest.LogCaptureFixture) -> None:
    server, owner = ScriptedServer(term=5), Owner()

    async def make() -> ServerLink:
        await server.start()
        return link_to([server.address], owner)

    async def scene(link: ServerLink) -> None:
        await until(lambda: link.is_up, "the server")
        server.say(order(1, term=4))
        server.say(order(2, term=5))
        server.say(Superseded(generation=9))
        await until(lambda: len(owner.heard) >= 2, "the good order")

    running(scene, make)
    assert owner.heard == [order(2, term=5), Superseded(generation=9)]
    assert "order 1 of term 4 is not carried out" in caplog.text


def test_a_host_that_answers_nothing_is_passed_over() -> None:
    """As a server that was stopped: the kernel takes the connection, nobody says Welcome."""
    server, owner = ScriptedServer(), Owner()
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen(1)

    async def make() -> ServerLink:
        await server.start()
        dead = Address("tcp", host="127.0.0.1", port=silent.getsockname()[1])
        return link_to([dead, server.address], owner, connect_wait_s=0.2)

    async def scene(link: ServerLink) -> None:
        await until(lambda: link.is_up, "the second server")

    with silent:
        running(scene, make)


def test_a_server_that_has_stopped_is_left_where_there_is_another() -> None:
    """Its kernel keeps the connection; nothing but silence tells it from one that has nothing to say."""
    stopped, other, owner = ScriptedServer(term=1), ScriptedServer(term=2), Owner()

    async def make() -> ServerLink:
        await stopped.start()
        await other.start()
        return link_to([stopped.address, other.address], owner, lease_s=1.5)

    async def scene(link: ServerLink) -> None:
        await until(lambda: link.is_up, "the first server")
        await until(lambda: stopped.asked > 3, "that it is asked again and again")
        assert link.is_up and link.term == 1, "one that answers may be silent for long"
        stopped.is_deaf = True
        stopped.greeting = follower("")
        await until(lambda: link.term == 2, "the second server")

    running(scene, make)


class Pausing(asyncio.Protocol):
    """A server in our own process, which stands still between the first question and its answer."""

    told: list[str]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.told = transport, []

    def data_received(self, data: bytes) -> None:
        self.told.append("word")
        loop = asyncio.get_running_loop()
        if len(self.told) == 1:
            self.transport.write(messages.encode(messages.Welcome(protocol=messages.PROTOCOL, server="pausing")))
        elif len(self.told) == 2:
            loop.call_soon(time.sleep, PAUSE_S)
            loop.call_soon(loop.call_soon, self.transport.write, messages.encode(messages.Ack(number=0)))

    def connection_lost(self, problem: Exception | None) -> None:
        self.told.append("hung up")


PAUSE_S = 1.2


def test_a_pause_of_our_own_is_not_held_against_the_server() -> None:
    """The time for the answer is over when we go on, and the answer is not read yet."""
    server, owner = Pausing(), Owner()

    async def make() -> ServerLink:
        listening.append(await asyncio.get_running_loop().create_server(lambda: server, "127.0.0.1", 0))
        address = Address("tcp", host="127.0.0.1", port=listening[0].sockets[0].getsockname()[1])
        return link_to([address, NOBODY], owner, lease_s=3.0)

    async def scene(link: ServerLink) -> None:
        await until(lambda: link.is_up, "the server")
        await until(lambda: len(server.told) > 2, "the next question")
        listening[0].close()
        assert server.told[2:] == ["word"]

    listening: list[asyncio.Server] = []
    running(scene, make)


def test_the_only_server_is_kept_however_silent_it_is() -> None:
    server, owner = ScriptedServer(), Owner()

    async def make() -> ServerLink:
        await server.start()
        server.is_deaf = True
        return link_to([server.address], owner, lease_s=0.1)

    async def scene(link: ServerLink) -> None:
        await until(lambda: link.is_up, "the server")
        await asyncio.sleep(0.4)
        assert link.is_up and len(server.hellos) == 1

    running(scene, make)


# ---- refusals, and what is said about trouble


def test_a_first_refusal_ends_a_launcher_and_a_later_one_does_not() -> None:
    server, owner = ScriptedServer(), Owner()

    async def make() -> ServerLink:
        await server.start()
        return link_to([server.address], owner, on_refusal="raise at first")

    async def scene(link: ServerLink) -> None:
        await until(lambda: link.is_up, "the server")
        server.greeting = refusing("another version")
        await server.stop()
        await server.start()
        await until(lambda: len(server.hellos) >= 3, "another attempt")

    running(scene, make)
    assert "the server refuses this agent: another version" in owner.problems
    with pytest.raises(ServerRefused, match="another version"):
        running(scene, make)


def test_trouble_is_told_once_and_again_when_it_is_another() -> None:
    server, owner = ScriptedServer(greeting=refusing("wrong token")), Owner()

    async def make() -> ServerLink:
        await server.start()
        return link_to([server.address], owner)

    async def scene(link: ServerLink) -> None:
        await until(lambda: len(server.hellos) > 5, "several attempts")
        await server.stop()
        await until(lambda: len(owner.problems) >= 2, "the other trouble")

    running(scene, make)
    assert owner.problems[0] == "the server refuses this agent: wrong token"
    assert "no server" in owner.problems[1]


def test_a_lost_server_is_not_dialled_again_at_once_by_everybody() -> None:
    """Even where a second server listens: all its clients lose a server at the same instant."""
    one, two, owner = ScriptedServer(), ScriptedServer(), Owner()

    async def make() -> ServerLink:
        await one.start()
        await two.start()
        return link_to([one.address, two.address], owner, backoff=SLOW)

    async def scene(link: ServerLink) -> None:
        await until(lambda: link.is_up, "the server")
        await one.stop()
        await until(lambda: not link.is_up, "the loss")
        await asyncio.sleep(0.1)
        assert two.hellos == []

    running(scene, make)
