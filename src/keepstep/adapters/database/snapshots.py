"""Snapshots beside the journal, and the compaction that they allow. Owns when entries may go; see ``guards``."""

import hashlib
import struct

from sqlalchemy import Connection, delete, func, select, tuple_

from keepstep.adapters.database.engine import Connections
from keepstep.adapters.database.migrate import CONTROL_PLANE_SINCE, Schema
from keepstep.adapters.database.rows import replacing
from keepstep.adapters.database.schema import entries, marks, mentions, sessions, snapshots
from keepstep.ports import JournalCorrupt, Snapshot

KEPT = 2
AT_ONCE = 2000
"""Entries that one transaction deletes: a writer beside it waits no longer than that takes."""

_KEY = tuple_(mentions.c.subject, mentions.c.last)


class SqlSnapshots:
    """Meets ports.Snapshots. A database from before 0003 that is only looked at has no such tables."""

    def __init__(self, connections: Connections, schema: Schema) -> None:
        self._connections = connections
        self._schema = schema

    def newest(self) -> Snapshot | None:
        """Of this very chain and undamaged; others are passed over. Raises JournalCorrupt where none is left and one is
        needed."""
        if self._schema.revision < CONTROL_PLANE_SINCE:
            return None
        with self._connections.reading() as connection:
            if not self._schema.current and not _compacted(connection)[0]:
                return None  # what is over cannot be looked up in its archive: all of the journal tells it
            for row in connection.execute(select(snapshots).order_by(snapshots.c.seq.desc())).all():
                known = _hash_of(connection, row.seq)
                if known == row.hash and row.digest == _digest(row.seq, row.hash, row.at_s, row.body):
                    return Snapshot(seq=row.seq, hash=row.hash.hex(), at_s=row.at_s, body=row.body)
            compacted, _ = _compacted(connection)
        if compacted:
            raise JournalCorrupt(
                compacted, "was compacted away and no sound snapshot covers it", self._connections.name
            )
        return None

    def put(self, snapshot: Snapshot) -> None:
        """Raises ValueError where it is not of an entry of this journal."""
        hashed = bytes.fromhex(snapshot.hash)
        row = {
            "seq": snapshot.seq,
            "hash": hashed,
            "at_s": snapshot.at_s,
            "body": snapshot.body,
            "digest": _digest(snapshot.seq, hashed, snapshot.at_s, snapshot.body),
        }
        with self._connections.writing() as connection:
            if _hash_of(connection, snapshot.seq) != hashed:
                raise ValueError(
                    f"entry {snapshot.seq} of {self._connections.name} is not the one that this snapshot is of"
                )
            connection.execute(replacing(connection, snapshots, ("seq",)), row)
            older = select(snapshots.c.seq).order_by(snapshots.c.seq.desc()).offset(KEPT)
            for seq in connection.execute(older).scalars().all():
                connection.execute(delete(snapshots).where(snapshots.c.seq == seq))

    def compact(self, upto: int) -> None:
        """In steps, so that a writer beside it waits for none of them long. What a death in the middle leaves is not seen any
        more, and goes with the next compaction."""
        with self._connections.writing() as connection:
            compacted, _ = _compacted(connection)
            if upto > compacted:
                self._mark(connection, upto)
        upto = max(upto, compacted)
        while self._forget_entries(upto):
            pass
        at: tuple[str, int] | None = ("", 0)
        while at is not None:
            at = self._forget_mentions(upto, at)

    def _mark(self, connection: Connection, upto: int) -> None:
        hashed = _hash_of(connection, upto)
        covered = connection.execute(select(func.max(snapshots.c.seq))).scalar() or 0
        if hashed is None or covered < upto:
            raise ValueError(f"no snapshot covers entry {upto}; the newest one is of entry {covered}")
        _keep_reports(connection, upto)
        connection.execute(replacing(connection, marks, ("name",)), {"name": "compacted", "seq": upto, "hash": hashed})

    def _forget_entries(self, upto: int) -> bool:
        """Some of what may go; False once nothing was left."""
        with self._connections.writing() as connection:
            oldest = connection.execute(select(func.min(entries.c.seq))).scalar()
            if oldest is None or oldest > upto:
                return False
            connection.execute(delete(entries).where(entries.c.seq <= min(upto, oldest + AT_ONCE - 1)))
        return True

    def _forget_mentions(self, upto: int, after: tuple[str, int]) -> tuple[str, int] | None:
        """Of the rows that follow in the index; returns where it came to."""
        part = (
            select(mentions.c.subject, mentions.c.last)
            .where(tuple_(*after) < _KEY)
            .order_by(mentions.c.subject, mentions.c.last)
            .limit(AT_ONCE)
        )
        with self._connections.reading() as connection:
            rows = connection.execute(part).all()
        if not rows:
            return None
        end = (rows[-1].subject, rows[-1].last)
        if any(row.last <= upto for row in rows):
            with self._connections.writing() as connection:
                here = (tuple_(*after) < _KEY, tuple_(*end) >= _KEY)
                connection.execute(delete(mentions).where(*here, mentions.c.last <= upto))
        return end


def _digest(seq: int, hashed: bytes, at_s: float, body: bytes) -> bytes:
    return hashlib.blake2b(struct.pack(">Qd", seq, at_s) + hashed + body, digest_size=32).digest()


def _compacted(connection: Connection) -> tuple[int, bytes | None]:
    row = connection.execute(select(marks.c.seq, marks.c.hash).where(marks.c.name == "compacted")).first()
    return (row.seq, row.hash) if row else (0, None)


def _hash_of(connection: Connection, seq: int) -> bytes | None:
    found = connection.execute(select(entries.c.hash).where(entries.c.seq == seq)).scalar()
    if found is not None:
        return bytes(found)
    compacted, hashed = _compacted(connection)
    return hashed if seq == compacted else None


def _keep_reports(connection: Connection, upto: int) -> None:
    """Which reports were received must be known for ever: a launcher that was long away may repeat one."""
    gone = (entries.c.seq <= upto) & entries.c.session.is_not(None)
    newest = select(entries.c.session, func.max(entries.c.number)).where(gone).group_by(entries.c.session)
    rows = [{"session": session, "number": number} for session, number in connection.execute(newest)]
    if rows:
        connection.execute(replacing(connection, sessions, ("session",), growing="number"), rows)
