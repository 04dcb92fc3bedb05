"""Who leads, as one row of the shared database. Owns terms and the lease; the journal asks its fence.

Times are the database's own. On SQLite, where one machine is all there is, a lock on a file beside the database says besides
whether the holder lives: the next life of a killed server need not wait for its lease to run out.
"""

import fcntl
import os
import threading
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, Double, cast, extract, func, insert, literal_column, select, update
from sqlalchemy.exc import IntegrityError

from keepstep.adapters.database.engine import Connections
from keepstep.adapters.database.fence import STEPPED_DOWN, Fence
from keepstep.adapters.database.migrate import CONTROL_PLANE_SINCE, Schema
from keepstep.adapters.database.rows import text_of
from keepstep.adapters.database.schema import leadership
from keepstep.ports import Leader

_ROW = leadership.c.id == 1
_NOBODY = {"id": 1, "term": 0, "holder": "", "address": "", "expires_s": 0.0, "locked": 0}


class SqlLeadership:
    """Meets ports.Leadership. Raises JournalUnavailable where the database cannot be asked: then nobody knows who leads.

    ``lock``: the file that the holder locks for as long as it lives; None where the lease alone decides. A database from
    before 0003 that is only looked at has no such table.
    """

    def __init__(self, connections: Connections, fence: Fence, lock: Path | None, schema: Schema) -> None:
        self._schema = schema
        self._connections = connections
        self._fence = fence
        self._lock = lock
        self._held: int | None = None
        self._turn = threading.Lock()
        """A renewal that is under way in its thread must not come after a release, which it would undo."""
        self._now: ColumnElement[float] = (
            cast(extract("epoch", func.clock_timestamp()), Double)
            if connections.is_postgresql
            else literal_column("(julianday('now') - 2440587.5) * 86400.0")
        )

    def acquire(self, holder: str, address: str, ttl_s: float) -> int | None:
        alone = self._take_lock()
        term = None
        try:
            with self._connections.writing() as connection:
                term = self._next_term(connection, alone, text_of(holder), text_of(address), ttl_s)
        except IntegrityError:
            pass  # another one was the first of all
        finally:
            if alone and term is None:
                self._leave_lock()
        if term is not None:
            self._fence.term = term
        return term

    def _next_term(self, connection: Connection, alone: bool, holder: str, address: str, ttl_s: float) -> int | None:
        """``alone``: we hold the file's lock since now, so that a holder who had it does not live any more."""
        if connection.execute(select(leadership.c.term).where(_ROW)).scalar() is None:
            connection.execute(insert(leadership), _NOBODY)
        expired = leadership.c.expires_s <= self._now
        new = (
            update(leadership)
            .where(_ROW, expired | (leadership.c.locked == 1) if alone else expired)
            .values(term=leadership.c.term + 1, holder=holder, address=address, expires_s=self._now + ttl_s)
            .values(locked=int(self._held is not None))
        )
        return connection.execute(new.returning(leadership.c.term)).scalar()

    def renew(self, ttl_s: float) -> bool:
        with self._turn:
            return self._change(self._fence.term, self._now + ttl_s)

    def release(self) -> None:
        """Does nothing where it does not lead. Its journal takes nothing from then on."""
        term = self._fence.term
        if term > 0:
            self._fence.term = STEPPED_DOWN
            try:
                with self._turn:
                    self._change(term, self._now)
            finally:
                self._leave_lock()

    def _change(self, term: int, expires: "ColumnElement[float]") -> bool:
        if term <= 0:
            return False
        mine = update(leadership).where(_ROW, leadership.c.term == term).values(expires_s=expires)
        with self._connections.writing() as connection:
            return connection.execute(mine).rowcount == 1

    def leader(self) -> Leader | None:
        left = (leadership.c.expires_s - self._now).label("left")
        if self._schema.revision < CONTROL_PLANE_SINCE:
            return None
        asked = select(leadership.c.term, leadership.c.holder, leadership.c.address, left).where(_ROW)
        with self._connections.reading() as connection:
            row = connection.execute(asked).first()
        if row is None or not row.term:
            return None
        return Leader(term=row.term, holder=row.holder, address=row.address, expires_in_s=float(row.left))

    def _take_lock(self) -> bool:
        """True where it was taken now: whoever had it is dead, or has stepped down."""
        if self._lock is None or self._held is not None:
            return False
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._held = handle
        return True

    def _leave_lock(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def close(self) -> None:
        self._leave_lock()
