"""The connection to the server: hello, reports until acknowledged, reconnection. Owns the wire; must not obey orders."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

import msgspec

from keepstep.adapters.local.door import open_connection, read_message
from keepstep.core.facts import Fact
from keepstep.launcher.settings import Settings
from keepstep.launcher.spool import Spool
from keepstep.wire import messages
from keepstep.wire.messages import Ack, Beat, Hello, Message, Refused, Welcome

log = logging.getLogger("keepstep.launcher")

_BACKOFF_FIRST_S = 0.02
_BACKOFF_LAST_S = 2.0
_CONNECT_TIMEOUT_S = 5.0
_SEND_BUFFER_LIMIT_BYTES = 16 * 1024 * 1024
"""A server that reads nothing is as good as gone; reports wait in the spool, not in the socket."""


class ServerRefused(Exception):
    """The server does not want this launcher. Says why."""


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
        self._clock = asyncio.get_running_loop().time
        self._lost_since_s = self._clock()
        self._acked = asyncio.Event()
        self._ever_connected = False
        self.closing = False
        self._backoff_s = _BACKOFF_FIRST_S

    @property
    def is_up(self) -> bool:
        return self._writer is not None

    @property
    def silent_s(self) -> float:
        """Time without a server. An open connection counts as heard: the kernel closes it when the other host is gone."""
        return 0.0 if self.is_up else self._clock() - self._lost_since_s

    def report(self, fact: Fact) -> None:
        self._acked.clear()
        self._send(self._spool.add(fact))

    def forget(self, kind: type[Fact]) -> None:
        """See Spool.forget."""
        self._spool.forget(kind)

    def beat(self, beat: Beat) -> None:
        """Never repeated; lost while there is no connection."""
        self._send(beat)

    async def drained(self, wait_s: float) -> bool:
        """All reports are acknowledged, within ``wait_s``."""
        try:
            await asyncio.wait_for(self._acked.wait(), wait_s)
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Connects again and again. Raises ServerRefused if the very first server refuses us."""
        while True:
            try:
                await self._converse()
            except ServerRefused as refusal:
                if not self._ever_connected:
                    raise
                log.warning("the server refuses this launcher now, trying again: %s", refusal)
            except (OSError, EOFError, msgspec.DecodeError, TimeoutError) as problem:
                log.debug("no server at %s: %s", self._settings.server, problem)
            # Jitter: the launchers of a large job shall not come back all at once.
            await asyncio.sleep(self._backoff_s * random.uniform(0.5, 1.0))
            self._backoff_s = min(_BACKOFF_LAST_S, self._backoff_s * 2)

    async def _converse(self) -> None:
        reader, writer = await asyncio.wait_for(
            open_connection(self._settings.server, self._settings.lease_s), _CONNECT_TIMEOUT_S
        )
        try:
            hello = Hello(
                protocol=messages.PROTOCOL, role="launcher", token=self._read_token(), job=self._settings.job,
                node=self._settings.node, session=self._settings.session, run=self._settings.run,
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
            self._down()
            writer.close()

    def _up(self, writer: asyncio.StreamWriter, welcome: Welcome) -> None:
        self._writer = writer
        self._ever_connected = True
        self._backoff_s = _BACKOFF_FIRST_S
        self._acknowledged(welcome.acked)
        for report in self._spool.waiting():
            self._send(report)
        self._listener.connected(welcome)

    def _down(self) -> None:
        if self._writer is not None:
            self._writer = None
            self._lost_since_s = self._clock()
            if not self.closing:
                log.warning("lost the server at %s; the ranks go on", self._settings.server)

    def _acknowledged(self, number: int) -> None:
        self._spool.acknowledged(number)
        if not self._spool.waiting():
            self._acked.set()

    def _send(self, message: Message) -> None:
        if self._writer is None:
            return
        if self._writer.transport.get_write_buffer_size() > _SEND_BUFFER_LIMIT_BYTES:
            self._writer.transport.abort()
            return
        self._writer.write(messages.encode(message))
