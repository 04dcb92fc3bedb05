"""How values become columns, and rows are put. Owns what no database may choke on.

A name comes from outside and may be anything; PostgreSQL takes no NUL in a text, and no long text in an index. A journal that
cannot be written to because of a name would stop the server.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection, Dialect, Insert, Table

from keepstep.adapters.database.engine import Cursor
from keepstep.core.decision import Record
from keepstep.core.mentions import subjects

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

KEY_CHARS = 160

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode


def text_of(value: str) -> str:
    return value.replace("\0", "\ufffd") if "\0" in value else value


def key_of(value: str) -> str:
    """Of a name that is looked up by equality: itself, or where it is very long its beginning and a digest of it."""
    if len(value) <= KEY_CHARS:
        return text_of(value)
    return f"{text_of(value[:KEY_CHARS])}…{hashlib.blake2b(value.encode(), digest_size=16).hexdigest()}"


def mention_rows(first_seq: int, records: Iterable[Record]) -> list[tuple[str, int, int, bytes | None]]:
    """Rows of ``schema.mentions`` for entries that follow one another."""
    about: dict[str, list[int]] = {}
    for seq, record in enumerate(records, start=first_seq):
        for subject in subjects(record):
            about.setdefault(subject, []).append(seq)
    return [
        (key_of(subject), seqs[-1], seqs[0], _encode(seqs) if len(seqs) > 1 else None)
        for subject, seqs in about.items()
    ]


def seqs_of(last: int, seqs: bytes | None) -> list[int]:
    return _decode(seqs) if seqs is not None else [last]


class Insertion:
    """An insert that is made up once and given rows as tuples: for the path that every fact of the fleet takes."""

    def __init__(self, table: Table, dialect: Dialect) -> None:
        names = ", ".join(column.name for column in table.columns)
        self._by_columns = dialect.name == "postgresql"
        if self._by_columns:
            # One statement with a list for each column: a quarter of what a statement for each row costs.
            lists = ", ".join(f"%b::{_ARRAYS[column.type.python_type]}" for column in table.columns)
            self._sql = f"INSERT INTO {table.name} ({names}) SELECT * FROM unnest({lists})"
        else:
            self._sql = f"INSERT INTO {table.name} ({names}) VALUES ({', '.join('?' for _ in table.columns)})"

    def execute(self, cursor: Cursor, rows: Sequence[tuple[object, ...]]) -> None:
        if self._by_columns:
            cursor.execute(self._sql, [list(column) for column in zip(*rows, strict=True)])
        else:
            cursor.executemany(self._sql, rows)


_ARRAYS = {int: "bigint[]", float: "double precision[]", str: "text[]", bytes: "bytea[]"}


def replacing(connection: Connection, table: Table, key: Sequence[str], growing: str = "") -> Insert:
    """Insert; a row of the same (unique) key takes the new values. ``growing``: only where this column of it grows."""
    new = _insert(connection.dialect, table)
    values = {column.name: new.excluded[column.name] for column in table.columns if column.name not in key}
    where = new.excluded[growing] > table.c[growing] if growing else None
    return new.on_conflict_do_update(index_elements=list(key), set_=values, where=where)


# A server on a file never loads what only PostgreSQL needs: it is a tenth of what its start costs.


def _insert(dialect: Dialect, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """One that can say what becomes of a row that is there already."""
    if dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)
