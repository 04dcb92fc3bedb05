"""The connection to the server: hello, reports until acknowledged, reconnection. Owns the wire; must not obey orders."""

import asyncio
import logging
import os
import random
from collections.abc import Callable
from typing import Protocol

import msgspec

from keepstep.adapters.local.door import open_connection, read_message
from keepstep.adapters.probe import resolve
from keepstep.agent.settings import Settings
from keepstep.agent.spool import Spool
from keepstep.core.facts import Fact
from keepstep.wire import messages
from keepstep.wire.messages import Ack, Beat, Health, Hello, Message, Refused, Welcome

log = logging.getLogger("keepstep.agent")

_BACKOFF_FIRST_S = 0.05
_BACKOFF_LAST_S = 5.0
_CONNECT_TIMEOUT_S = 5.0
_SEND_BUFFER_LIMIT_BYTES = 8 * 1024 * 1024
"""A server that reads nothing is as good as gone; reports wait in the spool, not in the socket."""
_REFUSED_PAUSE_S = 10.0


class ServerRefused(Exception):
    """The server does not want this agent, at least now. Says why."""


class Listener(Protocol):
    """Who is told what happens on the connection."""

    def connected(self, welcome: Welcome) -> None: ...

    def received(self, message: Message) -> None: ...


class ServerLink:
    """Keeps one connection up. ``report`` may be called at any time; order and number of reports survive reconnects."""

    def __init__(self, settings: Settings, listener: Listener, read_token: Callable[[], str]) -> None:
        self._settings = settings
        self._listener = listener
        self._read_token = read_token
        self._spool = Spool()
        self._writer: asyncio.StreamWriter | None = None
        self._backoff_s = _BACKOFF_FIRST_S
        self._told_problem = ""
        self._acked = asyncio.Event()

    @property
    def is_up(self) -> bool:
        return self._writer is not None

    @property
    def is_empty(self) -> bool:
        """All that was reported is in the server's journal."""
        return not len(self._spool)

    @property
    def dropped(self) -> int:
        return self._spool.dropped

    def report(self, fact: Fact) -> None:
        self._acked.clear()
        self._send(self._spool.add(fact))

    def forget_middle(self, kind: type[Fact]) -> None:
        """See Spool.forget_middle."""
        self._spool.forget_middle(kind)

    def holds(self, kind: type[Fact]) -> bool:
        """Whether one of this kind is not acknowledged yet."""
        return self._spool.holds(kind)

    def say(self, word: Beat | Health) -> None:
        """Never repeated; lost while there is no connection."""
        self._send(word)

    async def drained(self, wait_s: float) -> bool:
        """All reports are acknowledged, within ``wait_s``."""
        if self.is_empty:
            return True
        try:
            await asyncio.wait_for(self._acked.wait(), wait_s)
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Connects again and again: a node is watched also while nobody listens."""
        while True:
            pause_s = self._backoff_s
            try:
                await self._converse()
            except ServerRefused as refusal:
                self._problem(f"the server refuses this agent: {refusal}")
                pause_s = _REFUSED_PAUSE_S
            except (OSError, EOFError, ValueError, msgspec.DecodeError, TimeoutError) as problem:
                self._problem(f"no server: {problem or type(problem).__name__}")
            # Jitter: the agents of a fleet shall not come back all at once.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            self._backoff_s = min(_BACKOFF_LAST_S, self._backoff_s * 2)

    def _problem(self, text: str) -> None:
        """Said once, until it is another one: an agent without a server must not fill a log."""
        if text != self._told_problem:
            log.warning("%s; signals are kept until there is one", text)
            self._told_problem = text

    async def _converse(self) -> None:
        reader, writer = await asyncio.wait_for(
            open_connection(server_address(self._settings), self._settings.lease_s, _host_of), 2 * _CONNECT_TIMEOUT_S
        )
        try:
            hello = Hello(
                protocol=messages.PROTOCOL, role="agent", token=self._read_token(), node=self._settings.node,
                session=self._settings.session,
            )  # fmt: skip
            writer.write(messages.encode(hello))
            first = await asyncio.wait_for(read_message(reader), _CONNECT_TIMEOUT_S)
            if isinstance(first, Refused):
                raise ServerRefused(first.reason)
            if not isinstance(first, Welcome):
                raise ConnectionError(f"the server began with {type(first).__name__}, not with Welcome")
            self._up(writer, first)
            while True:
                message = await read_message(reader)
                if isinstance(message, Ack):
                    self._acknowledged(message.number)
                else:
                    self._listener.received(message)
        finally:
            self._writer = None
            writer.close()

    def _up(self, writer: asyncio.StreamWriter, welcome: Welcome) -> None:
        self._writer = writer
        self._backoff_s = _BACKOFF_FIRST_S
        self._told_problem = ""
        self._acknowledged(welcome.acked)
        for report in self._spool.waiting():
            self._send(report)
        self._listener.connected(welcome)

    def _acknowledged(self, number: int) -> None:
        self._spool.acknowledged(number)
        if self.is_empty:
            self._acked.set()

    def _send(self, message: Message) -> None:
        if self._writer is None:
            return
        if self._writer.transport.get_write_buffer_size() > _SEND_BUFFER_LIMIT_BYTES:
            self._writer.transport.abort()
            return
        self._writer.write(messages.encode(message))


def server_address(settings: Settings) -> str:
    """What was given, or what the server of the state directory wrote down. Raises OSError before there was one."""
    if settings.server:
        return settings.server
    with open(os.path.join(settings.state_dir, "server.address"), encoding="utf-8") as file:
        return file.read().strip()


async def _host_of(name: str) -> str:
    """Looked up in a child: a resolver that hangs must not hold up this process."""
    return (await resolve(name, _CONNECT_TIMEOUT_S))[0]
