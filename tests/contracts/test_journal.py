"""The contract of ports.Journal, run against every adapter of it; and what only a file can be asked."""

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from keepstep.adapters.database.migrate import CURRENT
from keepstep.adapters.database.opening import open_journal
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.core.decision import Decision, MoveJob, Place, Record
from keepstep.core.facts import Answered, Done, Elasticity, JobSpec, JobSubmitted, RankExited
from keepstep.core.ids import IncidentId, JobId, NodeId, Session
from keepstep.core.intents import Notify, RankPlace
from keepstep.core.job import JobState, Placement
from keepstep.ports import Journal, JournalCorrupt, JournalSchemaNewer, JournalUnavailable

Make = Callable[[], Journal]

SUBMITTED = JobSubmitted(
    job=JobId("j"),
    spec=JobSpec(argv=("train.py", "--lr", "1e-3"), nproc_per_node=2, elasticity=Elasticity(min_nodes=1, max_nodes=2)),
)
EXITED = RankExited(
    job=JobId("j"), node=NodeId("n0"), session=Session("s"), generation=3, rank=1, slot=1, signal=9, step=41
)
DECIDED = Decision(
    stage="restart",
    subject="j",
    reason="because",
    changes=(
        MoveJob(job=JobId("j"), to=JobState.STARTING),
        Place(
            incident=IncidentId("i1"),
            job=JobId("j"),
            placement=Placement(
                generation=4,
                world_size=2,
                nodes={
                    NodeId("n10"): (RankPlace(rank=0, local_rank=0, slot=0),),
                    NodeId("n2"): (RankPlace(rank=1, local_rank=0, slot=0),),
                },
            ),
            store_node=None,
        ),
    ),
    intents=(Notify(subject="j", level="info", message="m"),),
    first_order=7,
)
RECORDS: list[Record] = [SUBMITTED, EXITED, DECIDED, Answered(intent=7, outcome=Done())]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Opens the same journal each time it is called."""
    opened: list[Journal] = []
    memory = MemoryJournal()
    where = request.getfixturevalue("postgres_url") if request.param == "postgresql" else tmp_path / "journal.db"

    def open_it() -> Journal:
        opened.append(memory if request.param == "memory" else open_journal(where, patience_s=60.0))
        return opened[-1]

    yield open_it
    for journal in opened:
        journal.close()


def test_what_was_appended_is_read_back_in_order(make: Make) -> None:
    journal = make()
    first = journal.append(1.5, RECORDS[:2])
    second = journal.append(2.5, RECORDS[2:])
    assert list(journal.read()) == first + second
    assert [entry.record for entry in journal.read()] == RECORDS
    assert [entry.seq for entry in journal.read()] == [1, 2, 3, 4]
    assert [entry.at_s for entry in journal.read()] == [1.5, 1.5, 2.5, 2.5]


def test_order_of_nodes_in_a_placement_is_kept(make: Make) -> None:
    journal = make()
    journal.append(0.0, [DECIDED])
    (entry,) = journal.read()
    assert isinstance(entry.record, Decision)
    place = entry.record.changes[1]
    assert isinstance(place, Place)
    assert list(place.placement.nodes) == ["n10", "n2"]


def test_entries_are_chained(make: Make) -> None:
    journal = make()
    entries = journal.append(0.0, RECORDS)
    for before, after in itertools.pairwise(entries):
        assert after.prev == before.hash
    assert len({entry.hash for entry in entries}) == len(entries)


def test_equal_records_at_other_places_have_other_hashes(make: Make) -> None:
    journal = make()
    one, two = journal.append(0.0, [EXITED, EXITED])
    assert one.hash != two.hash


def test_read_after(make: Make) -> None:
    journal = make()
    entries = journal.append(0.0, RECORDS)
    assert list(journal.read(after=2)) == entries[2:]
    assert list(journal.read(after=4)) == []


def test_verify_counts_entries(make: Make) -> None:
    journal = make()
    assert journal.verify() == 0
    journal.append(0.0, RECORDS)
    assert journal.verify() == 4


def test_nothing_appended_is_nothing_written(make: Make) -> None:
    journal = make()
    assert journal.append(0.0, []) == []
    assert journal.verify() == 0


def test_open_again_goes_on_with_the_chain(make: Make) -> None:
    first = make().append(0.0, RECORDS[:2])
    journal = make()
    (third,) = journal.append(1.0, RECORDS[2:3])
    assert third.seq == 3
    assert third.prev == first[1].hash
    assert journal.verify() == 3


def test_received_reports_are_remembered_per_session(make: Make) -> None:
    journal = make()
    a, b = Session("a"), Session("b")
    journal.append(0.0, RECORDS[:3], [(a, 1), (b, 7), None])
    journal.append(0.0, RECORDS[3:], [(a, 2)])
    for known in (journal, make()):
        assert list(known.received().items()) == [(b, 7), (a, 2)], "heard longest ago first"


def test_a_long_journal_is_read_whole(make: Make) -> None:
    journal = make()
    for _ in range(3):
        journal.append(0.0, [EXITED] * 400)
    assert [entry.seq for entry in journal.read()] == list(range(1, 1201))


def test_where_it_begins_and_ends(make: Make) -> None:
    journal = make()
    assert (journal.first(), journal.last()) == (1, 0)
    journal.append(0.0, RECORDS)
    assert (journal.first(), journal.last()) == (1, 4)
    assert make().last() == 4


def test_entries_are_found_by_what_they_are_about(make: Make) -> None:
    journal = make()
    journal.append(0.0, RECORDS)
    journal.append(1.0, [EXITED] * 5)

    def found(*wanted: str, **limits: int) -> list[int]:
        return [entry.seq for entry in journal.mentioning(wanted, **limits)]

    assert found("node/n0") == [9, 8, 7, 6, 5, 2]
    assert found("node/n0", limit=2) == [9, 8]
    assert found("node/n0", before=8, limit=3) == [7, 6, 5]
    assert found("i1") == [3]
    assert found("order:7") == [4, 3]
    assert found("order:7", "fact:JobSubmitted") == [4, 3, 1]
    assert found("i1", "node/n0", before=6) == [5, 3, 2]
    assert found("stage:restart") == [3]
    assert found(limit=3) == [9, 8, 7]
    assert found(before=3) == [2, 1]
    assert found("nobody") == [] == found("j", limit=0)
    assert found(*(f"x{n}" for n in range(700)), "i1") == [3], "any number of subjects"
    (entry,) = journal.mentioning(["i1"])
    assert entry == list(journal.read())[2]


@pytest.mark.parametrize("name", ["a\0b", "ä" * 5000, "x" * 200, "%_\\'\"", ""])
def test_no_name_is_too_strange(make: Make, name: str) -> None:
    """Names come from outside, and a journal that cannot be written to stops the server."""
    journal = make()
    strange = msgspec.structs.replace(EXITED, job=JobId(name), node=NodeId(name + "n"))
    (entry,) = journal.append(0.0, [strange])
    journal.append(0.0, [EXITED])
    assert journal.mentioning([f"node/{name}n"]) == [entry]
    assert make().verify() == 2


# ---- the file


def edit(path: Path, statement: str, *values: object) -> None:
    """Change a journal behind its triggers, as an intruder or a bad disk would."""
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER entries_keep")
    db.execute("DROP TRIGGER entries_fix")
    db.execute(statement, values)
    db.commit()
    db.close()


def journal_of(path: Path, count: int = 5) -> None:
    journal = open_journal(path)
    journal.append(1.0, [EXITED] * count)
    journal.close()


@pytest.mark.parametrize(
    ("statement", "bad"),
    [
        ("UPDATE entries SET body = CAST(replace(body, 'n0', 'n1') AS BLOB) WHERE seq = 3", 3),
        ("UPDATE entries SET body = CAST(substr(body, 1, 20) AS BLOB) WHERE seq = 2", 2),
        ("UPDATE entries SET at_s = 2.0 WHERE seq = 4", 4),
        ("UPDATE entries SET hash = zeroblob(32) WHERE seq = 5", 5),
        ("UPDATE entries SET prev = zeroblob(32) WHERE seq = 2", 2),
        ("DELETE FROM entries WHERE seq = 1", 1),
        ("DELETE FROM entries WHERE seq = 3", 3),
        ("UPDATE entries SET seq = 9 WHERE seq = 5", 5),
    ],
)
def test_the_first_bad_entry_is_named(tmp_path: Path, statement: str, bad: int) -> None:
    path = tmp_path / "journal.db"
    journal_of(path)
    edit(path, statement)
    journal = open_journal(path)
    with pytest.raises(JournalCorrupt, match=f"entry {bad} of .*journal.db") as caught:
        journal.verify()
    assert caught.value.seq == bad
    journal.close()


def test_a_rewritten_entry_with_a_matching_hash_breaks_the_next_link(tmp_path: Path) -> None:
    path, other = tmp_path / "journal.db", tmp_path / "other.db"
    journal_of(path)
    forged = open_journal(other)
    forged.append(9.0, [EXITED] * 2)
    forged.close()
    db = sqlite3.connect(other)
    body, hashed = db.execute("SELECT body, hash FROM entries WHERE seq = 1").fetchone()
    db.close()
    edit(path, "UPDATE entries SET at_s = 9.0, body = ?, hash = ? WHERE seq = 1", body, hashed)
    journal = open_journal(path)
    with pytest.raises(JournalCorrupt, match="entry 2"):
        journal.verify()
    journal.close()


def test_rows_cannot_be_changed_or_removed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal_of(path)
    db = sqlite3.connect(path)
    for statement in ("UPDATE entries SET at_s = 0", "DELETE FROM entries", "DELETE FROM entries WHERE seq = 5"):
        with pytest.raises(sqlite3.IntegrityError, match="only grows"):
            db.execute(statement)
    db.close()


def test_a_file_of_garbage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(os.urandom(8192))
    with pytest.raises(JournalCorrupt, match="cannot be read"):
        open_journal(path)


def test_an_overwritten_page_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal_of(path, 500)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    journal = open_journal(path)
    with pytest.raises(JournalCorrupt):
        journal.verify()
    journal.close()


OLD_SCHEMA = (
    (
        """CREATE TABLE entries (
            seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, body BLOB NOT NULL, prev BLOB NOT NULL, hash BLOB NOT NULL
        ) STRICT""",
        "CREATE TRIGGER entries_keep BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the journal only grows'); END",
        "CREATE TRIGGER entries_fix BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the journal only grows'); END",
    ),
    (
        "ALTER TABLE entries ADD COLUMN session TEXT",
        "ALTER TABLE entries ADD COLUMN number INTEGER",
        "CREATE INDEX entries_origin ON entries (session, number) WHERE session IS NOT NULL",
    ),
)
"""What files of Keepstep 0.1 to 0.5 hold."""


def old_journal(path: Path, schema: int) -> None:
    """Of ``RECORDS``, by a Keepstep that had this schema."""
    model = MemoryJournal()
    model.append(1.0, RECORDS)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE schema_version (version INTEGER PRIMARY KEY, at_s REAL NOT NULL) STRICT")
    for number in range(schema):
        for statement in OLD_SCHEMA[number]:
            db.execute(statement)
        db.execute("INSERT INTO schema_version VALUES (?, 0)", (number + 1,))
    db.executemany("INSERT INTO entries (seq, at_s, body, prev, hash) VALUES (?, ?, ?, ?, ?)", model.rows)
    if schema > 1:
        db.execute("DROP TRIGGER entries_fix")
        db.execute("UPDATE entries SET session = 's', number = 3 WHERE seq = 2")
        db.execute(OLD_SCHEMA[0][2])
    db.commit()
    db.close()


@pytest.mark.parametrize("schema", [1, 2])
def test_an_older_schema_is_migrated_and_its_chain_kept(tmp_path: Path, schema: int) -> None:
    old = tmp_path / "old.db"
    old_journal(old, schema)
    before = old.read_bytes()
    reader = open_journal(old, read_only=True)  # a report on an old journal, without changing it
    assert reader.verify() == 4
    assert [entry.seq for entry in reader.mentioning(["j"])] == [3, 2, 1]
    assert reader.received() == ({Session("s"): 3} if schema > 1 else {})
    reader.close()
    assert old.read_bytes() == before
    assert list(tmp_path.iterdir()) == [old]

    journal = open_journal(old)
    journal.append(2.0, [EXITED], [(Session("s"), 4)])
    assert journal.verify() == 5
    assert journal.received() == {Session("s"): 4}
    assert [entry.seq for entry in journal.mentioning(["j"])] == [5, 3, 2, 1], "old entries are found too"
    journal.close()
    db = sqlite3.connect(old)
    assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [(CURRENT,)]
    assert db.execute("SELECT max(version) FROM schema_version").fetchone() == (3,), "what an old Keepstep looks at"
    with pytest.raises(sqlite3.IntegrityError, match="only grows"):
        db.execute("DELETE FROM entries")
    db.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_schema_is_refused(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "journal.db"
    journal_of(path)
    db = sqlite3.connect(path)
    db.execute("UPDATE alembic_version SET version_num = '9999'")
    db.commit()
    db.close()
    with pytest.raises(JournalSchemaNewer, match=f"schema 9999.*knows up to {CURRENT}"):
        open_journal(path, read_only=read_only)


def test_reading_beside_a_writer(tmp_path: Path) -> None:
    writer = open_journal(tmp_path / "journal.db")
    writer.append(0.0, RECORDS)
    reader = open_journal(tmp_path / "journal.db", read_only=True)
    entries = reader.read()
    next(entries)
    writer.append(1.0, RECORDS)
    assert len(list(entries)) == 3 or reader.verify() == 8
    assert reader.verify() == 8
    reader.close()
    writer.close()


def test_a_second_writer_is_noticed(tmp_path: Path) -> None:
    one, two = open_journal(tmp_path / "journal.db"), open_journal(tmp_path / "journal.db")
    one.append(0.0, [EXITED])
    with pytest.raises(JournalCorrupt, match="written by another process"):
        two.append(0.0, [EXITED])
    assert one.verify() == 1
    one.close()
    two.close()


def test_a_failed_append_keeps_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "journal.db", patience_s=0.05)
    journal.append(0.0, [EXITED])
    blocker = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalUnavailable, match="locked"):
        journal.append(1.0, RECORDS)
    blocker.execute("ROLLBACK")
    blocker.close()
    assert [entry.seq for entry in journal.append(1.0, RECORDS)] == [2, 3, 4, 5]
    assert journal.verify() == 5
    journal.close()


def test_an_absent_journal_is_not_made_by_a_reader(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no journal"):
        open_journal(tmp_path / "journal.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("after_lines", [1, 3, 10, 40])
def test_killed_in_the_middle_of_writing(tmp_path: Path, after_lines: int) -> None:
    """What was reported as durable is there, batches are whole, and the chain holds."""
    path = tmp_path / "journal.db"
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from keepstep.adapters.database.opening import open_journal
        from keepstep.core.facts import Overdue
        journal = open_journal(Path(sys.argv[1]))
        while True:
            print(journal.append(0.0, [Overdue(intent=1, waited_s=0.5)] * 3)[-1].seq, flush=True)
        """
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        durable = [int(writer.stdout.readline()) for _ in range(after_lines)]
        writer.send_signal(signal.SIGKILL)
        durable += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    finally:
        writer.kill()
        writer.wait(timeout=60)
        writer.stdout.close()
    journal = open_journal(path)
    count = journal.verify()
    assert count >= durable[-1]
    assert count % 3 == 0
    journal.close()
