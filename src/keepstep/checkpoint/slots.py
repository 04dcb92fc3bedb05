"""Slots: anonymous shared memory that holds one rank's state at one step. Owns allocation and the rule of reuse.

A slot is free, granted to a worker that writes it, or sealed. Descriptors, not names: nothing is left to clean up when
the snapshot server ends, and nothing goes away when a worker does. Not thread-safe: memory.Memory holds the lock.
"""

import contextlib
import mmap
import os
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from keepstep.checkpoint.messages import Place

KEEP_SEALED = 2
"""Newest sealed steps of a rank that are never overwritten: ranks in lock step are at most one seal apart, so with two
kept on each there is one step that all have."""
_PAGE_BYTES = 4096


def slots_per_rank(size_bytes: int) -> int:
    """More history where it is cheap; never fewer than two sealed and one to write."""
    if size_bytes <= 64 * 1024 * 1024:
        return 5
    return 4 if size_bytes <= 1024 * 1024 * 1024 else 3


class Sealed(Struct, kw_only=True):
    """What stands in a sealed slot."""

    order: int
    """Grows with every seal on this server."""
    generation: int
    step: int
    rank: int
    world_size: int
    places: tuple[Place, ...]
    durable: bool
    digests: dict[str, str] | None = None
    """Group -> digest, once hashed."""
    damaged: frozenset[str] = frozenset()
    """Digests whose bytes were found changed."""


class Slot:
    """One memfd, mapped here for reading. ``readers`` counts who needs its bytes to stay."""

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number = number
        self.size_bytes = -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
        self.sealed: Sealed | None = None
        self.granted = False
        self.readers = 0
        self.fd = os.memfd_create(f"keepstep-slot-{number}", os.MFD_CLOEXEC)
        try:
            # All pages now: a fault per page during a snapshot costs ten times the copy.
            os.posix_fallocate(self.fd, 0, self.size_bytes)
            self.map = mmap.mmap(self.fd, self.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        except BaseException:
            os.close(self.fd)
            raise

    def view(self, place: Place) -> memoryview:
        return memoryview(self.map)[place.offset : place.offset + place.size_bytes]

    def close(self) -> None:
        os.close(self.fd)
        with contextlib.suppress(BufferError):
            # A view that is still in use keeps the mapping until it is dropped.
            self.map.close()


class RankSlots:
    """The slots of one rank on this node."""

    def __init__(self, numbers: Callable[[], int]) -> None:
        self._numbers = numbers
        self.slots: list[Slot] = []

    def sealed(self) -> list[tuple[Slot, Sealed]]:
        """Sealed slots, newest first."""
        pairs = [(slot, slot.sealed) for slot in self.slots if slot.sealed is not None]
        return sorted(pairs, key=lambda pair: -pair[1].order)

    def grant(self, size_bytes: int, protected: Callable[[Sealed], bool]) -> Slot | None:
        """A slot to write, or None while every one is needed. A sealed slot that is needed is never given.

        Raises OSError if memory for a new slot is refused.
        """
        for slot in [slot for slot in self.slots if slot.sealed is None and not slot.granted and not slot.readers]:
            if slot.size_bytes >= size_bytes:
                return self._take(slot)
            self._drop(slot)
        if len(self.slots) < slots_per_rank(size_bytes):
            with contextlib.suppress(OSError):
                # Without memory for one more, an old one that is not needed will do.
                self.slots.append(Slot(self._numbers(), size_bytes))
                return self._take(self.slots[-1])
        for slot, sealed in reversed(self.sealed()[KEEP_SEALED:]):
            if slot.readers or protected(sealed):
                continue
            if slot.size_bytes >= size_bytes:
                return self._take(slot)
            self._drop(slot)
            self.slots.append(Slot(self._numbers(), size_bytes))
            return self._take(self.slots[-1])
        return None

    def _take(self, slot: Slot) -> Slot:
        slot.sealed, slot.granted = None, True
        return slot

    def give_back(self, slot: Slot, *, still_mapped: bool) -> None:
        """A granted slot was not sealed. ``still_mapped``: its writer may live, so its memory is never used again."""
        slot.granted = False
        if still_mapped:
            self._drop(slot)

    def drop_sealed(self, which: Callable[[Sealed], bool]) -> None:
        for slot, sealed in self.sealed():
            if which(sealed) and not slot.readers:
                self._drop(slot)

    def close(self) -> None:
        for slot in list(self.slots):
            self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        self.slots.remove(slot)
        slot.close()


def anonymous(data: Any) -> int:
    """A descriptor of new anonymous memory that holds ``data``; the caller closes it."""
    fd = os.memfd_create("keepstep-blob", os.MFD_CLOEXEC)
    try:
        view, done = memoryview(data), 0
        while done < len(view):
            done += os.write(fd, view[done:])
    except BaseException:
        os.close(fd)
        raise
    return fd
