"""A journal in memory, for tests and the simulator. Passes tests/contracts like the real one; survives nothing."""

from collections.abc import Iterator, Sequence

from keepstep.adapters.memory.chain import GENESIS, body_of, digest, entry_of
from keepstep.core.decision import Entry, Record
from keepstep.core.ids import Session
from keepstep.core.mentions import subjects
from keepstep.ports import JournalCorrupt


class MemoryJournal:
    """Keeps the canonical bytes, so that what is read back is what a real journal would give."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, bytes, bytes, bytes]] = []
        """(seq, at_s, body, prev, hash)"""
        self._received: dict[Session, int] = {}

    def append(
        self, at_s: float, records: Sequence[Record], origins: Sequence[tuple[Session, int] | None] = ()
    ) -> list[Entry]:
        written: list[Entry] = []
        for record in records:
            prev = self.rows[-1][4] if self.rows else GENESIS
            seq, body = len(self.rows) + 1, body_of(record)
            self.rows.append((seq, at_s, body, prev, digest(prev, seq, at_s, body)))
            written.append(Entry(seq=seq, at_s=at_s, record=record, prev=prev.hex(), hash=self.rows[-1][4].hex()))
        for origin in origins:
            if origin is not None:
                self._received[origin[0]] = max(origin[1], self._received.get(origin[0], 0))
        return written

    def received(self) -> dict[Session, int]:
        return dict(self._received)

    def read(self, after: int = 0) -> Iterator[Entry]:
        prev = self.rows[after - 1][4] if after else GENESIS
        for index, (seq, at_s, body, stored_prev, stored) in enumerate(self.rows[after:], start=after + 1):
            if seq != index or stored_prev != prev:
                raise JournalCorrupt(index, "does not follow the one before it", "the journal in memory")
            try:
                yield entry_of(seq, at_s, body, prev, stored)
            except ValueError as error:
                raise JournalCorrupt(index, str(error), "the journal in memory") from error
            prev = stored

    def first(self) -> int:
        return 1

    def last(self) -> int:
        return len(self.rows)

    def mentioning(self, subjects_wanted: Sequence[str], *, before: int | None = None, limit: int = 100) -> list[Entry]:
        wanted = set(subjects_wanted)
        found: list[Entry] = []
        for seq, at_s, body, prev, stored in reversed(self.rows[: None if before is None else max(0, before - 1)]):
            if len(found) == limit:
                break
            entry = entry_of(seq, at_s, body, prev, stored)
            if not wanted or wanted.intersection(subjects(entry.record)):
                found.append(entry)
        return found

    def verify(self) -> int:
        return sum(1 for _ in self.read())

    def close(self) -> None:
        """Nothing to let go of."""
