"""Snapshot servers among each other, over TCP: mirrored parts, blobs by digest, copies. Owns the sockets between nodes.

Must not judge what is valid beyond digests. A peer that is slow or gone costs its own thread, never a worker's step.
"""

import contextlib
import hmac
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.snapshot.fetched import Fetched
from keepstep.checkpoint.snapshot.memory import Memory
from keepstep.checkpoint.snapshot.messages import (
    AskPart,
    Blob,
    Fetch,
    FrameBuffer,
    NotFound,
    Notice,
    Offer,
    Part,
    PeerHello,
    Safe,
    Taken,
    between_peers,
    frame,
    receive,
)
from keepstep.checkpoint.state.blob import matches

CONNECT_S = 2.0
ANSWER_S = 60.0
SILENCE_S = 10.0
"""A peer that sends nothing for so long in the middle of an answer is given up."""
RETRY_S = 0.25
BACKLOG_PARTS = 256
"""Parts that wait for a slow peer; older ones are dropped, a newer step is worth more."""
PIECE_BYTES = 8 * 1024 * 1024
"""Sent at a time: the silence of a slow peer is noticed within one piece."""


class PeerServer:
    """Answers peers. One thread per connection; all are daemons and end with the process.

    ``arrived`` is called when a peer's part has come in, ``notice`` with what people should know.
    """

    def __init__(
        self, host: str, hello: PeerHello, memory: Memory, arrived: Callable[[], None], notice: Callable[[Notice], None]
    ) -> None:
        self._hello, self._memory, self._arrived, self._notice = hello, memory, arrived, notice
        self._socket = socket.create_server((host, 0), backlog=128)
        name = self._socket.getsockname()
        self.address = f"{name[0]}:{name[1]}"
        threading.Thread(target=self._accept, name="peers", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        buffer = FrameBuffer(between_peers)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            try:
                connection.settimeout(SILENCE_S)
                hello = receive(connection, buffer)
                if not self._is_ours(hello):
                    connection.sendall(frame(NotFound(reason="another job, or a wrong secret")))
                    return
                connection.settimeout(None)
                while True:
                    message = receive(connection, buffer)
                    if isinstance(message, Offer):
                        self._take(connection, buffer, message, hello.address)
                    else:
                        self._answer(connection, message, hello.address)
            except (OSError, msgspec.DecodeError):
                return

    def _is_ours(self, hello: Any) -> bool:
        if not isinstance(hello, PeerHello):
            return False
        secret = hmac.compare_digest(hello.secret.encode(), self._hello.secret.encode())
        return secret and hello.job == self._hello.job

    def _take(self, connection: socket.socket, buffer: FrameBuffer, offer: Offer, sender: str) -> None:
        """Receive a copy. It counts once its bytes are verified here; a sender that dies midway leaves nothing."""
        arena = self._memory.offered(offer)
        if isinstance(arena, Taken):
            connection.sendall(frame(arena))
            return
        whole = False
        try:
            # Not within the memory's lock: seals and grants go on meanwhile.
            arena.page_in()
            connection.sendall(frame(Taken(verdict="send")))
            connection.settimeout(SILENCE_S)
            view = memoryview(arena.map)[: offer.size_bytes]
            receive_into(connection, buffer, view)
            whole = matches(view, offer.digest)
        finally:
            self._memory.filled(offer, arena, whole=whole)
        connection.settimeout(None)
        if whole:
            connection.sendall(frame(Taken(verdict="held")))
            return
        reason = f"{sender or 'a peer'} sent damaged bytes for {offer.digest}: the copy was not kept"
        connection.sendall(frame(Taken(verdict="damaged", reason=reason)))
        self._notice(Notice(topic="replica", generation=offer.generation, step=offer.step, reason=reason))

    def _answer(self, connection: socket.socket, message: Any, sender: str) -> None:
        match message:
            case Part():
                if self._memory.mirrored(message, sender):
                    self._arrived()
            case Safe():
                self._memory.safe(message)
            case AskPart(generation=generation, step=step, rank=rank):
                part = self._memory.part(generation, step, rank)
                connection.sendall(frame(part or NotFound(reason=f"no part of rank {rank} at step {step}")))
            case Fetch(digest=digest):
                with self._memory.located(digest) as found:
                    if found is None:
                        connection.sendall(frame(NotFound(reason=f"no bytes of {digest}")))
                    else:
                        connection.sendall(frame(Blob(size_bytes=found.size_bytes)))
                        connection.sendall(found.data)
            case _:
                raise msgspec.DecodeError("not a request")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Wakes the thread that accepts.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def receive_into(
    connection: socket.socket, buffer: FrameBuffer, view: memoryview, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Raw bytes that follow a message, until ``view`` is full. Raises ConnectionError at the end of the stream."""
    done = buffer.drain_into(view)
    while done < len(view):
        count = connection.recv_into(view[done:])
        if not count:
            raise ConnectionResetError(f"the other side closed after {done} of {len(view)} bytes")
        done += count
        progress(count)


class PeerLink:
    """A connection to one peer, for questions. Not for use by two threads at once."""

    def __init__(self, address: str, hello: PeerHello) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._buffer = FrameBuffer(between_peers)
        self._socket = socket.create_connection((host, int(port)), timeout=CONNECT_S)
        try:
            self._socket.settimeout(SILENCE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(frame(hello))
        except BaseException:
            self._socket.close()
            raise

    def send(self, word: Part | Safe) -> None:
        self._socket.sendall(frame(word))

    def offer(self, offer: Offer, data: memoryview) -> Taken:
        """Have the peer keep a copy of ``data``. The answer is its last word."""
        self._socket.sendall(frame(offer))
        answer = self._taken()
        if answer.verdict != "send":
            return answer
        for begin in range(0, len(data), PIECE_BYTES):
            self._socket.sendall(data[begin : begin + PIECE_BYTES])
        return self._taken()

    def _taken(self) -> Taken:
        # The peer may have to find memory first, or has to digest what it got.
        self._socket.settimeout(ANSWER_S)
        answer = receive(self._socket, self._buffer)
        self._socket.settimeout(SILENCE_S)
        if not isinstance(answer, Taken):
            raise ConnectionError(f"{self.address} answered an offer with {type(answer).__name__}")
        return answer

    def cut(self) -> None:
        """End what another thread does with this link, which fails there. Does not wait."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def ask_part(self, generation: int, step: int, rank: int) -> Part | None:
        self._socket.sendall(frame(AskPart(generation=generation, step=step, rank=rank)))
        answer = receive(self._socket, self._buffer)
        return answer if isinstance(answer, Part) else None

    def fetch(self, digest: str, size_bytes: int, progress: Callable[[int], None] = lambda _: None) -> Fetched | None:
        """The bytes of a digest, verified; None if the peer does not have them. Raises StateInvalid if they are wrong."""
        self._socket.sendall(frame(Fetch(digest=digest)))
        answer = receive(self._socket, self._buffer)
        if not isinstance(answer, Blob):
            return None
        if answer.size_bytes != size_bytes:
            raise StateInvalid(
                f"{self.address} offers {answer.size_bytes} bytes for {digest} where {size_bytes} were saved"
            )
        fetched = Fetched(size_bytes)
        try:
            receive_into(self._socket, self._buffer, fetched.view, progress)
            if not matches(fetched.view, digest):
                raise StateInvalid(f"{self.address} sent damaged bytes for {digest}")
        except BaseException:
            fetched.close()
            raise
        return fetched

    def close(self) -> None:
        self._socket.close()


class Mirror:
    """Sends parts and words to one peer from a thread of its own, newest kept when it falls behind."""

    def __init__(self, address: str, hello: PeerHello) -> None:
        self._address, self._hello = address, hello
        self._waiting: deque[Part | Safe] = deque(maxlen=BACKLOG_PARTS)
        self._ready = threading.Condition()
        self._stopped = False
        threading.Thread(target=self._run, name=f"mirror {address}", daemon=True).start()

    def put(self, part: Part | Safe) -> None:
        with self._ready:
            self._waiting.append(part)
            self._ready.notify()

    def stop(self) -> None:
        with self._ready:
            self._stopped = True
            self._ready.notify()

    def _run(self) -> None:
        link: PeerLink | None = None
        while (part := self._next()) is not None:
            try:
                link = link or PeerLink(self._address, self._hello)
                link.send(part)
            except OSError:
                with self._ready:
                    if len(self._waiting) < BACKLOG_PARTS:
                        self._waiting.appendleft(part)
                if link is not None:
                    link.close()
                link = None
                with self._ready:
                    self._ready.wait_for(lambda: self._stopped, timeout=RETRY_S)
        if link is not None:
            link.close()

    def _next(self) -> Part | Safe | None:
        with self._ready:
            self._ready.wait_for(lambda: self._stopped or bool(self._waiting))
            return None if self._stopped else self._waiting.popleft()
