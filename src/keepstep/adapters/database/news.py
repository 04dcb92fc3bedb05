"""Word that somebody appended to the journal, for a follower that waits in a thread. Owns a connection of its own."""

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import psycopg

POLL_S = 0.05
"""Between two looks at a SQLite file. A look costs some microseconds."""
SLICE_S = 0.5
"""How long ``close`` may have to wait for a waiting thread."""


class News(Protocol):
    def wait(self, timeout_s: float) -> bool:
        """True as soon as something may have been appended since the last call, False where nothing was within the time, or
        nobody can tell. Never raises on a database that is away: it is listened to again once it is back."""
        ...

    def close(self) -> None:
        """From any thread; a ``wait`` under way returns within half a second."""
        ...


class PolledNews:
    """For a SQLite file: its own counter of changes, by whatever process."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._db = connect()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._seen = -1
        self._seen = self._version()

    def _version(self) -> int:
        try:
            (version,) = self._db.execute("PRAGMA data_version").fetchone()
        except sqlite3.OperationalError:
            return self._seen
        return int(version)

    def wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self._closed.is_set():
            with self._lock:
                version = self._version() if not self._closed.is_set() else self._seen
            if version != self._seen:
                self._seen = version
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._closed.wait(min(POLL_S, left_s))
        return False

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            self._db.close()


class PushedNews:
    """For PostgreSQL: LISTEN. At first, and after a lost connection, the word is True: some may have been missed."""

    def __init__(self, connect: "Callable[[], psycopg.Connection[tuple[object, ...]]]", channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._listening: psycopg.Connection[tuple[object, ...]] | None = None

    def _listen(self) -> None:
        import psycopg

        listening = self._connect()
        try:
            listening.execute(f"LISTEN {self._channel}".encode())
        except psycopg.Error:
            listening.close()
            raise
        self._listening = listening

    def wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while not self._closed.is_set():
                left_s = max(0.0, deadline - time.monotonic())
                if self._heard(min(SLICE_S, left_s)):
                    return True
                if not left_s:
                    break
            return False

    def _heard(self, slice_s: float) -> bool:
        import psycopg

        try:
            if self._listening is None:
                self._listen()
                return True
            return bool(list(self._listening.notifies(timeout=slice_s, stop_after=1)))
        except psycopg.Error:
            self._hang_up()
            self._closed.wait(slice_s)
            return False

    def _hang_up(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._hang_up()
