"""Books as bytes and back: they continue exactly like the original, and a start from them needs only what came after."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.adapters.memory.snapshots import MemorySnapshots
from keepstep.ports import JournalCorrupt
from keepstep.server import snapshot
from keepstep.server.history import Books
from keepstep.server.replay import catch_up
from keepstep.server.snapshot import SnapshotUnknown, load, snapshot_of
from keepstep.sim.fleet_run import FleetRun
from keepstep.sim.run import Simulation
from keepstep.sim.scenario import load as scenario


@pytest.fixture(scope="module")
def journals() -> list[MemoryJournal]:
    """What a few simulated servers wrote, with retirements among it; hardware signals in the last one."""
    runs = [Simulation(name, seed, _forgetful(name)) for name, seed in (("mixed", 1), ("storm", 2), ("partition", 3))]
    for run in runs:
        assert run.run().failure is None
    fleet = FleetRun("fleet-day", 5, msgspec.structs.replace(scenario("fleet-day"), safety_s=(6000.0, 6000.0)))
    fleet.run()
    return [_journal(run.server) for run in (*runs, fleet)]


def _forgetful(name: str) -> object:
    retention = {"incidents_s": 60.0, "faults_s": 120.0, "jobs_s": 60.0}
    return msgspec.structs.replace(scenario(name), policy=scenario(name).policy | {"retention": retention})


def _journal(server: object) -> MemoryJournal:
    journal = MemoryJournal()
    for at_s, record in server.journal.read():  # type: ignore[attr-defined]
        journal.append(at_s, [record])
    return journal


def read(journal: MemoryJournal, upto: int) -> Books:
    books = Books(archive=MemoryArchive())
    for entry in journal.read():
        if entry.seq > upto:
            break
        books.enter(entry)
    return books


def bytes_of(books: Books) -> bytes:
    """Everything that a server decides and answers from."""
    return snapshot.encode(books)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, 3), share=st.floats(0.0, 1.0))
def test_from_any_entry_on_both_continue_alike(journals: list[MemoryJournal], which: int, share: float) -> None:
    journal = journals[which]
    whole = read(journal, journal.last())
    upto = max(1, int(share * journal.last()))
    before = read(journal, upto)
    again = snapshot.decode(snapshot.encode(before), Books(archive=MemoryArchive()))
    assert again.world == before.world and again.history == before.history
    assert again.registry == before.registry and again.tallies == before.tallies
    for entry in journal.read(upto):
        again.enter(entry)
    assert bytes_of(again) == bytes_of(whole)


def test_a_start_reads_only_what_came_after_the_snapshot(journals: list[MemoryJournal]) -> None:
    journal = _copy(journals[0])
    snapshots, upto = MemorySnapshots(journal), journal.last() // 2
    snapshots.put(snapshot_of(read(journal, upto)))
    snapshots.compact(upto)
    assert journal.first() == upto + 1
    books = load(snapshots, journal, MemoryArchive())
    assert books.world == read(journals[0], journals[0].last()).world
    assert books.hash == journals[0].hash_of(journals[0].last()).hex()
    assert journal.verify() == journals[0].last() - upto


def test_acts_of_the_ledger_stay_one_and_the_same(journals: list[MemoryJournal]) -> None:
    books = read(journals[3], journals[3].last())
    ledger = snapshot.decode(snapshot.encode(books), Books(archive=MemoryArchive())).history.ledger
    assert ledger.acts and ledger._open
    known = {id(act) for act in ledger.acts}
    for table in (ledger._open, ledger._on, ledger._at):
        assert all(id(act) in known for acts in table.values() for act in acts)


def test_what_was_not_filed_yet_is_filed_after_the_start(journals: list[MemoryJournal]) -> None:
    journal = _copy(journals[0])
    books = Books(archive=MemoryArchive())
    catch_up(books, journal, files=False)
    assert books.unfiled
    snapshots = MemorySnapshots(journal)
    snapshots.put(snapshot_of(books))
    again = load(snapshots, journal, MemoryArchive(), files=False)
    assert [record for record, _ in again.unfiled] == [record for record, _ in books.unfiled]


def test_a_snapshot_that_cannot_be_read_costs_time_only_while_the_journal_is_whole(
    journals: list[MemoryJournal],
) -> None:
    journal = _copy(journals[0])
    snapshots = MemorySnapshots(journal)
    whole = read(journal, journal.last())
    good = snapshot_of(whole)
    snapshots.put(msgspec.structs.replace(good, body=b"of another version"))
    assert load(snapshots, journal, MemoryArchive()).world == whole.world
    snapshots.compact(5)
    with pytest.raises(JournalCorrupt, match="compacted away"):
        load(snapshots, journal, MemoryArchive())


def test_another_format_is_told_apart() -> None:
    with pytest.raises(SnapshotUnknown, match="format 99"):
        snapshot.decode(msgspec.msgpack.encode({"format": 99}), Books())
    with pytest.raises(SnapshotUnknown, match="none of this version"):
        snapshot.decode(msgspec.msgpack.encode({"format": snapshot.FORMAT}), Books())


def _copy(journal: MemoryJournal) -> MemoryJournal:
    copy = MemoryJournal()
    for entry in journal.read():
        copy.append(entry.at_s, [entry.record])
    return copy
