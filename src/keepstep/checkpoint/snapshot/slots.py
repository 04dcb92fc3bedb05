"""Slots: anonymous shared memory that holds one rank's state at one step. Owns allocation and the rule of reuse.

A slot is free, granted to a worker that writes it, or sealed. Descriptors, not names: nothing is left to clean up when
the snapshot server ends, and nothing goes away when a worker does. Not thread-safe: memory.Memory holds the lock.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from keepstep.checkpoint.snapshot.messages import Place
from keepstep.checkpoint.snapshot.reading import FROZEN
from keepstep.checkpoint.state.blob import Chunks

KEEP_SEALED = 2
"""Newest sealed steps of a rank that are never overwritten: ranks in lock step are at most one seal apart, so with two
kept on each there is one step that all have."""
MIN_SLOTS = 2
"""One to write while the other is whole: with fewer nothing can be kept."""
_PAGE_BYTES = 4096
_MADV_POPULATE_READ = 22


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
    chunks: dict[str, Chunks] = {}
    """Group -> how its blob is cut, once hashed."""
    looked: bool = False
    """Whether its values passed the gates, beyond what is seen without looking at them."""
    damaged: frozenset[str] = frozenset()
    """Digests whose bytes were found changed."""


class Slot:
    """One memfd, mapped here for reading, or ``writable``. ``readers`` counts who needs its bytes to stay.

    ``directory``: in a file there instead, without a name, for a state that has no room in memory.
    """

    def __init__(
        self, number: int, size_bytes: int, *, writable: bool = False, directory: str = "", paged_in: bool = True
    ) -> None:
        """``paged_in``: its memory is there at once. If not, :meth:`page_in` before it is filled."""
        self.number = number
        self.spilled = bool(directory)
        self.size_bytes = whole_pages(size_bytes)
        self.sealed: Sealed | None = None
        self.granted = False
        self.frozen = False
        """Nobody can write it again, not even a worker: it is never granted."""
        self.readers = 0
        self.recalls: list[Callable[[], None]] = []
        """Of readers that let go when they are asked to."""
        self.fd = _nameless(directory) if directory else _memory(f"keepstep-slot-{number}")
        try:
            os.ftruncate(self.fd, self.size_bytes)
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            # A private mapping that is only read shows what workers write, and does not stand in the way of freezing.
            kind = mmap.MAP_SHARED if writable or directory else mmap.MAP_PRIVATE
            self.map = mmap.mmap(self.fd, self.size_bytes, kind, access)
            if paged_in:
                self.page_in()
        except BaseException:
            os.close(self.fd)
            raise

    def page_in(self) -> None:
        """All pages now: a fault per page during a snapshot costs ten times the copy. And all blocks of a file: a full disk is
        an error here, and a dead worker later. Takes a second or so for each GB. Raises OSError."""
        os.posix_fallocate(self.fd, 0, self.size_bytes)
        with contextlib.suppress(OSError):
            self.map.madvise(_MADV_POPULATE_READ)

    def freeze(self) -> bool:
        """Have the kernel refuse every write from here on, so that who reads it need not copy it. False while somebody has it
        mapped for writing: the worker that sealed it lives."""
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, FROZEN)
            self.frozen = True
        return self.frozen

    def renew(self) -> None:
        """Forget what is in a file, which is then written without being read first. Raises OSError if the disk is full."""
        os.ftruncate(self.fd, 0)
        os.posix_fallocate(self.fd, 0, self.size_bytes)

    def recall(self) -> bool:
        """Ask for it back; False if some reader does not let go when asked."""
        if self.readers != len(self.recalls):
            return False
        for ask in self.recalls:
            ask()
        return bool(self.recalls)

    def view(self, place: Place) -> memoryview:
        return memoryview(self.map)[place.offset : place.offset + place.size_bytes]

    def close(self) -> None:
        os.close(self.fd)
        with contextlib.suppress(BufferError):
            # A view that is still in use keeps the mapping until it is dropped.
            self.map.close()


class Rules(Struct, frozen=True):
    """What a grant must respect, see memory."""

    needed: Callable[[Sealed], bool]
    """Must stay whatever happens."""
    wanted: Callable[[Sealed], bool]
    """Should stay unless there is no other."""
    superseded: Callable[[Sealed], bool]
    """A later step is whole on all ranks."""
    room: Callable[[int], bool]
    """Whether so many more bytes may be allocated."""
    more: int = 0
    """Slots beyond the usual number."""


class RankSlots:
    """The slots of one rank on this node."""

    def __init__(self, numbers: Callable[[], int]) -> None:
        self._numbers = numbers
        self.slots: list[Slot] = []

    def sealed(self) -> list[tuple[Slot, Sealed]]:
        """Sealed slots, newest first."""
        pairs = [(slot, slot.sealed) for slot in self.slots if slot.sealed is not None]
        return sorted(pairs, key=lambda pair: -pair[1].order)

    def grant(self, size_bytes: int, rules: Rules) -> Slot | None:
        """A slot to write, or None while every one is needed. A sealed slot that is needed is never given.

        Raises OSError if memory for a new slot is refused.
        """
        for slot in [s for s in self.in_memory() if s.sealed is None and not s.granted and not s.readers]:
            if slot.size_bytes >= size_bytes and not slot.frozen:
                return self._take(slot)
            self._drop(slot)
        if len(self.in_memory()) < slots_per_rank(size_bytes) + rules.more and rules.room(whole_pages(size_bytes)):
            with contextlib.suppress(OSError):
                # Without memory for one more, an old one that is not needed will do.
                return self._add(size_bytes)
        spare = [pair for pair in self._spare(rules) if not pair[0].readers]
        for slot, _ in [*(p for p in spare if not rules.wanted(p[1])), *(p for p in spare if rules.wanted(p[1]))]:
            if slot.size_bytes >= size_bytes and not slot.frozen:
                return self._take(slot)
            self._drop(slot)
            if rules.room(whole_pages(size_bytes)):
                return self._add(size_bytes)
        if not spare:
            any(slot.recall() for slot, _ in self._spare(rules))
        return None

    def spill(self, size_bytes: int, directory: str) -> Slot | None:
        """The one slot of a rank whose state has no room in memory; None while it is being written to a checkpoint.

        Raises OSError if the disk is full.
        """
        for slot in [slot for slot in self.slots if slot.spilled]:
            if slot.granted or slot.readers:
                return None
            if slot.size_bytes >= size_bytes:
                slot.sealed = None
                slot.renew()
                return self._take(slot)
            self._drop(slot)
        self.slots.append(Slot(self._numbers(), size_bytes, directory=directory))
        return self._take(self.slots[-1])

    def drop_spilled(self) -> None:
        """There is room in memory again."""
        for slot in [slot for slot in self.slots if slot.spilled and not slot.granted and not slot.readers]:
            self._drop(slot)

    def in_memory(self) -> list[Slot]:
        return [slot for slot in self.slots if not slot.spilled]

    def _spare(self, rules: Rules) -> list[tuple[Slot, Sealed]]:
        """Sealed slots that are not needed, oldest first."""
        sealed = [pair for pair in self.sealed() if not pair[0].spilled]
        old = sealed[KEEP_SEALED:]
        if len(self.in_memory()) <= KEEP_SEALED:
            # There is no room for history: the one before the newest goes as soon as the newest is whole everywhere.
            old = [pair for pair in sealed[1:] if rules.superseded(pair[1])]
        return [pair for pair in reversed(old) if not rules.needed(pair[1])]

    def _add(self, size_bytes: int) -> Slot:
        self.slots.append(Slot(self._numbers(), size_bytes))
        return self._take(self.slots[-1])

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

    def drop_spare(self, needed: Callable[[Sealed], bool]) -> None:
        """Give up history, for another rank that has none."""
        for slot, sealed in self.sealed()[KEEP_SEALED:]:
            if not slot.readers and not needed(sealed):
                self._drop(slot)

    def close(self) -> None:
        for slot in list(self.slots):
            self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        self.slots.remove(slot)
        slot.close()


def _nameless(directory: str) -> int:
    """A descriptor of a new file that goes when its last user does."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    fd, path = tempfile.mkstemp(prefix=".keepstep-", dir=directory)
    os.unlink(path)
    return fd


def _memory(name: str) -> int:
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES


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
