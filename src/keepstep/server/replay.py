"""From the journal to the books: at the start of a server, in a follower, and for a file on a laptop. Must not decide."""

from collections.abc import Iterable, Sequence

from keepstep.core.decision import Decision, Entry
from keepstep.ports import Archive, Journal
from keepstep.server.desk import Desk
from keepstep.server.finish import Finished, finished
from keepstep.server.history import Books

PUT_EVERY = 512
"""Entries between two writes to the archive while a long journal is read."""


def replay(journal: Journal, archive: Archive | None = None) -> Books:
    """The state of affairs after the last entry. What is over goes to the archive, as far as it is not there."""
    books = Books() if archive is None else Books(archive=archive)
    catch_up(books, journal)
    return books


def catch_up(books: Books, journal: Journal) -> int:
    """Enter what was appended since; returns how many entries."""
    count, over = 0, []
    for entry in journal.read(books.world.seq):
        books.enter(entry)
        over += finished_by(books, entry) if entry.seq > books.archive.complete_to() else []
        count += 1
        if count % PUT_EVERY == 0:
            books.archive.put(entry.seq, over)
            over = []
    if count and books.archive.complete_to() < books.world.seq:
        books.archive.put(books.world.seq, over)
    return count


def finished_by(books: Books, entry: Entry) -> list[Finished]:
    """What is over with an entry that was entered."""
    if not isinstance(entry.record, Decision):
        return []
    return list(finished(Desk(books, None, entry.at_s), entry.record))


def file_away(books: Books, entries: Sequence[Entry]) -> None:
    """Put what is over with these entries, which are noted, into the archive."""
    over: Iterable[Finished] = [item for entry in entries for item in finished_by(books, entry)]
    if over:
        books.archive.put(entries[-1].seq, list(over))
