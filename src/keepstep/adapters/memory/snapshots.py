"""Snapshots of a journal in memory, for tests. Passes tests/contracts like the real ones."""

from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.ports import Snapshot

KEPT = 2


class MemorySnapshots:
    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal
        self._kept: dict[int, Snapshot] = {}

    def newest(self) -> Snapshot | None:
        return self._kept[max(self._kept)] if self._kept else None

    def put(self, snapshot: Snapshot) -> None:
        """Raises ValueError where it is not of an entry of this journal."""
        if self._journal.hash_of(snapshot.seq).hex() != snapshot.hash:
            raise ValueError(f"entry {snapshot.seq} of the journal in memory is not the one that this snapshot is of")
        self._kept[snapshot.seq] = snapshot
        for seq in sorted(self._kept)[:-KEPT]:
            del self._kept[seq]

    def compact(self, upto: int) -> None:
        newest = self.newest()
        if newest is None or newest.seq < upto:
            raise ValueError(
                f"no snapshot covers entry {upto}; the newest one is of entry {newest.seq if newest else 0}"
            )
        self._journal.forget(upto)
