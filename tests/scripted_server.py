"""A scripted server's socket: accepts one client after another on a unix socket, and can be killed and started again.

Owns the listening and the frames; what is said to whom is the driver's that builds on it.
"""

import contextlib
import socket
import threading
from pathlib import Path

from keepstep.wire import messages
from keepstep.wire.messages import Message

JOIN_S = 120.0


class Listening:
    """Subclasses say in ``converse`` how they treat a client; it ends with OSError or EOFError when the client goes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: socket.socket | None = None
        """Of a client that has been welcomed."""
        self._accepted: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._saying = threading.Lock()

    def say(self, connection: socket.socket, message: Message) -> None:
        """From any thread: a long message goes out in pieces, and nothing may come between them."""
        with self._saying:
            connection.sendall(messages.encode(message))

    def start(self) -> None:
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, args=(self._listener,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """As a server that was killed: the connection breaks, nobody listens."""
        self._path.unlink(missing_ok=True)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        accepted = self._accepted
        if accepted is not None:
            with contextlib.suppress(OSError):  # it is just being closed
                accepted.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def converse(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                self._accepted = connection
                if self._listener is not listener:
                    return  # stopped before it could be seen there
                try:
                    self.converse(connection)
                except (OSError, EOFError):
                    pass
                finally:
                    self._connection = self._accepted = None


def read_message(connection: socket.socket) -> Message:
    """The next message. Raises EOFError at the end."""
    size = int.from_bytes(_exactly(connection, 4), "big")
    return messages.decode(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
