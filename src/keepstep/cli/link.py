"""The front's use of its connection to the server: questions, and the end of the job. Owns what waits for an answer."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from keepstep.adapters.server_link import backoff
from keepstep.adapters.server_link.address import Address
from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.link import LinkSettings, ServerLink
from keepstep.core.facts import Fact
from keepstep.core.ids import JobId, Session
from keepstep.wire.messages import PROTOCOL, Hello, JobEnded, Message, Query, Reply, Welcome

Answer = TypeVar("Answer")


class FrontLink:
    """``run`` goes on until cancelled. ``find_servers`` gives addresses, starting a server where that is its duty."""

    def __init__(
        self, job: JobId, run: str, credentials: Credentials, find_servers: Callable[[], Awaitable[Sequence[Address]]]
    ) -> None:
        session = Session(f"front-{secrets.token_hex(8)}")
        settings = LinkSettings(
            hello=Hello(protocol=PROTOCOL, role="front", job=job, run=run, session=session), credentials=credentials,
            backoff=backoff.FRONT, worth=lambda fact: 0, on_refusal="raise",
        )  # fmt: skip
        self._link = ServerLink(settings, find_servers, self)
        self._answers: list[asyncio.Future[Reply]] = []
        self.ended: asyncio.Future[JobEnded] = asyncio.get_running_loop().create_future()
        """The end of the job, once the server has said so."""

    async def run(self) -> None:
        """Raises ServerRefused."""
        await self._link.run()

    def report(self, fact: Fact) -> None:
        """Hand a fact in; it is repeated until the server has it."""
        self._link.report(fact)

    async def query(self, what: str, kind: type[Answer], **args: Any) -> Answer | None:
        """One question; None where the server cannot answer it now (gone, or it declined)."""
        if not self._link.is_up:
            return None
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answers.append(future)
        self._link.say(Query(what=what, args=args))
        try:
            reply = await future
        except ConnectionError:
            return None
        return msgspec.msgpack.decode(reply.body, type=kind) if reply.ok else None

    # ---- the connection (server_link.link.Listener)

    def connected(self, welcome: Welcome) -> None:
        self._give_up("the server hung up before it answered")

    def lost(self, problem: str) -> None:
        self._give_up(problem)

    def received(self, message: Message) -> None:
        if isinstance(message, Reply) and self._answers:
            future = self._answers.pop(0)
            if not future.done():
                future.set_result(message)
        elif isinstance(message, JobEnded) and not self.ended.done():
            self.ended.set_result(message)

    def _give_up(self, why: str) -> None:
        for future in self._answers:
            if not future.done():
                future.set_exception(ConnectionError(why))
        self._answers.clear()
