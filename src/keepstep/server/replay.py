"""From the journal to the books: at the start of a server, in a follower, and for a file on a laptop. Must not decide."""

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.core.decision import Decision, Entry
from keepstep.ports import Archive, Journal
from keepstep.server.desk import Desk
from keepstep.server.finish import Finished, finished
from keepstep.server.history import Books

FILE_EVERY = 512
"""Things that are over, kept in memory before they go to the archive, while a long journal is read."""


def replay(journal: Journal, archive: Archive | None = None, *, files: bool = True) -> Books:
    """The state of affairs after the last entry. ``files``: what is over goes to the archive, as far as it is not there."""
    books = Books(archive=archive if archive is not None else MemoryArchive())
    catch_up(books, journal, files=files)
    return books


def catch_up(books: Books, journal: Journal, *, files: bool = True) -> int:
    """Enter what was appended since; returns how many entries. Who does not file remembers what may be missing in the
    archive, until somebody else has filed it."""
    filed, count = books.archive.complete_to(), 0
    for entry in journal.read(books.world.seq):
        books.enter(entry)
        count += 1
        if entry.seq > filed:
            books.unfiled += finished_by(books, entry)
            if files and len(books.unfiled) >= FILE_EVERY:
                file_away(books)
    if files and count and books.world.seq > filed:
        file_away(books)
    if not files and books.archive.complete_to() >= books.world.seq:
        books.unfiled.clear()
    return count


def finished_by(books: Books, entry: Entry) -> list[Finished]:
    """What is over with an entry that was entered."""
    if not isinstance(entry.record, Decision):
        return []
    return list(finished(Desk(books, None, entry.at_s), entry.record))


def file_away(books: Books) -> None:
    """Put what is over into the archive, which is complete up to the newest entry then."""
    books.archive.put(books.world.seq, books.unfiled)
    books.unfiled = []
