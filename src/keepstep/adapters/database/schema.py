"""The tables, for both kinds of database. Owns their columns and indexes; what guards them stands in ``guards``.

A change here is a new migration too: a test holds both to the same result. Times are seconds since the epoch.
"""

from sqlalchemy import (
    DDL,
    REAL,
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    event,
)
from sqlalchemy.types import TypeEngine

TEXT = Text().with_variant(Text(collation="C"), "postgresql")
"""Compared byte by byte on both, as Python compares: a cursor of a list is worth the same everywhere."""
NUMBER = BigInteger().with_variant(Integer(), "sqlite")
SECONDS: TypeEngine[float] = Double().with_variant(REAL(), "sqlite")

metadata = MetaData()

entries = Table(
    "entries",
    metadata,
    Column("seq", NUMBER, primary_key=True, autoincrement=False),
    Column("at_s", SECONDS, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("prev", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("session", TEXT),
    Column("number", NUMBER),
    sqlite_strict=True,
)
"""The journal. ``session`` and ``number``: the report in which a fact came in, so that its repetition is known."""

_ORIGIN = "CREATE INDEX entries_origin ON entries (session, number) WHERE session IS NOT NULL"
# Not an Index: its condition would be given for each kind of database, and both be loaded where one is used.
event.listen(entries, "after_create", DDL(_ORIGIN))  # type: ignore[no-untyped-call]

mentions = Table(
    "mentions",
    metadata,
    Column("subject", TEXT, nullable=False),
    Column("last", NUMBER, nullable=False),
    Column("first", NUMBER, nullable=False),
    Column("seqs", LargeBinary),
    PrimaryKeyConstraint("subject", "last"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""Which entries are about what, see core.mentions: one row for a subject and the entries of one append about it, from ``first``
to ``last``; ``seqs`` (msgpack) where there are several. In a storm hundreds of entries are about the same few subjects."""

sessions = Table(
    "sessions",
    metadata,
    Column("session", TEXT, primary_key=True),
    Column("number", NUMBER, nullable=False),
    sqlite_strict=True,
)
"""Highest report of each session among entries that were compacted away."""

marks = Table(
    "marks",
    metadata,
    Column("name", TEXT, primary_key=True),
    Column("seq", NUMBER, nullable=False),
    Column("hash", LargeBinary),
    sqlite_strict=True,
)
"""``compacted``: entries up to ``seq`` may be gone, ``hash`` is that of entry ``seq``. ``archived``: how far the archive is
complete."""

snapshots = Table(
    "snapshots",
    metadata,
    Column("seq", NUMBER, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
    Column("at_s", SECONDS, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    sqlite_strict=True,
)

finished = Table(
    "finished",
    metadata,
    Column("what", TEXT, nullable=False),
    Column("id", TEXT, nullable=False),
    Column("ended_s", SECONDS, nullable=False),
    Column("words", TEXT, nullable=False),
    Column("job", TEXT),
    Column("tenant", TEXT),
    Column("state", TEXT),
    Column("cause", TEXT),
    Column("kind", TEXT),
    PrimaryKeyConstraint("what", "ended_s", "id"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""What is over, as far as lists are filtered by it: ``what`` is ``incident``, ``job`` or ``fault``. SQLite stores it in the
order of the primary key, which is that of every list: a search of all goes through it once, without a jump. A row is decoded
from its beginning, so words come first."""

Index("finished_id", finished.c.what, finished.c.id, unique=True)
_FILTERS = ("job", "tenant", "state", "cause", "kind")
for _name in _FILTERS:
    _others = [finished.c[other] for other in _FILTERS if other != _name]
    Index(f"finished_{_name}", finished.c.what, finished.c[_name], finished.c.ended_s, finished.c.id, *_others)
# Each has all that lists are filtered by: a second filter is judged, and what fits is counted, without a look into the table.

finished_nodes = Table(
    "finished_nodes",
    metadata,
    Column("what", TEXT, nullable=False),
    Column("node", TEXT, nullable=False),
    Column("ended_s", SECONDS, nullable=False),
    Column("id", TEXT, nullable=False),
    PrimaryKeyConstraint("what", "node", "ended_s", "id"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("finished_nodes_id", finished_nodes.c.what, finished_nodes.c.id)

reports = Table(
    "reports",
    metadata,
    Column("what", TEXT, nullable=False),
    Column("id", TEXT, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("report", LargeBinary, nullable=False),
    PrimaryKeyConstraint("what", "id"),
    sqlite_strict=True,
)
"""The bodies of what is over, apart from what is searched."""

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", NUMBER, nullable=False),
    Column("holder", TEXT, nullable=False),
    Column("address", TEXT, nullable=False),
    Column("expires_s", SECONDS, nullable=False),
    Column("locked", Integer, nullable=False),
    sqlite_strict=True,
)
"""One row, of id 1. ``expires_s`` by the database's own clock; ``locked``: 1 where the holder locks a file besides."""

TABLES = (entries, mentions, sessions, snapshots, marks, finished, finished_nodes, reports, leadership)
"""In an order in which they can be filled."""
