"""A SQLite file as the database. Owns how it is opened and made durable.

WAL with synchronous=FULL: what was committed survives the loss of power. One process writes at a time, any number read
meanwhile.
"""

import random
import sqlite3
import time
from contextlib import nullcontext
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.pool import QueuePool

from keepstep.adapters.database.engine import Reach
from keepstep.adapters.database.news import PolledNews

CACHE_KIB = 24576
"""Of each connection, at most: what a search of a long archive goes through fits in."""


def reach_sqlite(path: Path, read_only: bool, patience_s: float) -> Reach:
    """Raises FileNotFoundError where it is only to be read and is not there."""
    if read_only and not path.exists():
        raise FileNotFoundError(f"there is no journal at {path}")
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"

    def connect() -> sqlite3.Connection:
        # No isolation level: the driver would else begin and end transactions where it thinks fit.
        db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=patience_s)
        try:
            if not read_only:
                _write_ahead(db, patience_s)
                db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        except BaseException:
            db.close()
            raise
        return db

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_reset_on_return="rollback")
    return Reach(
        engine=engine,
        name=str(path),
        begin="BEGIN IMMEDIATE",
        limit=lambda _: nullcontext(),
        damaged=_damaged,
        news=lambda _: PolledNews(connect),
        close=lambda: None,
    )


def _write_ahead(db: sqlite3.Connection, patience_s: float) -> None:
    """A new file is turned to WAL once, alone. SQLite waits for nobody here, for two that turn it at once would wait for each
    other: it says that it is busy, whatever the timeout, so whoever comes second tries again."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until_s:
                raise
        time.sleep(random.uniform(0.001, 0.02))


def _damaged(error: BaseException | None) -> bool:
    """``malformed`` and ``not a database``; a full disk or a lock is an OperationalError."""
    return isinstance(error, sqlite3.DatabaseError) and type(error) is sqlite3.DatabaseError
