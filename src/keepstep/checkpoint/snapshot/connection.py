"""One accepted unix connection inside a selector loop: whole messages in, messages with descriptors out, never blocking.

Owns buffering. Must not know what messages mean.
"""

import array
import contextlib
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from keepstep.checkpoint.snapshot.messages import FrameBuffer, frame, to_server

MAX_UNSENT_BYTES = 64 * 1024 * 1024


class Connection:
    """``open`` turns False when the other side has gone or sent garbage."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.open = True
        self._incoming: FrameBuffer = FrameBuffer(to_server)
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._unsent = 0

    def read(self) -> list[Any]:
        """Every message that has arrived. What was sent before the other side died is still delivered."""
        messages: list[Any] = []
        while self.open:
            try:
                data = self.socket.recv(256 * 1024)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.open = False
            self._incoming.feed(data)
        try:
            while (message := self._incoming.take()) is not None:
                messages.append(message)
        except msgspec.DecodeError:
            self.open = False
        return messages

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Queue a message and send what goes. The descriptors are duplicated here; the caller keeps its own."""
        if not self.open:
            return
        data = frame(message)
        self._unsent += len(data)
        if self._unsent > MAX_UNSENT_BYTES:
            self.open = False
            return
        self._outgoing.append((data, [os.dup(fd) for fd in descriptors]))
        self.flush()

    def flush(self) -> None:
        while self._outgoing and self.open:
            data, descriptors = self._outgoing[0]
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                sent = self.socket.sendmsg([data], ancillary)
            except BlockingIOError:
                return
            except OSError:
                self.open = False
                return
            # Descriptors travel with the first byte.
            _close(descriptors)
            self._unsent -= sent
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (data[sent:], [])

    def wants_to_write(self) -> bool:
        return self.open and bool(self._outgoing)

    def close(self) -> None:
        self.open = False
        for _, descriptors in self._outgoing:
            _close(descriptors)
        self._outgoing.clear()
        self.socket.close()


def _close(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)
