"""Mentions, snapshots, the archive, leadership; triggers that let a covered part of the journal be compacted. What the archive
is searched by is made in 0004.

Until a later migration changes them, the tables and triggers are what ``schema`` and ``guards`` say; that migration brings
the present statements over to this file.
"""

import contextlib
import logging

import msgspec
import sqlalchemy as sa
from alembic import op

from keepstep.adapters.database import guards
from keepstep.adapters.database.rows import Insertion, mention_rows
from keepstep.adapters.database.schema import entries, finished, finished_nodes, mentions, metadata
from keepstep.core.decision import Record

revision = "0003"
down_revision = "0002"

CHUNK = 5000

log = logging.getLogger("keepstep.database")


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        # Triggers of files from before Alembic, and their own count of schemas, which an older Keepstep looks at: it is told
        # that this file is not for it.
        for trigger in ("entries_keep", "entries_fix"):
            op.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        if "schema_version" in sa.inspect(connection).get_table_names():
            op.execute("INSERT OR REPLACE INTO schema_version (version, at_s) VALUES (3, 0.0)")
    new = [table for table in metadata.sorted_tables if table not in (entries, finished, finished_nodes)]
    metadata.create_all(connection, tables=new, checkfirst=False)
    for statement in guards.statements(connection.dialect.name):
        op.execute(sa.text(statement.replace(":", r"\:")))
    _mention_all(connection)


def _mention_all(connection: sa.Connection) -> None:
    """What old entries are about. An entry that cannot be read is about nothing: ``journal verify`` tells of it."""
    decoder = msgspec.msgpack.Decoder(Record)
    insertion = Insertion(mentions, connection.dialect)
    after = 0
    while rows := connection.execute(_chunk(after)).all():
        found = []
        for seq, body in rows:
            with contextlib.suppress(msgspec.DecodeError):
                found += mention_rows(seq, [decoder.decode(body)])
        if found:
            insertion.execute(connection.connection.cursor(), found)
        after = rows[-1][0]
        log.info("found what the first %d entries are about", after)


def _chunk(after: int) -> "sa.Select[int, bytes]":
    return sa.select(entries.c.seq, entries.c.body).where(entries.c.seq > after).order_by(entries.c.seq).limit(CHUNK)
