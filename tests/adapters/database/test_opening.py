"""Where a database is, what it is called, and what is said when it cannot be opened."""

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keepstep.adapters.database.opening import open_database, open_journal
from keepstep.core.facts import Overdue
from keepstep.ports import JournalUnavailable


def test_a_file_by_path_text_or_url(tmp_path: Path) -> None:
    path = tmp_path / "a b#?%.db"
    for where in (path, str(path), f"sqlite:///{path}"):
        journal = open_journal(where)
        journal.append(0.0, [Overdue(intent=1, waited_s=0.5)])
        journal.close()
    journal = open_journal(path, read_only=True)
    assert journal.verify() == 3
    journal.close()
    assert {each.name.removesuffix("-wal").removesuffix("-shm") for each in tmp_path.iterdir()} == {path.name}


@pytest.mark.parametrize("where", ["mysql://host/x", "http://host/x", "sqlite://x"])
def test_what_is_no_database_of_ours(where: str) -> None:
    with pytest.raises(ValueError, match=r"no database is known behind .*name a file, or postgresql://"):
        open_database(where)


def test_a_url_that_is_none() -> None:
    with pytest.raises(ValueError, match="no URL of a PostgreSQL database"):
        open_database("postgresql://host/x?nonsense=1")


def test_nobody_answers_and_no_password_is_told(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match=r"PostgreSQL database fleet at .*: ") as caught:
        open_database(f"postgresql://me:secret-word@/fleet?host={tmp_path}")
    assert "secret-word" not in str(caught.value)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match="unable to open database file"):
        open_database(tmp_path / "not" / "there" / "journal.db")


def test_a_file_that_somebody_writes_is_turned_to_wal_once_he_is_done(tmp_path: Path) -> None:
    """As a copy is that was just put back, or a file that two processes make at once."""
    path = tmp_path / "journal.db"
    open_database(path).close()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = DELETE")
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalUnavailable, match="database is locked"):
        open_database(path, patience_s=0.05)
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(open_database, path, patience_s=60.0)
        with pytest.raises(TimeoutError):
            opening.exception(timeout=0.3)
        writer.execute("ROLLBACK")
        opening.result(timeout=60.0).close()
    writer.close()


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    database = open_database(path)
    database.journal.append(0.0, [Overdue(intent=1, waited_s=0.5)])
    database.close()
    before = path.read_bytes()
    look = open_database(path, read_only=True)
    assert look.journal.last() == 1
    assert look.leadership.leader() is None
    assert look.snapshots.newest() is None
    look.archive.put(1, [])
    assert look.archive.complete_to() == 0
    with pytest.raises(JournalUnavailable, match="readonly"):
        look.journal.append(0.0, [Overdue(intent=1, waited_s=0.5)])
    look.close()
    assert path.read_bytes() == before


def test_an_empty_file_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.touch()
    look = open_database(path, read_only=True)
    assert (look.journal.first(), look.journal.last(), look.journal.verify()) == (1, 0, 0)
    assert look.journal.mentioning(["x"]) == []
    assert look.journal.received() == {}
    assert look.archive.list("job").records == ()
    assert look.archive.get("job", "x") is None
    assert list(look.archive.records("job")) == []
    assert look.leadership.leader() is None
    look.close()


def test_a_file_is_opened_without_the_drivers_of_others(tmp_path: Path) -> None:
    """The start of an embedded server stays quick, and works where the extra ``server`` is not installed."""
    program = (
        "import sys; from keepstep.adapters.database.opening import open_database; open_database(sys.argv[1]).close();"
        "print({'alembic', 'psycopg', 'mako', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "journal.db")], capture_output=True, text=True, timeout=150
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")
