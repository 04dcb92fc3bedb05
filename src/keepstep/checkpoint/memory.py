"""The memory tier of one node: what its ranks sealed, what peers mirrored, what was fetched. Owns what must be kept.

State is content-addressed: a rank's state at a step is a map of group -> digest (its *part*), and bytes are found by
digest wherever they are. Thread-safe; must not do I/O beyond allocating memory.
"""

import contextlib
import itertools
import mmap
import os
import threading
from collections.abc import Iterator

from msgspec import Struct

from keepstep.checkpoint.blob import digest_of
from keepstep.checkpoint.messages import Part, RamStock, Seal
from keepstep.checkpoint.slots import RankSlots, Sealed, Slot, anonymous

KEEP_STEPS = 8
"""Newest steps whose parts are remembered. Parts are small; more than the slots of any rank hold."""
_At = tuple[int, int]
"""Generation and step. Two generations that ran the same step are never mixed."""


class Located(Struct, frozen=True):
    """Bytes of one digest on this node: in a slot, or in a buffer."""

    size_bytes: int
    data: memoryview
    fd: int = -1
    offset: int = 0
    slot: Slot | None = None

    def descriptor(self) -> tuple[int, int]:
        """A new descriptor that holds the bytes, and the offset in it. The caller closes it."""
        if self.fd >= 0:
            return os.dup(self.fd), self.offset
        return anonymous(self.data), 0


class Fetched:
    """Anonymous memory for one blob that comes from a peer."""

    def __init__(self, size_bytes: int) -> None:
        self.fd = os.memfd_create("keepstep-fetched", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self.fd, 0, max(size_bytes, 1))
            self.view = memoryview(mmap.mmap(self.fd, max(size_bytes, 1)))[:size_bytes]
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        os.close(self.fd)


class Memory:
    """See the module. ``generation`` is the newest that has begun here; words of older ones change nothing."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._orders = itertools.count(1)
        self._ranks: dict[int, RankSlots] = {}
        self._parts: dict[_At, dict[int, Part]] = {}
        self._inline: dict[str, bytes] = {}
        self._fetched: dict[str, Fetched] = {}
        self._held: set[_At] = set()
        self._local: set[int] = set()
        self.generation = 0

    # ---- generations

    def begin(self, generation: int) -> None:
        """Older generations' words change nothing from here. What they sealed stays until it is surely not needed."""
        with self._lock:
            if generation <= self.generation:
                return
            self.generation = generation
            self._local = set()

    def hold(self, step: int, generation: int) -> None:
        """Keep a step until two later ones are complete in a newer generation. -1: of every generation that has it."""
        with self._lock:
            self._held |= {at for at in self._parts if at[1] == step and generation in (-1, at[0])}

    # ---- slots

    def grant(self, rank: int, size_bytes: int) -> Slot | None:
        with self._lock:
            self._local.add(rank)
            slots = self._ranks.setdefault(rank, RankSlots(lambda: next(self._numbers)))
            return slots.grant(size_bytes, self._is_needed)

    def _is_needed(self, sealed: Sealed) -> bool:
        at = (sealed.generation, sealed.step)
        return at in self._held or at == self._newest_complete()

    def give_back(self, rank: int, slot: Slot, *, still_mapped: bool) -> None:
        with self._lock:
            self._ranks[rank].give_back(slot, still_mapped=still_mapped)

    def seal(self, rank: int, slot: Slot, seal: Seal, *, generation: int, world_size: int) -> Sealed:
        """The worker's last byte is in. The slot has a reader until :meth:`hashed`."""
        with self._lock:
            for place in seal.groups:
                if place.offset < 0 or place.size_bytes < 0 or place.offset + place.size_bytes > slot.size_bytes:
                    raise ValueError(f"group {place.name!r} reaches outside its slot")
            slot.granted = False
            slot.readers += 1
            slot.sealed = Sealed(
                order=next(self._orders), generation=generation, step=seal.step, rank=rank, world_size=world_size,
                places=seal.groups, durable=seal.durable,
            )  # fmt: skip
            return slot.sealed

    def hash(self, slot: Slot, sealed: Sealed) -> Part:
        """Digest what was sealed and enter it. Slow: runs without the lock; the slot's reader keeps the bytes."""
        digests = {place.name: digest_of(slot.view(place)) for place in sealed.places}
        sizes = {digests[place.name]: place.size_bytes for place in sealed.places}
        part = Part(
            generation=sealed.generation, step=sealed.step, rank=sealed.rank, world_size=sealed.world_size,
            groups=digests, sizes_bytes=sizes,
        )  # fmt: skip
        with self._lock:
            sealed.digests = digests
            self._enter(part)
        return part

    def acquire(self, slot: Slot) -> None:
        with self._lock:
            slot.readers += 1

    def release(self, slot: Slot) -> None:
        with self._lock:
            slot.readers -= 1

    # ---- parts

    def mirrored(self, part: Part) -> bool:
        """A peer's part. False, changing nothing, for an older generation or bytes that do not match their digest."""
        if any(digest_of(blob) != digest for digest, blob in part.inline.items()):
            return False
        with self._lock:
            if part.generation < self.generation or part.rank in self._local:
                return False
            self._inline.update(part.inline)
            self._enter(part)
            return True

    def _enter(self, part: Part) -> None:
        bare = Part(
            generation=part.generation, step=part.step, rank=part.rank, world_size=part.world_size,
            groups=part.groups, sizes_bytes=part.sizes_bytes,
        )  # fmt: skip
        self._parts.setdefault((part.generation, part.step), {})[part.rank] = bare
        self._let_go()

    def _complete(self) -> list[_At]:
        """Steps of which every rank's part is known, newest first."""
        return sorted((at for at, parts in self._parts.items() if _is_complete(parts)), reverse=True)

    def _newest_complete(self) -> _At | None:
        return max((at for at, parts in self._parts.items() if _is_complete(parts)), default=None)

    def _let_go(self) -> None:
        """Free what cannot be asked for any more."""
        done = self._complete()
        if self._held and sum(generation == self.generation for generation, _ in done) >= 2:
            self._held.clear()
        if sum(generation == self.generation for generation, _ in done) >= 2:
            for fetched in self._fetched.values():
                fetched.close()
            self._fetched.clear()
            for rank in set(self._ranks) - self._local:
                self._ranks[rank].drop_sealed(lambda sealed: sealed.generation < self.generation)
                if not self._ranks[rank].slots:
                    del self._ranks[rank]
        keep = set(sorted(self._parts, reverse=True)[:KEEP_STEPS]) | self._held | set(done[:1])
        stale = set(self._parts) - keep
        for at in stale:
            del self._parts[at]
        if stale and self._inline:
            named = {
                digest for parts in self._parts.values() for part in parts.values() for digest in part.groups.values()
            }
            self._inline = {digest: blob for digest, blob in self._inline.items() if digest in named}

    def part(self, generation: int, step: int, rank: int) -> Part | None:
        """What a rank's state is made of; generation -1 takes the newest that has it."""
        with self._lock:
            for at in sorted(self._parts, reverse=True):
                if at[1] == step and generation in (-1, at[0]) and rank in self._parts[at]:
                    return self._parts[at][rank]
            return None

    def stock(self) -> tuple[RamStock, ...]:
        """Everything here, per generation and step."""
        with self._lock:
            held = self._digests()
            return tuple(
                RamStock(
                    step=step, generation=generation, world_size=next(iter(parts.values())).world_size,
                    parts={rank: tuple(part.groups.values()) for rank, part in sorted(parts.items())},
                    held=tuple(sorted({d for part in parts.values() for d in part.groups.values()} & held)),
                )
                for (generation, step), parts in sorted(self._parts.items(), reverse=True)
            )  # fmt: skip

    def _digests(self) -> set[str]:
        return {digest for digest, _ in self._everything()}

    def _everything(self) -> Iterator[tuple[str, Located]]:
        for rank in sorted(self._ranks):
            for slot, sealed in self._ranks[rank].sealed():
                for place in sealed.places if sealed.digests is not None else ():
                    digest = (sealed.digests or {})[place.name]
                    if digest not in sealed.damaged:
                        yield digest, Located(place.size_bytes, slot.view(place), slot.fd, place.offset, slot)
        for digest, blob in self._inline.items():
            yield digest, Located(len(blob), memoryview(blob))
        for digest, fetched in self._fetched.items():
            yield digest, Located(len(fetched.view), fetched.view, fetched.fd)

    @contextlib.contextmanager
    def located(self, digest: str) -> Iterator[Located | None]:
        """The bytes of a digest, kept in place inside the block; None if they are not on this node."""
        with self._lock:
            found = next((where for name, where in self._everything() if name == digest), None)
            if found is not None and found.slot is not None:
                found.slot.readers += 1
        try:
            yield found
        finally:
            if found is not None and found.slot is not None:
                self.release(found.slot)

    def keep_fetched(self, digest: str, fetched: Fetched) -> None:
        """Bytes that came from a peer, verified: the next rank on this node finds them here."""
        with self._lock:
            if digest in self._fetched:
                fetched.close()
            else:
                self._fetched[digest] = fetched

    def verify(self, digest: str) -> str:
        """Hash the bytes of a digest again; an empty string if they are right. Damaged copies are never offered again."""
        while True:
            with self.located(digest) as found:
                if found is None:
                    return f"the bytes of {digest} are not in the memory of this node"
                if digest_of(found.data) == digest:
                    return ""
                self._discard(digest, found)

    def _discard(self, digest: str, found: Located) -> None:
        with self._lock:
            if found.slot is not None and found.slot.sealed is not None:
                found.slot.sealed.damaged |= {digest}
            else:
                self._inline.pop(digest, None)
                self._fetched.pop(digest, None)

    def sealed_at(self, step: int) -> list[tuple[Slot, Sealed]]:
        """Hashed slots of the newest generation that has sealed ``step`` here; each gets a reader."""
        with self._lock:
            pairs = [pair for slots in self._ranks.values() for pair in slots.sealed()]
            pairs = [pair for pair in pairs if pair[1].step == step and pair[1].digests is not None]
            newest = max((sealed.generation for _, sealed in pairs), default=0)
            chosen = [pair for pair in pairs if pair[1].generation == newest]
            for slot, _ in chosen:
                slot.readers += 1
            return chosen

    def close(self) -> None:
        with self._lock:
            for slots in self._ranks.values():
                slots.close()
            self._ranks.clear()


def _is_complete(parts: dict[int, Part]) -> bool:
    return len(parts) >= next(iter(parts.values())).world_size
