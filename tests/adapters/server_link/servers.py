"""A scripted server in the test's own event loop: it journals each report once, and otherwise does what the test says.

Run as a program (``python servers.py SOCKET JOURNAL``) it is one that can be stopped and killed like a real one.
"""

import asyncio
import contextlib
import pathlib
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from keepstep.adapters.server_link.address import Address, parse_address
from keepstep.adapters.server_link.backoff import Backoff
from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.link import LinkSettings, ServerLink
from keepstep.adapters.server_link.sockets import read_message
from keepstep.core.facts import AgentHeard, Fact
from keepstep.core.ids import NodeId, Session
from keepstep.wire import messages
from keepstep.wire.messages import Ack, Beat, Enrol, Hello, Message, NotLeader, Refused, Report, Welcome

SOON = Backoff(first_s=0.001, last_s=0.02, refused_s=0.02)
DEADLINE_S = 90.0


def word(number: int) -> Fact:
    """Facts that can be told apart."""
    return AgentHeard(node=NodeId(f"n{number}"), session=Session("s"))


class ScriptedServer:
    started: ClassVar["list[ScriptedServer]"] = []
    """In this loop; ``running`` stops them."""

    def __init__(self, **options: Any) -> None:
        self.greeting: Callable[[Hello], Message] = options.get("greeting", self._welcome)
        self.term = options.get("term", 0)
        self.expires_in_s: float | None = options.get("expires_in_s")
        self.enrol: Callable[[Enrol], Message] | None = options.get("enrol")
        self.acks = options.get("acks", True)
        self.cut_after_bytes: list[int] = options.get("cuts", [])
        """One entry for each connection from the first on: it is cut off after so many bytes."""
        self.is_deaf = False
        """It has stopped: its kernel takes what is sent, and nobody answers."""
        self.asked = 0
        """How often a link wanted to know whether it is there."""
        self.journal: list[Report] = []
        self.repeated = 0
        self.beats: list[Beat] = []
        self.hellos: list[Hello] = []
        self.serials: list[str | None] = []
        self.writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.address = Address("tcp", host="127.0.0.1", port=0)

    def _welcome(self, hello: Hello) -> Message:
        return Welcome(
            protocol=messages.PROTOCOL, server="scripted", acked=self.acked, term=self.term,
            certificate_expires_in_s=self.expires_in_s,
        )  # fmt: skip

    @property
    def acked(self) -> int:
        return self.journal[-1].number if self.journal else 0

    async def start(self, address: Address | None = None, context: ssl.SSLContext | None = None) -> "ScriptedServer":
        """Where it was before, by default."""
        self.started.append(self)
        at = address or self.address
        if at.path:
            self._server, self.address = await asyncio.start_unix_server(self._client, at.path), at
        else:
            self._server = await asyncio.start_server(self._client, at.host, at.port, ssl=context)
            port = self._server.sockets[0].getsockname()[1]
            self.address = Address("tls" if context else "tcp", host="localhost" if context else at.host, port=port)
        return self

    async def stop(self) -> None:
        """As one that was killed."""
        assert self._server is not None
        self._server.close()
        if self.address.path:
            pathlib.Path(self.address.path).unlink(missing_ok=True)
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()
        await asyncio.sleep(0)

    def say(self, message: Message) -> None:
        self.writers[-1].write(messages.encode(message))

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        if self.cut_after_bytes:
            reader = await self._only(reader, writer, self.cut_after_bytes.pop(0))
        with contextlib.suppress(OSError, EOFError):
            first = await read_message(reader)
            certificate = writer.get_extra_info("peercert")
            self.serials.append(certificate.get("serialNumber") if certificate else None)
            if isinstance(first, Enrol):
                assert self.enrol is not None
                writer.write(messages.encode(self.enrol(first)))
                await writer.drain()
            else:
                assert isinstance(first, Hello)
                self.hellos.append(first)
                answer = self.greeting(first)
                writer.write(messages.encode(answer))
                while isinstance(answer, Welcome):
                    self._keep(await read_message(reader), writer)
        writer.close()
        with contextlib.suppress(ValueError):
            self.writers.remove(writer)

    async def _only(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int
    ) -> asyncio.StreamReader:
        """So many bytes and not one more; whatever was answered meanwhile may or may not arrive."""
        shortened = asyncio.StreamReader()

        async def pump() -> None:
            left = size
            with contextlib.suppress(OSError):
                while left and (data := await reader.read(left)):
                    left -= len(data)
                    shortened.feed_data(data)
                    await asyncio.sleep(0)
            shortened.feed_eof()
            writer.transport.abort()

        self._pump = asyncio.ensure_future(pump())
        return shortened

    def _keep(self, message: Message, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, Beat):
            self.beats.append(message)
        elif isinstance(message, Ack):
            self.asked += 1
            if not self.is_deaf:
                writer.write(messages.encode(message))
        elif isinstance(message, Report):
            if message.number <= self.acked:
                self.repeated += 1
            else:
                self.journal.append(message)
            if self.acks:
                writer.write(messages.encode(Ack(number=message.number)))


class Owner:
    """Listens to a link, as a launcher or an agent does."""

    def __init__(self) -> None:
        self.welcomes: list[Welcome] = []
        self.heard: list[Message] = []
        self.problems: list[str] = []

    def connected(self, welcome: Welcome) -> None:
        self.welcomes.append(welcome)

    def received(self, message: Message) -> None:
        self.heard.append(message)

    def lost(self, problem: str) -> None:
        self.problems.append(problem)


def link_to(
    known: Sequence[Address], owner: Owner, *, identity_dir: str = "/nowhere", token: str = "secret", **settings: Any
) -> ServerLink:
    async def find() -> Sequence[Address]:
        return known

    chosen: dict[str, Any] = {
        "hello": Hello(protocol=messages.PROTOCOL, role="agent", node=NodeId("n0"), session=Session("s")),
        "credentials": Credentials(state_dir="/nowhere", identity_dir=identity_dir, token=token),
        "backoff": SOON, "worth": lambda fact: 0, "on_refusal": "try again", "connect_wait_s": 60.0,
    } | settings  # fmt: skip
    return ServerLink(LinkSettings(**chosen), find, owner)


async def until(true: Callable[[], object], what: str) -> None:
    deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
    while not true():
        assert asyncio.get_running_loop().time() < deadline_s, f"waited in vain for {what}"
        await asyncio.sleep(0.002)


def running(scene: Callable[[ServerLink], Awaitable[None]], make: Callable[[], Awaitable[ServerLink]]) -> None:
    """Runs a link while the scene plays; what the link raises, the test sees. Leaves nothing open."""

    async def play() -> None:
        link = await make()
        life, acting = asyncio.ensure_future(link.run()), asyncio.ensure_future(scene(link))
        await asyncio.wait([life, acting], return_when=asyncio.FIRST_COMPLETED)
        results = await _ended(acting, life)
        while ScriptedServer.started:
            await ScriptedServer.started.pop().stop()
        await settled()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    asyncio.run(play())


async def settled() -> None:
    """Whoever still sees a connection off has done so. One that were cancelled instead, as at the end of a loop, before it has
    begun would leave its socket open."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        if (await asyncio.wait(others, timeout=DEADLINE_S))[1]:
            await _ended(*others)
    await asyncio.sleep(0.01)


async def _ended(*tasks: Any) -> list[Any]:
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def follower(leader: str) -> Callable[[Hello], Message]:
    return lambda hello: NotLeader(leader=leader)


def refusing(reason: str) -> Callable[[Hello], Message]:
    return lambda hello: Refused(reason=reason)


async def _serve(socket: str, journal: str) -> None:
    server = await ScriptedServer().start(parse_address(f"unix:{socket}"))
    print("up", flush=True)
    while True:
        await asyncio.sleep(0.01)
        with open(journal, "w", encoding="ascii") as file:
            file.write("".join(f"{report.number}\n" for report in server.journal))


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
