"""Copies of a database of either kind, and back into either kind."""

import itertools
import sqlite3
import threading
from pathlib import Path

import pytest

from keepstep.adapters.database.backup import back_up, restore
from keepstep.adapters.database.opening import Database, open_database
from keepstep.core.facts import Overdue
from keepstep.core.ids import Session
from keepstep.ports import JournalCorrupt, Snapshot
from keepstep.review.records import IncidentRecord

FACT = Overdue(intent=1, waited_s=0.5)
INCIDENT = IncidentRecord(
    id="i1", job="j", tenant="t", kind="fault", state="recovered", cause="host", closed_s=5.0, nodes=("n1",)
)
KINDS = ("sqlite", "postgresql")
PATIENCE_S = 60.0
"""A disk or a database that stands still for some seconds is not what is tested."""


def database_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path, name: str) -> str:
    return request.getfixturevalue("postgres").fresh() if kind == "postgresql" else str(tmp_path / name)


def filled(where: str) -> Database:
    """Compacted to 20, 2540 entries, one incident."""
    database = open_database(where, patience_s=PATIENCE_S)
    database.leadership.acquire("server", "a", 600.0)
    entries = database.journal.append(1.0, [FACT] * 40, [(Session("s"), 4)])
    database.snapshots.put(Snapshot(seq=30, hash=entries[29].hash, at_s=1.0, body=b"state"))
    database.snapshots.compact(20)
    database.archive.put(40, [(INCIDENT, b"report")])
    database.journal.append(2.0, [FACT] * 2500)
    return database


def shown(database: Database) -> list[object]:
    journal = database.journal
    return [
        journal.first(),
        journal.verify(),
        list(itertools.islice(journal.read(journal.first() - 1), 50)),
        journal.received(),
        [entry.seq for entry in journal.mentioning(["fact:Overdue"], limit=5000)],
        database.snapshots.newest(),
        database.archive.list("incident", {"node": "n1"}),
        database.archive.get("incident", "i1"),
        database.archive.complete_to(),
    ]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(KINDS, KINDS)))
def test_there_and_back(request: pytest.FixtureRequest, tmp_path: Path, source: str, target: str) -> None:
    database = filled(database_of(source, request, tmp_path, "source.db"))
    copy = tmp_path / "copy.db"
    assert back_up(database, copy) == 2520
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("copy")) == ["copy.db"], "one file"
    look = open_database(copy, read_only=True)
    assert shown(look) == shown(database)
    look.close()

    where = database_of(target, request, tmp_path, "target.db")
    assert restore(copy, where) == 2520
    restored = open_database(where, patience_s=PATIENCE_S)
    assert shown(restored) == shown(database)
    leader = restored.leadership.leader()
    assert leader is not None and leader.term == 1_000_001 and leader.expires_in_s <= 0
    assert restored.leadership.acquire("again", "b", 60.0) == 1_000_002, "nobody has met that term"
    assert restored.journal.append(3.0, [FACT])[0].seq == 2541
    with pytest.raises(ValueError, match="holds something already"):
        restore(copy, where)
    restored.close()
    database.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_beside_a_writer_shows_one_instant(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    database = filled(database_of(kind, request, tmp_path, "source.db"))
    writer = open_database(database_of(kind, request, tmp_path, "source.db")) if kind == "sqlite" else database
    writer.leadership.acquire("server", "a", 600.0) if writer is not database else None
    done = threading.Event()
    kept: list[int] = []

    def write() -> None:
        while not done.is_set():
            kept.append(database.journal.append(3.0, [FACT] * 3)[-1].seq)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        counts = [back_up(writer, tmp_path / f"copy{number}.db") for number in range(2)]
    finally:
        done.set()
        thread.join()
    assert all(count % 3 == 0 for count in counts), "whole batches"
    assert database.journal.verify() == kept[-1] - 20
    database.close()
    writer.close()


def test_a_copy_never_replaces_another(tmp_path: Path) -> None:
    database = open_database(tmp_path / "journal.db")
    (tmp_path / "copy.db").write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="never replaces"):
        back_up(database, tmp_path / "copy.db")
    database.close()
    assert (tmp_path / "copy.db").read_bytes() == b"precious"


def broken(path: Path) -> None:
    database = open_database(path)
    database.journal.append(0.0, [FACT] * 5)
    database.close()
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER entries_fix")
    db.execute("UPDATE entries SET at_s = 9.0 WHERE seq = 3")
    db.commit()
    db.close()


def test_a_broken_chain_is_neither_copied_nor_restored(tmp_path: Path) -> None:
    broken(tmp_path / "journal.db")
    database = open_database(tmp_path / "journal.db")
    with pytest.raises(JournalCorrupt, match="entry 3"):
        back_up(database, tmp_path / "copy.db")
    database.close()
    assert not list(tmp_path.glob("copy*"))
    with pytest.raises(JournalCorrupt, match="entry 3"):
        restore(tmp_path / "journal.db", tmp_path / "target.db")
    assert not (tmp_path / "target.db").exists()
