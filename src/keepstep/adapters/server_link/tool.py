"""A tool's conversation with a server: ask, request, one at a time. Owns no rendering and starts nothing."""

import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from keepstep.adapters.server_link import tls
from keepstep.adapters.server_link.address import Address, parse_addresses
from keepstep.adapters.server_link.errors import (
    Conflict,
    Forbidden,
    KeyReused,
    NoLeader,
    ServerGone,
    ServerRefused,
    UnknownSubject,
)
from keepstep.adapters.server_link.route import Route
from keepstep.core.access import Principal
from keepstep.core.ids import Session
from keepstep.wire.messages import (
    MAX_FRAME_BYTES,
    PROTOCOL,
    Act,
    Hello,
    Message,
    NotLeader,
    Query,
    Refused,
    Reply,
    Welcome,
    decode,
    encode,
)
from keepstep.wire.requests import Accepted, Request

Answer = TypeVar("Answer")
_LEADER_PAUSE_S = 0.2


_KINDS = {kind.__name__: kind for kind in (Forbidden, UnknownSubject, Conflict, KeyReused, NoLeader)}


class ToolClient:
    """A connected tool. Use as a context manager.

    ``addresses``: one or several with commas between them. Raises ServerGone where no server answers, and ServerRefused,
    or the subclass that tells why, where it declines. Waits ``timeout_s`` at most for each answer, and for a leader.
    """

    def __init__(
        self, addresses: str, token: str, *, identity_dir: str = "", user: str = "", timeout_s: float = 10.0
    ) -> None:
        """``token`` may be empty where the certificate in ``identity_dir`` says who we are; that is needed for TLS only."""
        self._identity_dir = identity_dir
        self._timeout_s = timeout_s
        session = Session(f"tool-{secrets.token_hex(8)}")
        self._hello = Hello(protocol=PROTOCOL, role="tool", session=session, user=user, token=token)
        self._socket: socket.socket
        self.server = self._find(parse_addresses(addresses)).server

    def __enter__(self) -> "ToolClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def query(self, what: str, kind: type[Answer], **args: Any) -> Answer:
        """Ask one question of ``server.queries``; ``kind`` is the struct of its answer."""
        return self._replied(Query(what=what, args=args), kind)

    def act(self, request: Request, key: str = "", by: Principal | None = None) -> Accepted:
        """What a person wants; in the journal when this returns. ``key``: the same one with the same request does nothing
        a second time. ``by``: of a replica, for whom it asks."""
        return self._replied(Act(request=request, key=key, by=by), Accepted)

    def _replied(self, message: Message, kind: type[Answer]) -> Answer:
        reply = self._ask(message)
        if not isinstance(reply, Reply):
            raise ServerRefused(f"unexpected answer {type(reply).__name__}")
        if not reply.ok:
            raise _KINDS.get(reply.kind, ServerRefused)(reply.error)
        return msgspec.msgpack.decode(reply.body, type=kind)

    # ---- the connection

    def _find(self, known: Sequence[Address]) -> Welcome:
        """The first server that takes us; waits for one to lead where all of them follow."""
        route, deadline_s = Route(), time.monotonic() + self._timeout_s
        problem: Exception = ServerGone("no server")
        follows = False
        while True:
            address = route.next(known)
            try:
                answer = self._greet(address)
            except ServerGone as gone:
                # That one of them does not answer says less than that another one follows.
                problem = problem if follows else gone
            else:
                if isinstance(answer, Welcome):
                    return answer
                follows, problem = True, NoLeader(f"the server at {address} follows, and no leader answers; try again")
                if route.sent_on(answer.leader, address):
                    continue
            if route.failed(known):
                if not follows or time.monotonic() > deadline_s:
                    raise problem
                time.sleep(_LEADER_PAUSE_S)

    def _greet(self, address: Address) -> Welcome | NotLeader:
        """Raises ServerGone, ServerRefused."""
        self._connect(address)
        try:
            answer = self._first_word(address)
            if isinstance(answer, Welcome):
                return answer
        except BaseException:
            self.close()
            raise
        self.close()
        if isinstance(answer, NotLeader):
            return answer
        raise ServerRefused(answer.reason if isinstance(answer, Refused) else f"unexpected answer {answer!r}")

    def _first_word(self, address: Address) -> Message:
        try:
            return self._ask(self._hello)
        except ServerGone as end:
            if not address.tls:
                raise
            raise ServerGone(tls.hung_up(self._identity_dir)) from end

    def _connect(self, address: Address) -> None:
        try:
            context = tls.client_context(self._identity_dir) if address.tls else None
            self._socket = address.connect(self._timeout_s)
        except tls.IdentityProblem as error:
            raise ServerRefused(str(error)) from error
        except OSError as error:
            raise ServerGone(f"no server answers at {address}: {error.strerror or error}") from error
        if context is None:
            return
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=address.host)
        except OSError as error:
            self._socket.close()
            if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
                raise ServerRefused(tls.explain(error, self._identity_dir)) from error
            raise ServerGone(f"no server answers at {address}: {error}") from error

    def _ask(self, message: Message) -> Message:
        try:
            self._socket.sendall(encode(message))
            size = int.from_bytes(self._read(4), "big")
            if size > MAX_FRAME_BYTES:
                raise ServerGone(f"the server announces {size} bytes, which is no answer")
            return decode(self._read(size))
        except ServerGone:
            raise
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
