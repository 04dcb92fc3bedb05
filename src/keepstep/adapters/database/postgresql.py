"""A PostgreSQL database. Owns how it is reached through psycopg, and that no call waits for it without end.

The server limits what a statement and a lock may take; a watchdog here cuts the connection where the server gives no answer
at all, as a stopped machine or a silent network does.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import QueuePool

from keepstep.adapters.database.engine import Reach
from keepstep.adapters.database.news import PushedNews

if TYPE_CHECKING:
    import psycopg

POOL_SIZE = 4


def reach_postgresql(url: str, patience_s: float) -> Reach:
    """Any URL that libpq takes. Raises ValueError where psycopg is not installed, and for a URL that is none."""
    connect_args = arguments(url, patience_s)
    name = _name(url)

    def connect() -> "psycopg.Connection[tuple[object, ...]]":
        import psycopg

        return psycopg.connect(url, autocommit=True, **connect_args)  # type: ignore[arg-type]

    watchdog = Watchdog(patience_s * 1.5)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=connect,
        poolclass=QueuePool,
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        pool_timeout=patience_s,
        use_native_hstore=False,
    )
    event.listen(engine, "checkout", _refuse_dead)
    return Reach(
        engine=engine,
        name=name,
        begin="BEGIN",
        limit=watchdog.over,
        damaged=lambda _: False,
        news=lambda channel: PushedNews(connect, channel),
        close=watchdog.close,
    )


def _refuse_dead(driver: "psycopg.Connection[tuple[object, ...]]", *_: object) -> None:
    """A server that restarts says so on each idle connection: such a one is made anew, and no call has to fail on it."""
    waiting = select.poll()
    waiting.register(driver.fileno(), select.POLLIN)
    if waiting.poll(0):
        raise DisconnectionError("the server has ended this connection")


def arguments(url: str, patience_s: float) -> dict[str, object]:
    """What is set for every connection unless the URL sets it."""
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise ValueError("PostgreSQL needs psycopg: pip install 'keepstep[server]'") from None
    try:
        given = conninfo_to_dict(url)
    except ProgrammingError as error:
        raise ValueError(f"this is no URL of a PostgreSQL database: {str(error).strip()}") from None
    patience_ms = int(patience_s * 1000)
    limits = dict.fromkeys(("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"), patience_ms)
    wanted: dict[str, object] = {
        "connect_timeout": max(2, int(patience_s)),
        "options": " ".join(f"-c {name}={value}" for name, value in limits.items()),
        "application_name": "keepstep",
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": patience_ms,
    }
    return {name: value for name, value in wanted.items() if name not in given}


def _name(url: str) -> str:
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(url)
    host = given.get("host") or given.get("hostaddr") or "localhost"
    return f"PostgreSQL database {given.get('dbname', '')} at {host}"


class Watchdog:
    """Shuts the socket of a connection under which a call lasts longer than ``limit_s``; the call then fails at once."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._under_way: dict[int, tuple[float, psycopg.Connection[tuple[object, ...]]]] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @contextmanager
    def over(self, connection: Connection) -> Iterator[None]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="keepstep-database-watchdog", daemon=True)
            self._thread.start()
        driver: psycopg.Connection[tuple[object, ...]] = connection.connection.driver_connection  # type: ignore[assignment]
        key = id(driver)
        self._under_way[key] = (time.monotonic() + self._limit_s, driver)
        try:
            yield
        finally:
            del self._under_way[key]

    def _watch(self) -> None:
        while not self._closed.wait(self._limit_s / 8):
            now = time.monotonic()
            for due_s, driver in list(self._under_way.values()):
                if due_s <= now:
                    _cut(driver)

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()


def _cut(driver: "psycopg.Connection[tuple[object, ...]]") -> None:
    import psycopg

    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(driver.fileno())) as handle:
        handle.shutdown(socket.SHUT_RDWR)
