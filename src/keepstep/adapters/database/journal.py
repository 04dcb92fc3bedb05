"""The journal in a SQL database. Owns its chain, its durability and its index of subjects; must not interpret records.

One transaction per ``append``, so that a batch of facts costs one flush to disk: the term is checked, entries and their
mentions are kept, all or nothing. Two writers cannot fork the chain: a number is taken once.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import TypeAlias

from sqlalchemy import Connection, Row, Select, func, select, union_all
from sqlalchemy.exc import IntegrityError

from keepstep.adapters.database.engine import Connections, OutcomeUnknown
from keepstep.adapters.database.fence import Fence
from keepstep.adapters.database.migrate import Schema
from keepstep.adapters.database.rows import Insertion, key_of, mention_rows, seqs_of
from keepstep.adapters.database.schema import entries, marks, mentions, sessions
from keepstep.adapters.memory.chain import GENESIS, body_of, digest, entry_of
from keepstep.core.decision import Entry, Record
from keepstep.core.ids import Session
from keepstep.core.mentions import subjects
from keepstep.ports import JournalCorrupt, StoredEntry

READ_CHUNK = 512
"""Entries fetched at once; a reader holds no lock between chunks, so that it never stops a WAL checkpoint."""
SUBJECTS_AT_ONCE = 64
ORIGINS_SINCE = "0002"
MENTIONS_SINCE = "0003"

_CHAINED = (entries.c.seq, entries.c.at_s, entries.c.body, entries.c.prev, entries.c.hash)

EntryRow = tuple[int, float, bytes, bytes, bytes, str | None, int | None]
"""As the columns of ``entries``."""
ChainedRow: TypeAlias = "Row[int, float, bytes, bytes, bytes]"


class SqlJournal:
    """Meets ports.Journal. ``schema``: what the database has; older than ours only where it is just looked at."""

    def __init__(self, connections: Connections, fence: Fence, schema: Schema) -> None:
        self._connections = connections
        self._fence = fence
        self._schema = schema
        self._term = fence.term
        self._seq, self._hash = self._head()
        self._insert = Insertion(entries, connections.engine.dialect)
        self._mention = Insertion(mentions, connections.engine.dialect)
        self._in_doubt: list[EntryRow] = []
        """Of an append whose commit may have been kept or not."""

    # ---- where it begins and ends

    def _head(self) -> tuple[int, bytes]:
        if not self._schema.revision:
            return 0, GENESIS
        with self._connections.reading() as connection:
            return self._head_of(connection)

    def _head_of(self, connection: Connection) -> tuple[int, bytes]:
        newest = select(entries.c.seq, entries.c.hash).order_by(entries.c.seq.desc()).limit(1)
        row = connection.execute(newest).first()
        return (row.seq, bytes(row.hash)) if row else self._compacted(connection)

    def _compacted(self, connection: Connection) -> tuple[int, bytes]:
        """The entry up to which the journal was compacted."""
        if self._schema.revision < MENTIONS_SINCE:
            return 0, GENESIS
        row = connection.execute(select(marks.c.seq, marks.c.hash).where(marks.c.name == "compacted")).first()
        return (row.seq, bytes(row.hash)) if row else (0, GENESIS)

    def first(self) -> int:
        if not self._schema.revision:
            return 1
        with self._connections.reading() as connection:
            return self._compacted(connection)[0] + 1

    def last(self) -> int:
        return self._head()[0]

    # ---- writing

    def append(
        self, at_s: float, records: Sequence[Record], origins: Sequence[tuple[Session, int] | None] = ()
    ) -> list[Entry]:
        """Durable when it returns. Raises Deposed, JournalUnavailable, and JournalCorrupt where another one wrote too.

        Where the connection breaks in the middle of a commit, the same call again finds out whether it was kept.
        """
        if not records:
            return []
        self._follow_term()
        rows, written = self._chained(at_s, records, origins)
        try:
            self._write(rows, records)
        except IntegrityError as error:
            self._judge_collision(rows, error)
        except OutcomeUnknown:
            self._in_doubt = rows
            raise
        self._in_doubt = []
        self._seq, self._hash = written[-1].seq, bytes.fromhex(written[-1].hash)
        return written

    def _follow_term(self) -> None:
        """What others wrote before our term began is ours to go on from."""
        if self._fence.term != self._term:
            self._seq, self._hash = self._head()
            self._term = self._fence.term

    def _chained(
        self, at_s: float, records: Sequence[Record], origins: Sequence[tuple[Session, int] | None]
    ) -> tuple[list[EntryRow], list[Entry]]:
        seq, prev, prev_hex = self._seq, self._hash, self._hash.hex()
        rows: list[EntryRow] = []
        written: list[Entry] = []
        for record, origin in zip(records, chain(origins, repeat(None)), strict=False):
            seq, body = seq + 1, body_of(record)
            hashed = digest(prev, seq, at_s, body)
            hashed_hex = hashed.hex()
            session, number = origin or (None, None)
            rows.append((seq, at_s, body, prev, hashed, session, number))
            written.append(Entry(seq=seq, at_s=at_s, record=record, prev=prev_hex, hash=hashed_hex))
            prev, prev_hex = hashed, hashed_hex
        return rows, written

    def _write(self, rows: list[EntryRow], records: Sequence[Record]) -> None:
        about = mention_rows(rows[0][0], records)
        with self._connections.writing_bare() as cursor:
            self._fence.hold(cursor)
            self._insert.execute(cursor, rows)
            self._mention.execute(cursor, about)

    def _judge_collision(self, rows: list[EntryRow], error: IntegrityError) -> None:
        """A number was taken: by this very batch, whose outcome was unknown, or by somebody else."""
        if self._in_doubt:
            seq, hashed = self._in_doubt[-1][0], self._in_doubt[-1][4]
            with self._connections.reading() as connection:
                kept = connection.execute(select(entries.c.hash).where(entries.c.seq == seq)).scalar()
            if kept == hashed == rows[-1][4]:
                return
        raise JournalCorrupt(self._seq + 1, "was written by another process", self._connections.name) from error

    # ---- reading

    def received(self) -> dict[Session, int]:
        """Highest report number per session that is or was in the journal; heard longest ago first, and before
        those the ones whose entries were all compacted away."""
        if self._schema.revision < ORIGINS_SINCE:
            return {}
        reported = entries.c.session.is_not(None)
        newest = select(entries.c.session, func.max(entries.c.number)).where(reported).group_by(entries.c.session)
        newest = newest.order_by(func.max(entries.c.seq))
        found: dict[Session, int] = {}
        with self._connections.reading() as connection:
            if self._schema.revision >= MENTIONS_SINCE:
                found |= {Session(row.session): row.number for row in connection.execute(select(sessions))}
            for session, number in connection.execute(newest):
                found[Session(session)] = max(number, found.pop(Session(session), 0))
        return found

    def read(self, after: int = 0) -> Iterator[Entry]:
        for row in self._rows(after):
            yield self._entry(row, row.prev)

    def stored(self, after: int = 0) -> Iterator[StoredEntry]:
        for row in self._rows(after):
            if digest(row.prev, row.seq, row.at_s, row.body) != row.hash:
                raise self._corrupt(row.seq, "does not match its hash: it was edited or damaged")
            yield StoredEntry(seq=row.seq, at_s=row.at_s, body=row.body, prev=row.prev, hash=row.hash)

    def _rows(self, after: int) -> Iterator[ChainedRow]:
        """In order, each chained to the one before it."""
        prev, expected = self._hash_of(after), after + 1
        while chunk := self._chunk(expected):
            for row in chunk:
                if row.seq != expected or row.prev != prev:
                    raise self._corrupt(expected, "is missing or does not follow the one before it")
                yield row
                prev, expected = row.hash, expected + 1

    def _hash_of(self, seq: int) -> bytes:
        """What the entry after this one is chained to."""
        if not self._schema.revision:
            return GENESIS
        with self._connections.reading() as connection:
            compacted, compacted_hash = self._compacted(connection)
            if seq < compacted:
                raise self._corrupt(seq + 1, f"was compacted away; the journal begins with entry {compacted + 1}")
            if seq == compacted:
                return compacted_hash
            found = connection.execute(select(entries.c.hash).where(entries.c.seq == seq)).scalar()
        if found is None:
            raise self._corrupt(seq, "is missing")
        return bytes(found)

    def _chunk(self, first: int) -> Sequence[ChainedRow]:
        if not self._schema.revision:
            return ()
        following = select(*_CHAINED).where(entries.c.seq >= first).order_by(entries.c.seq).limit(READ_CHUNK)
        with self._connections.reading(first) as connection:
            return connection.execute(following).all()

    def _entry(self, row: ChainedRow, prev: bytes) -> Entry:
        try:
            return entry_of(row.seq, row.at_s, row.body, prev, row.hash)
        except ValueError as error:
            raise self._corrupt(row.seq, str(error)) from error

    def _corrupt(self, seq: int, what: str) -> JournalCorrupt:
        return JournalCorrupt(seq, what, self._connections.name)

    def mentioning(self, subjects_wanted: Sequence[str], *, before: int | None = None, limit: int = 100) -> list[Entry]:
        if limit <= 0 or not self._schema.revision:
            return []
        if subjects_wanted and self._schema.revision < MENTIONS_SINCE:
            return self._scan(set(subjects_wanted), before, limit)
        with self._connections.reading() as connection:
            query = select(*_CHAINED).where(entries.c.seq > self._compacted(connection)[0])
            if subjects_wanted:
                query = query.where(entries.c.seq.in_(self._numbers(connection, subjects_wanted, before, limit)))
            elif before is not None:
                query = query.where(entries.c.seq < before)
            rows = connection.execute(query.order_by(entries.c.seq.desc()).limit(limit)).all()
        return [self._entry(row, row.prev) for row in rows]

    def _numbers(self, connection: Connection, wanted: Sequence[str], before: int | None, limit: int) -> list[int]:
        """The newest mentions of any of these, by one short walk down the index for each."""
        keys = list(dict.fromkeys(key_of(subject) for subject in wanted))
        found: set[int] = set()
        for start in range(0, len(keys), SUBJECTS_AT_ONCE):
            walks = [_newest_of(key, before, limit) for key in keys[start : start + SUBJECTS_AT_ONCE]]
            for last, seqs in connection.execute(union_all(*(select(walk.subquery()) for walk in walks))):
                found.update(seq for seq in seqs_of(last, seqs) if before is None or seq < before)
        return sorted(found, reverse=True)[:limit]

    def _scan(self, wanted: set[str], before: int | None, limit: int) -> list[Entry]:
        """Of a journal that was never indexed and is only looked at."""
        found: deque[Entry] = deque(maxlen=limit)
        for entry in self.read():
            if before is not None and entry.seq >= before:
                break
            if wanted.intersection(subjects(entry.record)):
                found.append(entry)
        return list(found)[::-1]

    def verify(self) -> int:
        return sum(1 for _ in self.read(self.first() - 1))

    def close(self) -> None:
        self._connections.close()


def _newest_of(subject: str, before: int | None, limit: int) -> "Select[int, bytes | None]":
    found = select(mentions.c.last, mentions.c.seqs).where(mentions.c.subject == subject)
    if before is not None:
        found = found.where(mentions.c.first < before)
    return found.order_by(mentions.c.last.desc()).limit(limit)
