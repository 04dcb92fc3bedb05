"""A journal in memory, for tests and the simulator. Passes tests/contracts like the real one; survives nothing."""

from collections.abc import Iterator, Sequence

from keepstep.adapters.memory.chain import GENESIS, body_of, digest, entry_of
from keepstep.core.decision import Entry, Record
from keepstep.core.ids import Session
from keepstep.core.mentions import subjects
from keepstep.ports import JournalCorrupt, StoredEntry

NAME = "the journal in memory"


class MemoryJournal:
    """Keeps the canonical bytes, so that what is read back is what a real journal would give."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, bytes, bytes, bytes]] = []
        """(seq, at_s, body, prev, hash)"""
        self._received: dict[Session, int] = {}
        self._compacted = (0, GENESIS)
        """The entry up to which it was compacted, and its hash."""

    def append(
        self, at_s: float, records: Sequence[Record], origins: Sequence[tuple[Session, int] | None] = ()
    ) -> list[Entry]:
        written: list[Entry] = []
        for record in records:
            (seq, prev), body = self._head(), body_of(record)
            seq += 1
            self.rows.append((seq, at_s, body, prev, digest(prev, seq, at_s, body)))
            written.append(Entry(seq=seq, at_s=at_s, record=record, prev=prev.hex(), hash=self.rows[-1][4].hex()))
        for origin in origins:
            if origin is not None:
                self._received[origin[0]] = max(origin[1], self._received.pop(origin[0], 0))
        return written

    def received(self) -> dict[Session, int]:
        return dict(self._received)

    def read(self, after: int = 0) -> Iterator[Entry]:
        for row in self._chained(after):
            try:
                yield entry_of(row.seq, row.at_s, row.body, row.prev, row.hash)
            except ValueError as error:
                raise JournalCorrupt(row.seq, str(error), NAME) from error

    def stored(self, after: int = 0) -> Iterator[StoredEntry]:
        for row in self._chained(after):
            if digest(row.prev, row.seq, row.at_s, row.body) != row.hash:
                raise JournalCorrupt(row.seq, "does not match its hash: it was edited or damaged", NAME)
            yield row

    def _chained(self, after: int) -> Iterator[StoredEntry]:
        gone, prev = self._compacted
        if after < gone:
            raise JournalCorrupt(after + 1, f"was compacted away; the journal begins with entry {gone + 1}", NAME)
        prev = self.hash_of(after) if after > gone else prev
        for index, (seq, at_s, body, stored_prev, stored) in enumerate(self.rows[after - gone :], start=after + 1):
            if seq != index or stored_prev != prev:
                raise JournalCorrupt(index, "does not follow the one before it", NAME)
            yield StoredEntry(seq=seq, at_s=at_s, body=body, prev=prev, hash=stored)
            prev = stored

    def hash_of(self, seq: int) -> bytes:
        gone, hashed = self._compacted
        return hashed if seq == gone else self.rows[seq - gone - 1][4]

    def forget(self, upto: int) -> None:
        """What ports.Snapshots.compact does to a journal."""
        gone, _ = self._compacted
        if upto > gone:
            self._compacted = (upto, self.hash_of(upto))
            del self.rows[: upto - gone]

    def _head(self) -> tuple[int, bytes]:
        return (self.rows[-1][0], self.rows[-1][4]) if self.rows else self._compacted

    def first(self) -> int:
        return self._compacted[0] + 1

    def last(self) -> int:
        return self._head()[0]

    def mentioning(self, subjects_wanted: Sequence[str], *, before: int | None = None, limit: int = 100) -> list[Entry]:
        wanted = set(subjects_wanted)
        found: list[Entry] = []
        for seq, at_s, body, prev, stored in reversed(
            self.rows[: None if before is None else max(0, before - 1 - self._compacted[0])]
        ):
            if len(found) == limit:
                break
            entry = entry_of(seq, at_s, body, prev, stored)
            if not wanted or wanted.intersection(subjects(entry.record)):
                found.append(entry)
        return found

    def verify(self) -> int:
        return sum(1 for _ in self.read(self._compacted[0]))

    def close(self) -> None:
        """Nothing to let go of."""
