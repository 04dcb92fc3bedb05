"""One client connection: frames in, frames out. Owns framing and the order of a conversation; must not judge messages.

A client that breaks the protocol is cut off; nothing it sends can reach the loop before its Hello was accepted.
"""

import asyncio
import logging
from typing import Protocol, cast

import msgspec

from keepstep.adapters.server_link.sockets import watch_closely
from keepstep.adapters.server_link.tls import peer_serial
from keepstep.wire.messages import MAX_FRAME_BYTES, Ack, Enrol, Hello, Message, Refused, Welcome, decode, encode

log = logging.getLogger("keepstep.server")

HELLO_FRAME_LIMIT_BYTES = 64 * 1024
"""A stranger may not make the server hold more than this."""
HELLO_WAIT_S = 10.0
"""A connection that has not said Hello by then is closed."""
SEND_BACKLOG_LIMIT_BYTES = 64 * 1024 * 1024
"""A client that does not read this much is cut off; what it misses is sent again when it comes back."""


LEASE_S = 10.0
"""The kernel finds a client whose host is gone within half of it."""


class Hub(Protocol):
    """What a connection belongs to."""

    def accept(self, connection: "Connection", hello: Hello) -> Message: ...

    def enrol(self, connection: "Connection", message: Enrol) -> None: ...

    def received(self, connection: "Connection", message: Message) -> None: ...

    def closed(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """Server side of one connection."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._rest = bytearray()
        """The beginning of a frame that is not complete yet."""
        self._rest_until = 0
        """How long it must be before it is worth looking at."""
        self._transport: asyncio.Transport | None = None
        self._hello_deadline: asyncio.TimerHandle | None = None
        self._has_enrolled = False
        self.hello: Hello | None = None
        self.peer = "(this machine)"
        """Where the client is, for people."""
        self.encrypted = False
        self.peer_serial: str | None = None
        """Of the client certificate that TLS has verified, as adapters.pki spells it; None without one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it
        watch_closely(transport.get_extra_info("socket"), LEASE_S)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer = f"{address[0]}:{address[1]}"
        self.encrypted = transport.get_extra_info("ssl_object") is not None
        self.peer_serial = peer_serial(transport.get_extra_info("peercert"))
        self._hello_deadline = asyncio.get_running_loop().call_later(
            HELLO_WAIT_S, self.drop, f"it did not say Hello within {HELLO_WAIT_S:.0f} s"
        )

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._rest_until:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at = 0
        while self._transport is not None and (end := self._frame_end(data, at)):
            try:
                self._take(decode(data[at + 4 : end]))
            except msgspec.DecodeError as error:
                self.drop(f"cannot read its message: {error}")
            at = end
        if self._transport is not None:
            self._rest += data[at:]

    def _frame_end(self, data: bytes, at: int) -> int:
        """Where the frame that begins at ``at`` ends; 0 where it is not complete, or too large to be wanted."""
        left = len(data) - at
        if left < 4:
            self._rest_until = 4
            return 0
        size = int.from_bytes(data[at : at + 4], "big")
        limit = MAX_FRAME_BYTES if self.hello else HELLO_FRAME_LIMIT_BYTES
        if size > limit:
            self.drop(f"it announced a frame of {size} bytes; at most {limit} are taken here")
            return 0
        self._rest_until = 4 + size
        return at + 4 + size if left >= 4 + size else 0

    def _take(self, message: Message) -> None:
        if self.hello is not None and isinstance(message, Ack):
            self.send(Ack(number=0))
        elif self.hello is not None:
            self._hub.received(self, message)
        elif isinstance(message, Hello):
            self._begin(message)
        elif isinstance(message, Enrol) and not self._has_enrolled:
            self._has_enrolled = True
            self._hub.enrol(self, message)
        else:
            self.drop("its first message was not Hello")

    def _begin(self, hello: Hello) -> None:
        if self._hello_deadline is not None:
            self._hello_deadline.cancel()
        answer = self._hub.accept(self, hello)
        if isinstance(answer, Welcome):
            self.hello = hello
            self.send(answer)
            return
        self.send(answer)
        if isinstance(answer, Refused):
            self.drop(answer.reason)
        else:
            self.close()

    def send(self, message: Message) -> None:
        """Queue a message; says nothing about arrival."""
        if self._transport is None:
            return
        self._transport.write(encode(message))
        if self._transport.get_write_buffer_size() > SEND_BACKLOG_LIMIT_BYTES:
            self.drop("it does not read what it is sent", flush=False)

    def drop(self, reason: str, *, flush: bool = True) -> None:
        """Cut the client off; ``flush`` sends first what is queued for it."""
        if self._transport is None:
            return
        log.warning("client dropped: %s", reason)
        if flush:
            self._transport.close()
        else:
            self._transport.abort()
        self._transport = None
        self._rest.clear()

    def close(self) -> None:
        """End the conversation in good order."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._hello_deadline is not None:
            self._hello_deadline.cancel()
        if self.hello is not None:
            self._hub.closed(self)

    @property
    def is_open(self) -> bool:
        return self._transport is not None
