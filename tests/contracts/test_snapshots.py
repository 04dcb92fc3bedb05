"""The contract of ports.Snapshots, and of a journal that was compacted, against both real databases."""

from collections.abc import Callable

import pytest
from sqlalchemy.exc import DBAPIError

from keepstep.adapters.database.opening import Database
from keepstep.core.facts import Overdue
from keepstep.core.ids import Session
from keepstep.ports import JournalCorrupt, Snapshot

OpenIt = Callable[[], Database]

FACTS = [Overdue(intent=number, waited_s=0.5) for number in range(1, 11)]


def filled(database: Database) -> list[str]:
    """Ten entries; returns their hashes, that of entry n at index n - 1."""
    origins = [(Session("s"), 7), (Session("t"), 3), *[None] * 6, (Session("s"), 9), None]
    return [entry.hash for entry in database.journal.append(1.0, FACTS, origins)]


def snap(seq: int, hashes: list[str], body: bytes = b"state") -> Snapshot:
    return Snapshot(seq=seq, hash=hashes[seq - 1], at_s=2.5, body=body)


def sql(database: Database, statement: str) -> None:
    with database.connections.writing() as connection:
        connection.exec_driver_sql(statement)


def test_the_newest_is_given_back_and_two_are_kept(open_it: OpenIt) -> None:
    database = open_it()
    hashes = filled(database)
    assert database.snapshots.newest() is None
    for seq in (2, 4, 9, 6):
        database.snapshots.put(snap(seq, hashes, b"state of %d" % seq))
    assert open_it().snapshots.newest() == snap(9, hashes, b"state of 9")
    database.snapshots.put(snap(9, hashes, b"again"))
    assert database.snapshots.newest() == snap(9, hashes, b"again")
    with database.connections.reading() as connection:
        kept = connection.exec_driver_sql("SELECT seq FROM snapshots ORDER BY seq").scalars().all()
    assert kept == [6, 9]


def test_a_snapshot_of_another_chain_is_refused(open_it: OpenIt) -> None:
    database = open_it()
    hashes = filled(database)
    with pytest.raises(ValueError, match=r"entry 4 of .* is not the one"):
        database.snapshots.put(Snapshot(seq=4, hash=hashes[4], at_s=0.0, body=b""))
    with pytest.raises(ValueError, match="entry 40"):
        database.snapshots.put(Snapshot(seq=40, hash=hashes[4], at_s=0.0, body=b""))
    assert database.snapshots.newest() is None


def test_a_damaged_snapshot_is_passed_over(open_it: OpenIt) -> None:
    database = open_it()
    hashes = filled(database)
    database.snapshots.put(snap(4, hashes))
    database.snapshots.put(snap(8, hashes))
    sql(database, "UPDATE snapshots SET at_s = 3.0 WHERE seq = 8")
    assert database.snapshots.newest() == snap(4, hashes)
    database.snapshots.compact(4)
    sql(database, "UPDATE snapshots SET at_s = 3.0 WHERE seq = 4")
    with pytest.raises(JournalCorrupt, match=r"entry 4 .*no sound snapshot"):
        database.snapshots.newest()


def test_compaction_keeps_the_chain_and_what_must_be_known_for_ever(open_it: OpenIt) -> None:
    database = open_it()
    hashes = filled(database)
    before = list(database.journal.read(6))
    database.snapshots.put(snap(8, hashes))
    database.snapshots.compact(6)
    for journal in (database.journal, open_it().journal):
        assert (journal.first(), journal.last(), journal.verify()) == (7, 10, 4)
        assert list(journal.read(6)) == before
        assert [entry.seq for entry in journal.read(8)] == [9, 10]
        assert journal.received() == {Session("s"): 9, Session("t"): 3}, "a report is not taken twice"
        assert [entry.seq for entry in journal.mentioning(["fact:Overdue"])] == [10, 9, 8, 7]
        assert [entry.seq for entry in journal.mentioning([], limit=2, before=9)] == [8, 7]
        with pytest.raises(JournalCorrupt, match=r"entry 1 .*compacted away; the journal begins with entry 7"):
            list(journal.read())
    (entry,) = open_it().journal.append(3.0, FACTS[:1])
    assert (entry.seq, entry.prev) == (11, hashes[9])


def test_a_journal_may_be_compacted_whole_and_again(open_it: OpenIt) -> None:
    database = open_it()
    hashes = filled(database)
    database.snapshots.put(snap(10, hashes))
    database.snapshots.compact(3)
    database.snapshots.compact(10)
    database.snapshots.compact(5)  # is gone already
    journal = open_it().journal
    assert (journal.first(), journal.last(), journal.verify()) == (11, 10, 0)
    assert list(journal.read(10)) == []
    assert [entry.seq for entry in journal.append(3.0, FACTS[:2])] == [11, 12]
    assert next(entry.prev for entry in journal.read(10)) == hashes[9]
    with database.connections.reading() as connection:
        assert connection.exec_driver_sql("SELECT min(last) FROM mentions").scalar() == 12
    assert database.snapshots.newest() == snap(10, hashes)


@pytest.mark.parametrize("upto", [5, 10, 11])
def test_what_no_snapshot_covers_stays(open_it: OpenIt, upto: int) -> None:
    database = open_it()
    hashes = filled(database)
    database.snapshots.put(snap(4, hashes))
    with pytest.raises(ValueError, match=f"no snapshot covers entry {upto}; the newest one is of entry 4"):
        database.snapshots.compact(upto)
    assert database.journal.verify() == 10


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DELETE FROM entries", "only grows"),
        ("DELETE FROM entries WHERE seq = 7", "only grows"),
        ("UPDATE entries SET at_s = 0", "only grows"),
        ("DELETE FROM marks", "only grows"),
        ("UPDATE marks SET seq = 1", "only grows"),
        ("UPDATE marks SET seq = 9 WHERE name = 'compacted'", "no snapshot covers"),
        ("INSERT INTO marks (name, seq) VALUES ('other', 9); DELETE FROM marks WHERE name = 'other'", "only grows"),
        ("DELETE FROM snapshots", "only this snapshot covers"),
        ("DELETE FROM leadership", "terms only grow"),
        ("UPDATE leadership SET term = 0", "terms only grow"),
    ],
)
def test_no_accident_gets_past_the_guards(open_it: OpenIt, statement: str, why: str) -> None:
    database = open_it()
    database.leadership.acquire("server", "a", 30.0)
    hashes = filled(database)
    database.snapshots.put(snap(8, hashes))
    database.snapshots.compact(6)
    with pytest.raises(DBAPIError, match=why):
        for part in statement.split("; "):
            sql(database, part)
    assert database.journal.verify() == 4
    assert database.snapshots.newest() == snap(8, hashes)


def test_an_unneeded_snapshot_may_go(open_it: OpenIt) -> None:
    database = open_it()
    database.snapshots.put(snap(8, filled(database)))
    sql(database, "DELETE FROM snapshots")
    assert database.snapshots.newest() is None


def test_a_long_journal_is_compacted_in_steps(open_it: OpenIt) -> None:
    database = open_it()
    for _ in range(9):
        entry = database.journal.append(0.0, FACTS[:1] * 500)[-1]
    database.snapshots.put(Snapshot(seq=4500, hash=entry.hash, at_s=0.0, body=b""))
    database.snapshots.compact(4250)
    assert (database.journal.first(), database.journal.verify()) == (4251, 250)
    assert [e.seq for e in database.journal.mentioning(["fact:Overdue"], before=4260)] == list(range(4259, 4250, -1))
