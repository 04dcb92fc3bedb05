"""The front's connection to the server: reports that arrive once, questions, news. Owns reconnecting only."""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from keepstep.core.facts import Fact
from keepstep.core.ids import JobId, Session
from keepstep.server.address import parse_address
from keepstep.wire.messages import (
    PROTOCOL,
    Ack,
    Hello,
    JobEnded,
    Message,
    Query,
    Refused,
    Reply,
    Report,
    Welcome,
    decode,
    encode,
)

Answer = TypeVar("Answer")
RETRY_S = (0.02, 0.5)
"""First and longest pause between two attempts to connect."""


class LinkRefused(RuntimeError):
    """The server answered and declined for good (token, protocol version)."""


class FrontLink:
    """Runs until cancelled. ``find_server`` gives the address to connect to, starting one where that is its duty."""

    def __init__(self, job: JobId, run: str, token: str, find_server: Callable[[], Awaitable[str]]) -> None:
        self._job, self._run = job, run
        self._token = token
        self._find_server = find_server
        self._session = Session(f"front-{secrets.token_hex(8)}")
        self._unacked: dict[int, Report] = {}
        self._reported = 0
        self._answers: list[asyncio.Future[Reply]] = []
        self._writer: asyncio.StreamWriter | None = None
        self.ended: asyncio.Future[JobEnded] = asyncio.get_running_loop().create_future()
        """The end of the job, once the server has said so."""

    def report(self, fact: Fact) -> None:
        """Hand a fact in; it is repeated until the server has it."""
        self._reported += 1
        message = Report(number=self._reported, fact=fact)
        self._unacked[message.number] = message
        self._send(message)

    @property
    def delivered(self) -> bool:
        return not self._unacked

    async def query(self, what: str, kind: type[Answer], **args: Any) -> Answer | None:
        """One question; None where the server cannot answer it now (gone, or it declined)."""
        if self._writer is None:
            return None
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answers.append(future)
        self._send(Query(what=what, args=args))
        try:
            reply = await future
        except ConnectionError:
            return None
        return msgspec.msgpack.decode(reply.body, type=kind) if reply.ok else None

    async def run(self) -> None:
        """Connect, listen, connect again. Raises LinkRefused, and whatever ``find_server`` raises."""
        pause_s = RETRY_S[0]
        while True:
            try:
                await self._converse(await self._find_server())
                pause_s = RETRY_S[0]
            except (OSError, EOFError):
                await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
                pause_s = min(pause_s * 2, RETRY_S[1])

    async def _converse(self, text: str) -> None:
        address = parse_address(text)
        if address.path:
            reader, writer = await asyncio.open_unix_connection(address.path)
        else:
            reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            hello = Hello(
                protocol=PROTOCOL, role="front", token=self._token, job=self._job, run=self._run, session=self._session
            )  # fmt: skip
            writer.write(encode(hello))
            welcome = await _next(reader)
            if not isinstance(welcome, Welcome):
                raise LinkRefused(welcome.reason if isinstance(welcome, Refused) else f"unexpected {welcome!r}")
            self._take_ack(welcome.acked)
            self._writer = writer
            for message in list(self._unacked.values()):
                self._send(message)
            while True:
                self._take(await _next(reader))
        finally:
            self._writer = None
            writer.close()
            for future in self._answers:
                if not future.done():
                    future.set_exception(ConnectionError("the server went away"))
            self._answers.clear()

    def _take(self, message: Message) -> None:
        if isinstance(message, Ack):
            self._take_ack(message.number)
        elif isinstance(message, Reply) and self._answers:
            future = self._answers.pop(0)
            if not future.done():
                future.set_result(message)
        elif isinstance(message, JobEnded) and not self.ended.done():
            self.ended.set_result(message)

    def _take_ack(self, number: int) -> None:
        self._unacked = {n: report for n, report in self._unacked.items() if n > number}

    def _send(self, message: Message) -> None:
        if self._writer is not None:
            self._writer.write(encode(message))


async def _next(reader: asyncio.StreamReader) -> Message:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return decode(await reader.readexactly(size))
