"""What becomes of a sealed slot: digested, judged, told to peers, copied, written. Owns the order, and the thread it runs on.

An unfit snapshot is dropped here: it is never offered, mirrored, copied or written, and what was sealed before it stays. Must
not delay a grant: the next slot is given while this runs.
"""

import queue
import threading
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.snapshot.gates import Candidate, Gates
from keepstep.checkpoint.snapshot.memory import Memory
from keepstep.checkpoint.snapshot.messages import Notice, Part, SaveError
from keepstep.checkpoint.snapshot.peers import Mirror
from keepstep.checkpoint.snapshot.replicas import INLINE_BYTES, Replicas
from keepstep.checkpoint.snapshot.slots import Sealed, Slot
from keepstep.checkpoint.state.blob import Chunks, digest_chunks


class Next(Struct, frozen=True, kw_only=True):
    """Where a slot goes from here, and who is told. All are called on the thread of the Hasher."""

    save: Callable[[Slot, Sealed], None]
    """An acquired slot is to be written to disk."""
    failed: Callable[[SaveError], None]
    notice: Callable[[Notice], None]
    freed: Callable[[], None]
    """A slot has one reader less."""


class Hasher:
    """Takes slots in the order in which they were sealed. ``mirrors`` may be replaced at any time."""

    def __init__(self, memory: Memory, gates: Gates, replicas: Replicas, then: Next) -> None:
        self._memory, self._gates, self._replicas, self._then = memory, gates, replicas, then
        self.mirrors: list[Mirror] = []
        self._queue: queue.Queue[tuple[Slot, Sealed] | None] = queue.Queue()
        self._unfit: set[int] = set()
        """Ranks whose last snapshot was unfit: people are told once."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="hash", daemon=True).start()

    def put(self, slot: Slot, sealed: Sealed) -> None:
        """A slot that :meth:`Memory.seal` has acquired; it is released here."""
        self._queue.put((slot, sealed))

    def join(self) -> None:
        """Wait until everything that was put is entered or dropped."""
        self._queue.join()

    def stop(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            slot, sealed = item
            try:
                self._take(slot, sealed)
            finally:
                self._memory.release(slot)
                self._queue.task_done()
                self._then.freed()

    def _take(self, slot: Slot, sealed: Sealed) -> None:
        try:
            chunks = {place.name: digest_chunks(slot.view(place)) for place in sealed.places}
            look = self._replicas.wants(sealed.step, durable=sealed.durable)
            candidate = _candidate(slot, sealed, chunks)
            why, sealed.looked = self._gates.judge(candidate, look=look)
        except StateInvalid as error:
            why = str(error)
        if why:
            self._drop(slot, sealed, why)
            return
        self._unfit.discard(sealed.rank)
        if slot.spilled:
            self._memory.digested(sealed, chunks)
        else:
            self._mirror(slot, sealed, self._memory.enter(sealed, chunks))
            self._replicas.consider()
        if sealed.durable:
            self._memory.acquire(slot)
            self._then.save(slot, sealed)

    def _drop(self, slot: Slot, sealed: Sealed, why: str) -> None:
        self._memory.discard(slot, sealed)
        if sealed.durable:
            self._then.failed(SaveError(step=sealed.step, generation=sealed.generation, reason=_words(sealed, why)))
        if not sealed.looked:
            self._tell(sealed, why)
            return
        # Its values are wrong: those of the snapshots before it, which nobody looked at, may be as well.
        for other, before in self._memory.unlooked(sealed.rank):
            if before.generation == sealed.generation:
                wrong = self._gates.look_back(_candidate(other, before, before.chunks))
                if wrong:
                    self._memory.discard(other, before)
                before.looked = not wrong
            self._memory.release(other)
        self._tell(sealed, why)

    def _tell(self, sealed: Sealed, why: str) -> None:
        if sealed.rank not in self._unfit:
            self._unfit.add(sealed.rank)
            notice = Notice(
                topic="gate", generation=sealed.generation, step=sealed.step, reason=_words(sealed, why)
            )  # fmt: skip
            self._then.notice(notice)

    def _mirror(self, slot: Slot, sealed: Sealed, part: Part) -> None:
        mirrors = self.mirrors
        if not mirrors:
            return
        small = {
            part.groups[place.name]: bytes(slot.view(place))
            for place in sealed.places
            if place.size_bytes <= INLINE_BYTES
        }
        whole = msgspec.structs.replace(part, inline=small)
        for mirror in mirrors:
            mirror.put(whole)


def _candidate(slot: Slot, sealed: Sealed, chunks: Mapping[str, Chunks]) -> Candidate:
    return Candidate(
        generation=sealed.generation, step=sealed.step, rank=sealed.rank, world_size=sealed.world_size,
        durable=sealed.durable, blobs={place.name: slot.view(place) for place in sealed.places},
        digests={name: cut.root for name, cut in chunks.items()},
    )  # fmt: skip


def _words(sealed: Sealed, why: str) -> str:
    return f"the snapshot of rank {sealed.rank} at step {sealed.step} is not fit to be kept: {why}"
