"""Old entries move out, and what is proven before is proven after: with the archive all of it, without it from there on."""

import asyncio
from pathlib import Path

import pytest

from keepstep.adapters.database.opening import open_database
from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.adapters.memory.snapshots import MemorySnapshots
from keepstep.core import facts as f
from keepstep.core.ids import JobId
from keepstep.ports import JournalCorrupt
from keepstep.server import archive_file
from keepstep.server.compaction import NothingToCompact, Store, compact, prove, take_snapshot, upto_of
from keepstep.server.snapshot import load
from keepstep.server.upkeep import Upkeep


def store_of(directory: Path, entries: int = 100) -> Store:
    journal = MemoryJournal()
    for number in range(entries):
        spec = f.JobSpec(argv=("t.py",), nproc_per_node=1, elasticity=f.Elasticity(min_nodes=1, max_nodes=1))
        journal.append(float(number), [f.JobSubmitted(job=JobId(f"j{number}"), spec=spec)])
    archive = MemoryArchive()
    archive.put(entries, [])
    return Store(journal, MemorySnapshots(journal), archive, directory)


def tell(store: Store) -> object:
    return lambda fact: store.journal.append(1000.0, [fact])


def test_the_whole_chain_is_proven_with_the_archive_and_the_rest_without_it(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    before = [entry.hash for entry in store.journal.stored()]
    world = load(store.snapshots, store.journal, store.archive).world
    fact = compact(store, 60, "alice", tell(store))  # type: ignore[arg-type]
    assert (fact.upto, fact.hash, store.journal.first()) == (60, before[59].hex(), 61)
    assert [entry.hash for entry in store.journal.stored(60)][:40] == before[60:]
    again = load(store.snapshots, store.journal, store.archive).world
    assert again.jobs == world.jobs and again.seq == 101
    whole = prove(store.journal, tmp_path)
    assert whole.whole and (whole.last, whole.files, whole.compacted) == (101, 1, 60)
    rest = prove(store.journal, None)
    assert not rest.whole and (rest.first, rest.last, rest.begins_with) == (61, 101, fact.hash)


def test_several_compactions_make_one_chain(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    compact(store, 30, "alice", tell(store))  # type: ignore[arg-type]
    compact(store, 90, "alice", tell(store))  # type: ignore[arg-type]
    assert [path.name for path in archive_file.files(tmp_path)] == [
        archive_file.name_of(1, 30),
        archive_file.name_of(31, 90),
    ]
    assert prove(store.journal, tmp_path).whole
    archive_file.files(tmp_path)[0].unlink()
    later = prove(store.journal, tmp_path)
    assert (later.first, later.last, later.files) == (31, 102, 1)
    with pytest.raises(NothingToCompact):
        compact(store, 90, "alice", tell(store))  # type: ignore[arg-type]


def test_a_gap_a_cut_a_flip_and_another_file_are_found(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for upto in (30, 60, 90):
        compact(store, upto, "alice", tell(store))  # type: ignore[arg-type]
    first, second, third = archive_file.files(tmp_path)
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(JournalCorrupt) as gap:
        prove(store.journal, tmp_path)
    assert gap.value.seq == 31
    for broken in (kept[:-20], kept[:100] + bytes([kept[100] ^ 1]) + kept[101:]):
        second.write_bytes(broken)
        with pytest.raises(JournalCorrupt, match="digest differs"):
            prove(store.journal, tmp_path)
        with pytest.raises(JournalCorrupt):
            list(archive_file.read(second))
    second.write_bytes(kept)
    third.unlink()
    with pytest.raises(JournalCorrupt, match="no archive file") as end:
        prove(store.journal, tmp_path)
    assert end.value.seq == 61
    assert first.exists()


def test_a_forged_file_under_the_right_name_does_not_pass(tmp_path: Path) -> None:
    """Its own chain holds; it is not the one that the journal goes on from."""
    store, other = store_of(tmp_path / "a"), store_of(tmp_path / "b", 70)
    fact = compact(store, 60, "alice", tell(store))  # type: ignore[arg-type]
    other.journal.rows[5] = other.journal.rows[6]  # type: ignore[attr-defined]
    forged = MemoryJournal()
    forged.append(5.0, [f.JobStopRequested(job=JobId(f"j{n}"), by="mallory") for n in range(60)])
    archive_file.write(store.directory, 1, 60, forged.stored())
    with pytest.raises(JournalCorrupt, match="digest differs"):
        prove(store.journal, store.directory)
    assert fact.archive == archive_file.name_of(1, 60)


def test_dying_between_the_fact_and_the_forgetting_loses_nothing_and_is_finished_later(tmp_path: Path) -> None:
    store = store_of(tmp_path)

    class Killed(Exception):
        pass

    def tell_and_die(fact: f.Compacted) -> None:
        store.journal.append(1000.0, [fact])
        raise Killed

    with pytest.raises(Killed):
        compact(store, 60, "alice", tell_and_die)
    assert store.journal.first() == 1
    assert prove(store.journal, tmp_path).whole
    with pytest.raises(NothingToCompact):
        compact(store, 60, "alice", tell(store))  # type: ignore[arg-type]
    assert store.journal.first() == 61
    assert prove(store.journal, tmp_path).whole


def test_dying_before_the_fact_leaves_a_file_that_counts_for_nothing(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    archive_file.write(tmp_path, 1, 70, store.journal.stored())
    assert prove(store.journal, tmp_path).files == 0
    compact(store, 60, "alice", tell(store))  # type: ignore[arg-type]
    assert [path.name for path in archive_file.files(tmp_path)] == [archive_file.name_of(1, 60)]
    assert prove(store.journal, tmp_path).whole


def test_what_is_not_in_the_archive_of_what_is_over_stays(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    fresh = MemoryArchive()
    fresh.put(40, [])
    behind = Store(store.journal, store.snapshots, fresh, tmp_path)
    assert compact(behind, 90, "alice", tell(store)).upto == 40  # type: ignore[arg-type]


def test_the_entry_of_a_time_is_found(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    assert [upto_of(store.journal, at_s) for at_s in (-1.0, 0.0, 0.5, 42.0, 1e9)] == [0, 0, 1, 42, 100]
    take_snapshot(store)
    compact(store, 60, "alice", tell(store))  # type: ignore[arg-type]
    assert upto_of(store.journal, 10.0) == 60
    assert upto_of(store.journal, 70.0) == 70


def test_a_snapshot_is_taken_beside_a_leader_and_the_next_start_uses_it(tmp_path: Path) -> None:
    """In a process of its own, while this one holds the database open and leads."""
    opened = open_database(tmp_path / "journal.db")
    try:
        assert opened.leadership.acquire("this", "", 60.0) is not None
        for number in range(50):
            opened.journal.append(float(number), [f.JobStopRequested(job=JobId(f"j{number}"), by="alice")])
        upkeep = Upkeep(str(tmp_path / "journal.db"), opened.journal.last)
        assert asyncio.run(upkeep.take())
        assert upkeep.covered == 50
        newest = opened.snapshots.newest()
        assert newest is not None and newest.seq == 50
        opened.journal.append(60.0, [f.JobStopRequested(job=JobId("later"), by="alice")])
        assert load(opened.snapshots, opened.journal, opened.archive).world.seq == 51
    finally:
        opened.close()


def test_a_snapshot_that_cannot_be_taken_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "journal.db").write_bytes(b"no database at all, " * 100)
    assert not asyncio.run(Upkeep(str(tmp_path / "journal.db"), lambda: 1).take())
    assert "no snapshot was taken" in caplog.text
