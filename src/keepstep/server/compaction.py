"""Moves old entries out of the journal into an archive file, and proves the chain over both. Owns the order of these steps:

a snapshot that covers them, the file (durable), the fact ``Compacted`` (durable), and only then they are forgotten. A death in
between leaves entries in two places, never in none; the next compaction goes on where it was.

Works beside a running server, which only has to take the fact. Must not run in its event loop.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from keepstep.adapters.memory.chain import GENESIS
from keepstep.core.facts import Compacted
from keepstep.ports import Archive, Journal, JournalCorrupt, Snapshots, StoredEntry
from keepstep.server import archive_file
from keepstep.server.archive_file import Archived, Header
from keepstep.server.snapshot import load, snapshot_of


class NothingToCompact(ValueError):
    """No entry is old enough, or none may go yet."""


class Store(Struct, frozen=True):
    """Where a journal is kept, as far as a compaction needs it."""

    journal: Journal
    snapshots: Snapshots
    archive: Archive
    directory: Path
    """Of the archive files."""


class Proof(Struct, frozen=True, kw_only=True):
    """What was checked, without a gap, from ``first`` to ``last``."""

    first: int
    last: int
    files: int
    """Archive files among it."""
    compacted: int
    """Entries up to this one are not in the journal any more."""
    begins_with: str
    """Hash, in hex, that the first entry follows: that of the entry before it, all noughts for the very first."""

    @property
    def whole(self) -> bool:
        return self.first == 1


def upto_of(journal: Journal, before_s: float) -> int:
    """The newest entry that was written before that time; 0 where there is none. Entries are in the order of their times."""
    low, high = journal.first() - 1, journal.last()
    while low < high:
        middle = (low + high + 1) // 2
        found = journal.mentioning((), before=middle + 1, limit=1)
        if found and found[0].at_s < before_s:
            low = middle
        else:
            high = middle - 1
    return low


def take_snapshot(store: Store) -> int:
    """Of the state after the newest entry, unless there is one already; returns that entry's number. Reads, and puts; takes
    as long as a start of the server."""
    books = load(store.snapshots, store.journal, store.archive, files=False)
    newest = store.snapshots.newest()
    if books.world.seq and (newest is None or newest.seq < books.world.seq):
        store.snapshots.put(snapshot_of(books))
    return books.world.seq


def compact(store: Store, upto: int, by: str, tell: Callable[[Compacted], None]) -> Compacted:
    """``tell`` makes the fact durable in the journal. Raises NothingToCompact, and what the parts raise."""
    covered = take_snapshot(store)
    _finish(store)
    upto, first = min(upto, covered, store.archive.complete_to()), store.journal.first()
    if upto < first:
        raise NothingToCompact(f"the journal begins with entry {first}, and nothing before entry {upto + 1} may go")
    for path in archive_file.files(store.directory):
        if _first_of(path) >= first:
            path.unlink()  # of a compaction that died before it told: the journal still has all of it
    file = archive_file.write(store.directory, first, upto, store.journal.stored(first - 1))
    _read_back(file)
    fact = Compacted(upto=upto, hash=file.hash, archive=Path(file.path).name, digest=file.digest, by=by)
    tell(fact)
    store.snapshots.compact(upto)
    return fact


def _finish(store: Store) -> None:
    """What an earlier compaction told and did not live to do. Nothing is forgotten on a word alone: the file must be there."""
    told = [e.record for e in store.journal.mentioning(("fact:Compacted",), limit=1) if isinstance(e.record, Compacted)]
    if (
        told
        and told[0].upto >= store.journal.first()
        and _is_there(store.directory / Path(told[0].archive).name, told[0])
    ):
        store.snapshots.compact(told[0].upto)


def _is_there(path: Path, told: Compacted) -> bool:
    return path.is_file() and archive_file.digest_of(path) == told.digest


def _read_back(file: Archived) -> None:
    """It must prove what it is to stand for, before anything is forgotten."""
    for _ in archive_file.read(Path(file.path)):
        pass


def prove(journal: Journal, directory: Path | None) -> Proof:
    """Check every entry of archive files and journal, and that each follows the one before. Raises JournalCorrupt."""
    told, first, chain, used = _told(journal), journal.first(), _Chain(), 0
    for path in archive_file.files(directory) if directory is not None else ():
        if _first_of(path) >= first and path.name not in told:
            continue  # left by a compaction that died: nothing was forgotten for it
        if path.name in told and told[path.name].digest != archive_file.digest_of(path):
            raise JournalCorrupt(
                _first_of(path), "is not in the file that the journal names: its digest differs", str(path)
            )
        chain.follow(archive_file.read(path), str(path))
        used += 1
    if chain.seq and chain.seq < first - 1:
        raise JournalCorrupt(chain.seq + 1, f"is in no archive file of {directory}", "the chain")
    # Where a compaction died half-way, entries are in a file and in the journal: the journal goes on from the file's last.
    chain.follow(journal.stored(max(first - 1, chain.seq)), "the journal")
    begins = chain.begins if chain.begins is not None else (first, _hash_before(told, first))
    return Proof(first=begins[0], last=chain.seq, files=used, compacted=first - 1, begins_with=begins[1].hex())


class _Chain:
    """Entries that were seen to follow one another, from wherever the first one came."""

    def __init__(self) -> None:
        self.seq, self.hash = 0, b""
        self.begins: tuple[int, bytes] | None = None
        """The first one, and the hash that it follows."""

    def follow(self, rows: Iterable[Header | StoredEntry], where: str) -> None:
        for row in rows:
            if isinstance(row, Header):
                continue
            if self.begins is None:
                self.begins = (row.seq, row.prev)
            elif row.seq != self.seq + 1 or row.prev != self.hash:
                raise JournalCorrupt(self.seq + 1, "is missing or does not follow the one before it", where)
            self.seq, self.hash = row.seq, row.hash


def _told(journal: Journal) -> dict[str, Compacted]:
    """Archive file -> the newest word about it, as far as that is in the journal."""
    found = journal.mentioning(("fact:Compacted",), limit=10_000)
    return {e.record.archive: e.record for e in reversed(found) if isinstance(e.record, Compacted)}


def _hash_before(told: dict[str, Compacted], first: int) -> bytes:
    known = next((fact for fact in told.values() if fact.upto == first - 1), None)
    return bytes.fromhex(known.hash) if known is not None else GENESIS


def _first_of(path: Path) -> int:
    return int(path.name.split("-")[1])
