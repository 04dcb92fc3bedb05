"""A tool's conversation with a server: ask and answer, one at a time. Owns no rendering and starts nothing."""

import secrets
import socket
from typing import Any, TypeVar

import msgspec

from keepstep.core.facts import Fact
from keepstep.core.ids import JobId, Session
from keepstep.server.address import parse_address
from keepstep.wire.messages import PROTOCOL, Ack, Hello, Message, Query, Refused, Reply, Report, Welcome, decode, encode

Answer = TypeVar("Answer")


class ServerRefused(RuntimeError):
    """The server answered, and said no."""


class ServerGone(ConnectionError):
    """Nothing answers at the address, or the connection broke."""


class ToolClient:
    """A connected tool. Use as a context manager.

    Raises ServerGone where no server answers, ServerRefused where it declines (wrong token, other protocol version,
    unknown question).
    """

    def __init__(self, address: str, token: str, *, job: str | None = None, timeout_s: float = 10.0) -> None:
        try:
            self._socket: socket.socket = parse_address(address).connect(timeout_s)
        except OSError as error:
            raise ServerGone(f"no server answers at {address}: {error.strerror or error}") from error
        self._sent = 0
        session = Session(f"tool-{secrets.token_hex(8)}")
        hello = Hello(
            protocol=PROTOCOL, role="tool", token=token, session=session, job=JobId(job) if job is not None else None
        )
        try:
            answer = self._ask(hello)
        except BaseException:
            self.close()
            raise
        if not isinstance(answer, Welcome):
            self.close()
            raise ServerRefused(answer.reason if isinstance(answer, Refused) else f"unexpected answer {answer!r}")
        self.server = answer.server

    def __enter__(self) -> "ToolClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def query(self, what: str, kind: type[Answer], **args: Any) -> Answer:
        """Ask one question of ``server.queries``; ``kind`` is the struct of its answer."""
        reply = self._ask(Query(what=what, args=args))
        if not isinstance(reply, Reply):
            raise ServerRefused(f"unexpected answer {type(reply).__name__}")
        if not reply.ok:
            raise ServerRefused(reply.error)
        return msgspec.msgpack.decode(reply.body, type=kind)

    def report(self, fact: Fact) -> None:
        """Hand a fact in; returns once it is in the journal."""
        self._sent += 1
        answer = self._ask(Report(number=self._sent, fact=fact))
        if not (isinstance(answer, Ack) and answer.number == self._sent):
            raise ServerRefused(f"unexpected answer {answer!r}")

    def _ask(self, message: Message) -> Message:
        try:
            self._socket.sendall(encode(message))
            size = int.from_bytes(self._read(4), "big")
            return decode(self._read(size))
        except OSError as error:
            raise ServerGone(f"the server went away: {error}") from error

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            chunk = self._socket.recv(size - len(parts))
            if not chunk:
                raise ServerGone("the server closed the connection")
            parts += chunk
        return bytes(parts)
