"""Entries of a journal in their order, those that were moved into archive files included. Owns the choice; prints nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keepstep.core.decision import Entry
    from keepstep.ports import Journal

_PAGE = 500


def entries(journal: "Journal", archive: Path, after: int, about: str) -> Iterator["Entry"]:
    """``about``: only those on that subject; all where it is empty. Raises JournalCorrupt."""
    first = journal.first()
    last = after
    if after < first - 1:
        for entry in _archived(archive, after, first):
            last = entry.seq
            if not about or _is_about(entry, about):
                yield entry
    last = max(last, first - 1)
    yield from journal.read(last) if not about else _mentioning(journal, about, last)


def gap(journal: "Journal", archive: Path, after: int) -> str:
    """What to say where entries that are meant were moved out, and their files are not there; empty where all is."""
    from keepstep.server import archive_file

    moved = journal.first() - 1
    for path in archive_file.files(archive):
        begin, end = _span(path)
        if begin <= after + 1:
            after = max(after, end)
    if after >= moved:
        return ""
    return (
        f"entries up to {moved} were moved out, and not all of their files are in {archive}; "
        "name the folder that has them with --archive"
    )


def _span(path: Path) -> tuple[int, int]:
    """First and last entry, as the name of the file says."""
    _, begin, end = path.stem.split("-")
    return int(begin), int(end)


def _archived(directory: Path, after: int, before: int) -> Iterator["Entry"]:
    from keepstep.adapters.memory.chain import entry_of
    from keepstep.server import archive_file
    from keepstep.server.archive_file import Header

    for path in archive_file.files(directory):
        if _span(path)[1] <= after:
            continue
        for row in archive_file.read(path):
            if not isinstance(row, Header) and after < row.seq < before:
                after = row.seq
                yield entry_of(row.seq, row.at_s, row.body, row.prev, row.hash)


def _is_about(entry: "Entry", about: str) -> bool:
    from keepstep.core.mentions import subjects

    return about in subjects(entry.record)


def _mentioning(journal: "Journal", about: str, after: int) -> Iterator["Entry"]:
    """By the index, which walks backwards."""
    found: list[Entry] = []
    before: int | None = None
    while page := journal.mentioning([about], before=before, limit=_PAGE):
        found += [entry for entry in page if entry.seq > after]
        before = page[-1].seq
        if before <= after:
            break
    yield from reversed(found)
