"""Connections to one database, and how its failures are told. Owns transactions and the translation of errors.

Every connection is in autocommit until ``writing`` begins a transaction by itself, so that a look costs one round trip and
holds nothing. Nothing here waits much longer than ``patience_s``, whatever becomes of the other side.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError

from keepstep.adapters.database.news import News
from keepstep.ports import JournalCorrupt, JournalUnavailable

PATIENCE_S = 5.0
"""How long to wait for a connection, a lock, and an answer, each."""

POSTGRESQL = ("postgresql://", "postgres://")


class Cursor(Protocol):
    """Of a driver, as far as both agree."""

    def execute(self, sql: str, values: Any = ..., /) -> Any: ...

    def executemany(self, sql: str, rows: Any, /) -> Any: ...

    def fetchone(self) -> Any: ...


class OutcomeUnknown(JournalUnavailable):
    """The connection broke while a transaction was being committed: it may have been kept, or not."""


@dataclass(frozen=True)
class Reach:
    """How one kind of database is reached."""

    engine: Engine
    name: str
    """For messages; without a password."""
    begin: str
    limit: Callable[[Connection], AbstractContextManager[None]]
    """Ends what lasts too long, where the driver itself would wait on."""
    damaged: Callable[[BaseException | None], bool]
    """Whether this error of the driver says that what is stored is broken."""
    news: Callable[[str], News]
    """Opens a connection that hears of changes; told the channel."""
    close: Callable[[], None]


def reach(where: str | Path, *, read_only: bool, patience_s: float) -> Reach:
    """``where``: a file, ``sqlite:///FILE`` or ``postgresql://…``. Raises ValueError for anything else."""
    text = str(where)
    if text.startswith(POSTGRESQL):
        from keepstep.adapters.database.postgresql import reach_postgresql

        return reach_postgresql(text, patience_s)
    from keepstep.adapters.database.sqlite import reach_sqlite

    if "://" in text and not text.startswith("sqlite:///"):
        raise ValueError(f"no database is known behind {text!r}; name a file, or postgresql://user@host/database")
    return reach_sqlite(Path(text.removeprefix("sqlite:///")), read_only, patience_s)


class Connections:
    """``reading`` and ``writing`` raise JournalUnavailable and JournalCorrupt; the next call connects anew by itself."""

    def __init__(self, reached: Reach, *, read_only: bool) -> None:
        self._reached = reached
        self.engine = reached.engine
        self.name = reached.name
        self.read_only = read_only
        self.is_postgresql = reached.engine.dialect.name == "postgresql"
        self._kept: Connection | None = None

    @contextmanager
    def reading(self, first: int = 1) -> Iterator[Connection]:
        """Autocommit: every statement sees what is kept by then. ``first``: the entry to blame where bytes are broken."""
        with self._told("read", first), self._connect() as connection, self._reached.limit(connection):
            yield connection

    @contextmanager
    def writing(self, *, patient: bool = False) -> Iterator[Connection]:
        """One transaction, kept when the block ends well. ``patient``: for work that takes long, such as a migration.

        Raises OutcomeUnknown where the connection breaks while it is committed, IntegrityError where rows collide.
        """
        limit = nullcontext if patient else self._reached.limit
        with self._told("write"), self._connect() as connection, limit(connection):
            connection.exec_driver_sql(self._reached.begin)
            if patient and self.is_postgresql:
                _be_patient(connection)
            yield connection
            with self._in_doubt():
                connection.commit()

    @contextmanager
    def writing_bare(self) -> Iterator["Cursor"]:
        """As ``writing``, on the driver's own cursor: for the path that every fact of the fleet takes, where the layers above
        it would cost more than the database."""
        with self._told("write"), self._at_hand() as connection, self._reached.limit(connection):
            driver = connection.connection.driver_connection
            assert driver is not None
            with self._wrapped(connection):
                cursor: Cursor = driver.cursor()
                cursor.execute(self._reached.begin)
                yield cursor
            with self._in_doubt(), self._wrapped(connection):
                driver.commit()

    @contextmanager
    def _wrapped(self, connection: Connection) -> Iterator[None]:
        """Errors of the driver become what SQLAlchemy makes of them; a connection that is gone is given up."""
        dialect = self.engine.dialect
        error_type = dialect.loaded_dbapi.Error
        try:
            yield
        except error_type as error:
            gone = dialect.is_disconnect(error, connection.connection, None)
            if gone:
                connection.invalidate(error)
            raise DBAPIError.instance(
                None, None, error, error_type, connection_invalidated=gone, dialect=dialect
            ) from error  # fmt: skip

    @contextmanager
    def standing_still(self) -> Iterator[Connection]:
        """One look at everything as it is at the first statement, for as long as it takes. Stops no writer."""
        with self._told("read"), self._connect() as connection:
            if self.is_postgresql:
                connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                _be_patient(connection)
            else:
                connection.exec_driver_sql("BEGIN")
            yield connection

    def news(self, channel: str) -> News:
        return self._reached.news(channel)

    def _connect(self) -> Connection:
        try:
            return self.engine.connect()
        except InvalidRequestError as error:
            # The pool's own word for it: each connection that it tried to hand out was dead, or died as it was tried.
            raise JournalUnavailable(f"no connection to the journal {self.name} lasts: {error}") from error

    @contextmanager
    def _at_hand(self) -> Iterator[Connection]:
        """One that is kept for the next time, if all goes well: for one user. That of PostgreSQL may have died since, and comes
        from the pool, which looks."""
        connection, self._kept = self._kept or self._connect(), None
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self.is_postgresql:
            connection.close()
        else:
            self._kept = connection

    @contextmanager
    def _in_doubt(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise OutcomeUnknown(f"{self.name} went away in the middle of a commit: {said(error)}") from error

    @contextmanager
    def _told(self, deed: str, first: int = 1) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            if self._reached.damaged(error.orig):
                raise JournalCorrupt(first, f"cannot be read ({said(error)})", self.name) from error
            raise JournalUnavailable(f"cannot {deed} the journal {self.name}: {said(error)}") from error

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self.engine.dispose()
        self._reached.close()


def _be_patient(connection: Connection) -> None:
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")


def said(error: DBAPIError) -> str:
    """What the database itself says, on one line."""
    return " ".join(str(error.orig).split())
