"""Copies of a whole database, and back. Owns the one format of copies: a SQLite file of our schema, whatever it was taken from.

So a copy of a fleet's PostgreSQL can be read on a laptop by every command that reads a journal file. A copy is taken from
beside a running server, shows one instant, and is not called done before its chain was checked.
"""

import os
import sqlite3
import tempfile
from pathlib import Path

from sqlalchemy import Connection, Table, insert, select, update

from keepstep.adapters.database.engine import Connections
from keepstep.adapters.database.opening import Database, open_database, open_journal
from keepstep.adapters.database.schema import TABLES, entries, leadership, marks

ROWS_AT_ONCE = 1000
TERMS_LEFT_OUT = 1_000_000
"""A restored server leads under terms that nobody has met: since the copy was taken others may have led, and launchers that met
them would take it for one that was deposed."""


def back_up(database: Database, target: Path) -> int:
    """Returns the number of journal entries in the copy.

    Raises FileExistsError, JournalCorrupt (what was copied does not hold together: no copy is left), JournalUnavailable,
    OSError.
    """
    if target.exists():
        raise FileExistsError(f"{target} is there already; a copy never replaces another one")
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        if database.connections.is_postgresql:
            _copy_rows(database.connections, partial)
        else:
            _copy_file(database.connections, partial)
        count = _checked(partial)
        _flush(partial)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    _flush(target.parent)
    return count


def restore(source: Path, where: str | Path) -> int:
    """Fill an empty database of either kind from a copy, of this or an older Keepstep. Nobody leads afterwards; terms go on far
    above those of the copy.

    Returns the number of entries. Raises ValueError where the target holds something, JournalCorrupt where the copy's chain
    is broken (then the target stays empty), and what open_database raises.
    """
    with tempfile.TemporaryDirectory(prefix="keepstep-restore-") as folder:
        copy = open_database(_of_today(source, Path(folder)), read_only=True)
        try:
            count = copy.journal.verify()
            target = open_database(where)
            try:
                _fill(copy.connections, target.connections, terms_left_out=TERMS_LEFT_OUT)
                if target.journal.verify() != count or target.journal.last() != copy.journal.last():
                    raise RuntimeError(f"{target.name} does not hold what {source} holds")
            finally:
                target.close()
        finally:
            copy.close()
    return count


def _of_today(source: Path, folder: Path) -> Path:
    """The copy itself, or where its schema is older, a copy of it that was brought up to date."""
    old = open_database(source, read_only=True)
    try:
        if old.schema.current:
            return source
        newer = folder / "copy.db"
        _copy_file(old.connections, newer)
    finally:
        old.close()
    open_database(newer).close()
    return newer


def _copy_file(connections: Connections, target: Path) -> None:
    """SQLite's own way: at one instant, beside a writer."""
    pooled = connections.engine.raw_connection()
    copy = sqlite3.connect(target)
    try:
        source = pooled.driver_connection
        assert isinstance(source, sqlite3.Connection)
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, that can be read where nothing can be written
    finally:
        copy.close()
        pooled.close()


def _copy_rows(source: Connections, partial: Path) -> None:
    copy = open_database(partial)
    try:
        _fill(source, copy.connections)
        with copy.connections.reading() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()


def _fill(source: Connections, target: Connections, terms_left_out: int = 0) -> None:
    with source.standing_still() as given, target.writing(patient=True) as taken:
        for table in (entries, leadership, marks):
            if taken.execute(select(table).limit(1)).first() is not None:
                raise ValueError(
                    f"{target.name} holds something already; a copy is restored into an empty database only"
                )
        for table in TABLES:
            _copy_table(given, taken, table)
        taken.execute(update(leadership).values(term=leadership.c.term + terms_left_out))


def _copy_table(given: Connection, taken: Connection, table: Table) -> None:
    rows = given.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE).execute(select(table))
    for part in rows.mappings().partitions():
        values = [dict(row) | ({"expires_s": 0.0} if table is leadership else {}) for row in part]
        taken.execute(insert(table), values)


def _checked(copy: Path) -> int:
    journal = open_journal(copy, read_only=True)
    try:
        return journal.verify()
    finally:
        journal.close()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
