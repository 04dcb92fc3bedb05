"""The journal in a SQLite file. Owns its schema and its durability; must not interpret records.

WAL with synchronous=FULL: a returned ``append`` survives the loss of power. One transaction per call, so that a batch
of facts costs one flush to disk. One process writes (the server lock sees to it), any number read meanwhile.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from keepstep.adapters.memory.chain import GENESIS, body_of, digest, entry_of
from keepstep.core.decision import Entry, Record
from keepstep.core.ids import Session
from keepstep.core.mentions import subjects
from keepstep.ports import JournalCorrupt, JournalSchemaNewer, JournalUnavailable

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE entries (
            seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, body BLOB NOT NULL, prev BLOB NOT NULL, hash BLOB NOT NULL
        ) STRICT""",
        "CREATE TRIGGER entries_keep BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the journal only grows'); END",
        "CREATE TRIGGER entries_fix BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the journal only grows'); END",
    ),
    (
        # Which report of which session a fact came in: what lets a launcher's repeated report be told from a new one.
        "ALTER TABLE entries ADD COLUMN session TEXT",
        "ALTER TABLE entries ADD COLUMN number INTEGER",
        "CREATE INDEX entries_origin ON entries (session, number) WHERE session IS NOT NULL",
    ),
)
"""Statements that lead from schema n to schema n + 1. Append only: a released migration is never edited."""

SCHEMA = len(MIGRATIONS)
READ_CHUNK = 512
"""Entries fetched at once; a reader holds no lock between chunks, so that it never stops a WAL checkpoint."""


class SqliteJournal:
    """``read_only`` opens a journal that another process may be writing, and changes nothing, not even the schema.

    Raises JournalSchemaNewer, JournalCorrupt (not a database), JournalUnavailable (cannot be opened), FileNotFoundError
    (``read_only`` and absent).
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        if read_only and not path.exists():
            raise FileNotFoundError(f"there is no journal at {path}")
        mode = "ro" if read_only else "rwc"
        try:
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise JournalUnavailable(f"cannot open the journal {path}: {error}") from error
        try:
            self._prepare(read_only)
        except sqlite3.DatabaseError as error:
            self._db.close()
            if isinstance(error, sqlite3.OperationalError):
                raise JournalUnavailable(f"cannot open the journal {path}: {error}") from error
            raise JournalCorrupt(1, f"cannot be read ({error})", str(path)) from error
        except BaseException:
            self._db.close()
            raise
        self._seq, self._hash = self._head()

    def _prepare(self, read_only: bool) -> None:
        self._db.execute("PRAGMA busy_timeout = 5000")
        if not read_only:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
        version = self._schema_version()
        if version > SCHEMA:
            raise JournalSchemaNewer(
                f"the journal {self._path} has schema {version}; this Keepstep knows up to {SCHEMA}. "
                "Use the newer Keepstep that wrote it, or another --state-dir."
            )
        if not read_only:
            self._migrate()

    def _schema_version(self) -> int:
        known = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone()
        if not known:
            return 0
        newest: tuple[int | None] = self._db.execute("SELECT max(version) FROM schema_version").fetchone()
        return newest[0] or 0

    def _migrate(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, at_s REAL NOT NULL) STRICT"
            )
            for version in range(self._schema_version(), SCHEMA):
                for statement in MIGRATIONS[version]:
                    self._db.execute(statement)
                self._db.execute("INSERT INTO schema_version VALUES (?, ?)", (version + 1, time.time()))
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def _head(self) -> tuple[int, bytes]:
        try:
            row = self._db.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        except sqlite3.OperationalError:  # a read-only look at a file whose first migration has not happened yet
            return 0, GENESIS
        return (int(row[0]), bytes(row[1])) if row else (0, GENESIS)

    def append(
        self, at_s: float, records: Sequence[Record], origins: Sequence[tuple[Session, int] | None] = ()
    ) -> list[Entry]:
        """Durable when it returns. ``origins``: for each record the report it came in, or None."""
        seq, prev = self._seq, self._hash
        rows: list[tuple[int, float, bytes, bytes, bytes, str | None, int | None]] = []
        written: list[Entry] = []
        for index, record in enumerate(records):
            seq, body = seq + 1, body_of(record)
            hashed = digest(prev, seq, at_s, body)
            session, number = (origins[index] if index < len(origins) else None) or (None, None)
            rows.append((seq, at_s, body, prev, hashed, session, number))
            written.append(Entry(seq=seq, at_s=at_s, record=record, prev=prev.hex(), hash=hashed.hex()))
            prev = hashed
        self._write(rows)
        self._seq, self._hash = seq, prev
        return written

    def _write(self, rows: list[tuple[int, float, bytes, bytes, bytes, str | None, int | None]]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.IntegrityError):
                raise JournalCorrupt(self._seq + 1, "was written by another process", str(self._path)) from error
            raise JournalUnavailable(f"cannot write the journal {self._path}: {error}") from error

    def received(self) -> dict[Session, int]:
        """Highest report number per session that is in the journal."""
        rows = self._db.execute("SELECT session, max(number) FROM entries WHERE session IS NOT NULL GROUP BY session")
        return {Session(session): int(number) for session, number in rows}

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Entries in order, each checked against the chain. Raises JournalCorrupt at the first bad one."""
        prev = self._hash_of(after)
        expected = after + 1
        while chunk := self._chunk(expected):
            for seq, at_s, body, stored_prev, stored in chunk:
                if seq != expected or stored_prev != prev:
                    raise JournalCorrupt(expected, "is missing or does not follow the one before it", str(self._path))
                try:
                    entry = entry_of(seq, at_s, body, prev, stored)
                except ValueError as error:
                    raise JournalCorrupt(seq, str(error), str(self._path)) from error
                yield entry
                prev, expected = stored, expected + 1

    def _hash_of(self, seq: int) -> bytes:
        if not seq:
            return GENESIS
        row = self._db.execute("SELECT hash FROM entries WHERE seq = ?", (seq,)).fetchone()
        if row is None:
            raise JournalCorrupt(seq, "is missing", str(self._path))
        return bytes(row[0])

    def _chunk(self, first: int) -> list[tuple[int, float, bytes, bytes, bytes]]:
        try:
            return self._db.execute(
                "SELECT seq, at_s, body, prev, hash FROM entries WHERE seq >= ? ORDER BY seq LIMIT ?",
                (first, READ_CHUNK),
            ).fetchall()
        except sqlite3.DatabaseError as error:
            if "no such table" in str(error):
                return []
            raise JournalCorrupt(first, f"cannot be read ({error})", str(self._path)) from error

    def first(self) -> int:
        return 1

    def last(self) -> int:
        return self._head()[0]

    def mentioning(self, subjects_wanted: Sequence[str], *, before: int | None = None, limit: int = 100) -> list[Entry]:
        wanted = set(subjects_wanted)
        fitting = [
            entry
            for entry in self.read()
            if (before is None or entry.seq < before) and (not wanted or wanted.intersection(subjects(entry.record)))
        ]
        return fitting[::-1][:limit]

    def verify(self) -> int:
        return sum(1 for _ in self.read())

    def close(self) -> None:
        self._db.close()
