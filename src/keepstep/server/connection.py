"""One client connection: frames in, frames out. Owns framing and the order of a conversation; must not judge messages.

A client that breaks the protocol is cut off; nothing it sends can reach the loop before its Hello was accepted.
"""

import asyncio
import logging
from typing import Protocol

import msgspec

from keepstep.wire.messages import MAX_FRAME_BYTES, Hello, Message, Refused, decode, encode

log = logging.getLogger("keepstep.server")

HELLO_FRAME_LIMIT_BYTES = 64 * 1024
"""A stranger may not make the server hold more than this."""
HELLO_WAIT_S = 10.0
"""A connection that has not said Hello by then is closed."""
SEND_BACKLOG_LIMIT_BYTES = 64 * 1024 * 1024
"""A client that does not read this much is cut off; what it misses is sent again when it comes back."""


class Hub(Protocol):
    """What a connection belongs to."""

    def accept(self, connection: "Connection", hello: Hello) -> Message: ...

    def received(self, connection: "Connection", message: Message) -> None: ...

    def closed(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """Server side of one connection."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._hello_deadline: asyncio.TimerHandle | None = None
        self.hello: Hello | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._hello_deadline = asyncio.get_running_loop().call_later(
            HELLO_WAIT_S, self.drop, f"it did not say Hello within {HELLO_WAIT_S:.0f} s"
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._transport is not None and (body := self._next_frame()) is not None:
            try:
                self._take(decode(body))
            except msgspec.DecodeError as error:
                self.drop(f"cannot read its message: {error}")

    def _next_frame(self) -> bytes | None:
        if len(self._buffer) < 4:
            return None
        size = int.from_bytes(self._buffer[:4], "big")
        limit = MAX_FRAME_BYTES if self.hello else HELLO_FRAME_LIMIT_BYTES
        if size > limit:
            self.drop(f"it announced a frame of {size} bytes; at most {limit} are taken here")
            return None
        if len(self._buffer) < 4 + size:
            return None
        body = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        return body

    def _take(self, message: Message) -> None:
        if self.hello is not None:
            self._hub.received(self, message)
            return
        if not isinstance(message, Hello):
            self.drop("its first message was not Hello")
            return
        if self._hello_deadline is not None:
            self._hello_deadline.cancel()
        answer = self._hub.accept(self, message)
        if isinstance(answer, Refused):
            self.send(answer)
            self.drop(answer.reason)
            return
        self.hello = message
        self.send(answer)

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
        self._buffer.clear()

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
