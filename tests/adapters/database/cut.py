"""A wire between a client and PostgreSQL that is cut in the middle of a commit, before or after the server had the word."""

import contextlib
import socket
import threading
from pathlib import Path


class Wire:
    """Listens as ``.s.PGSQL.5432`` in ``folder`` and passes everything on to the server's own socket."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.server = str(server / ".s.PGSQL.5432")
        self.cut_next_commit = ""
        """``before`` or ``after`` it is passed on; the answer never comes back."""
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / ".s.PGSQL.5432"))
        self._listening.listen()
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            self._ends += [near, far]
            far.connect(self.server)
            for source, sink, watched in ((near, far, True), (far, near, False)):
                self._threads.append(threading.Thread(target=self._pass_on, args=(source, sink, watched)))
                self._threads[-1].start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, watched: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if watched and self.cut_next_commit and b"COMMIT" in data:
                    when, self.cut_next_commit = self.cut_next_commit, ""
                    source.shutdown(socket.SHUT_RDWR)
                    if when == "after":
                        sink.sendall(data)
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_WR if end is sink else socket.SHUT_RD)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=60)
        for end in (self._listening, *self._ends):
            end.close()
