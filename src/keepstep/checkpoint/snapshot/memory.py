"""The memory tier of one node: what its ranks sealed, what it keeps for peers, what was fetched. Owns what must be kept,
and the limit within which it is.

State is content-addressed: a rank's state at a step is a map of group -> digest (its *part*), and bytes are found by
digest wherever they are. Thread-safe; must not do I/O beyond allocating memory.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from keepstep.checkpoint.snapshot.arenas import Arenas, At, CopiedSteps
from keepstep.checkpoint.snapshot.budget import default_limit_bytes
from keepstep.checkpoint.snapshot.fetched import Fetched
from keepstep.checkpoint.snapshot.messages import Offer, Part, RamStock, Safe, Seal, Taken
from keepstep.checkpoint.snapshot.policy import SnapshotPolicy
from keepstep.checkpoint.snapshot.slots import MIN_SLOTS, RankSlots, Rules, Sealed, Slot, anonymous, whole_pages
from keepstep.checkpoint.state.blob import Chunks, matches

KEEP_STEPS = 8
"""Newest steps whose parts are remembered. Parts are small; more than the slots of any rank hold."""


class Located(Struct, frozen=True):
    """Bytes of one digest on this node: in a slot or an arena, or in a buffer."""

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


class Memory:
    """See the module. ``generation`` is the newest that has begun here; words of older ones change nothing."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        """``limit_bytes``: of everything here; None: a share of what is free now."""
        self._default_bytes = default_limit_bytes() if limit_bytes is None else limit_bytes
        self._limit_bytes = self._default_bytes
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._orders = itertools.count(1)
        self._ranks: dict[int, RankSlots] = {}
        self._parts: dict[At, dict[int, Part]] = {}
        self._inline: dict[str, bytes] = {}
        self._fetched: dict[str, Fetched] = {}
        self._held: set[At] = set()
        self._local: set[int] = set()
        self._wants: dict[int, int] = {}
        """Rank -> size of the slots that it asked for."""
        self._refusals: dict[int, str] = {}
        self._spill_directory = ""
        self._origins: dict[int, str] = {}
        """Rank of another node -> address of that node's server."""
        self._copied = CopiedSteps()
        self._copies = False
        """Whether this node makes copies of its steps in this generation."""
        self._arenas = Arenas(lambda: next(self._numbers), self._limit_bytes // 2)
        self.generation = 0

    def limit(self, policy: SnapshotPolicy) -> None:
        with self._lock:
            self._limit_bytes = policy.memory_bytes or self._default_bytes
            self._spill_directory = policy.spill_directory
            self._arenas.limit_bytes = policy.replica_bytes or self._limit_bytes // 2

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
        """A slot to write; None while there is none, see :meth:`refusal`."""
        with self._lock:
            self._local.add(rank)
            self._wants[rank] = size_bytes
            self._refusals.pop(rank, None)
            slots = self._ranks.setdefault(rank, RankSlots(lambda: next(self._numbers)))
            rules = Rules(
                self._is_needed, self._is_wanted, self._is_superseded, lambda size: self._has_room(rank, size),
                1 if self._copied.wanted() else 0,
            )  # fmt: skip
            try:
                slot = slots.grant(size_bytes, rules)
                if slot is not None:
                    slots.drop_spilled()
                elif len(slots.in_memory()) < MIN_SLOTS and not self._has_room(rank, size_bytes):
                    slot = self._without_room(rank, slots, size_bytes)
            except OSError as error:
                self._refusals[rank] = f"rank {rank} gets no slot of {size_bytes:,} bytes: {error.strerror or error}"
                return None
            return slot

    def _without_room(self, rank: int, slots: RankSlots, size_bytes: int) -> Slot | None:
        if self._spill_directory:
            return slots.spill(size_bytes, self._spill_directory)
        self._refusals[rank] = (
            f"rank {rank} needs {MIN_SLOTS} slots of {size_bytes:,} bytes, and the snapshot server of this node may hold"
            f" {self._limit_bytes:,} bytes: nothing is saved of it. Raise the memory limit, set a spill directory, put fewer"
            " ranks on a node, or shard the state"
        )
        return None

    def refusal(self, rank: int) -> str:
        """Why a rank will get no slot, as things are; empty if it only has to wait."""
        with self._lock:
            return self._refusals.get(rank, "")

    def _has_room(self, rank: int, size_bytes: int) -> bool:
        """Whether a rank may have a slot of this size. The least that each needs is before anyone's history; and a rank
        that cannot have as much as that gets nothing, since one slot alone cannot be written again."""
        lacks = MIN_SLOTS - len(self._ranks[rank].in_memory())
        need = max(lacks, 1) * whole_pages(size_bytes)
        if lacks <= 0:
            need += sum(
                max(0, MIN_SLOTS - len(slots.slots)) * whole_pages(self._wants.get(other, 0))
                for other, slots in self._ranks.items()
                if other != rank and other in self._local and len(slots.in_memory()) == len(slots.slots)
            )
        over = self.used_bytes() + need - self._limit_bytes
        if over > 0:
            self._arenas.shed(over, self._must_keep if lacks > 0 else None)
            for other, slots in self._ranks.items() if lacks > 0 else ():
                if other != rank:
                    slots.drop_spare(lambda sealed: self._is_needed(sealed) or self._is_wanted(sealed))
        return self.used_bytes() + need <= self._limit_bytes

    def used_bytes(self) -> int:
        """Of slots, copies and fetched blobs."""
        with self._lock:
            slots = sum(slot.size_bytes for ranks in self._ranks.values() for slot in ranks.in_memory())
            return slots + self._arenas.used_bytes() + sum(len(fetched.view) for fetched in self._fetched.values())

    def _is_needed(self, sealed: Sealed) -> bool:
        at = (sealed.generation, sealed.step)
        return at in self._held or at == self._newest_complete()

    def _is_wanted(self, sealed: Sealed) -> bool:
        """What peers have copies of is whole only with what is here."""
        return (sealed.generation, sealed.step) in self._copied.wanted()

    def _is_superseded(self, sealed: Sealed) -> bool:
        newest = self._newest_complete()
        return newest is not None and (sealed.generation, sealed.step) < newest

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

    def digested(self, sealed: Sealed, chunks: Mapping[str, Chunks]) -> None:
        """What was sealed is fit, and can be written."""
        with self._lock:
            sealed.digests, sealed.chunks = {name: cut.root for name, cut in chunks.items()}, dict(chunks)

    def enter(self, sealed: Sealed, chunks: Mapping[str, Chunks]) -> Part:
        """What was sealed is fit: from here on it is offered."""
        digests = {name: cut.root for name, cut in chunks.items()}
        part = Part(
            generation=sealed.generation, step=sealed.step, rank=sealed.rank, world_size=sealed.world_size,
            groups=digests, sizes_bytes={digests[place.name]: place.size_bytes for place in sealed.places},
        )  # fmt: skip
        with self._lock:
            self.digested(sealed, chunks)
            self._enter(part)
        return part

    def discard(self, slot: Slot, sealed: Sealed) -> None:
        """What was sealed is unfit: it is not offered, not even if it was, and its slot may be used again."""
        with self._lock:
            parts = self._parts.get((sealed.generation, sealed.step), {})
            if sealed.digests is not None and sealed.rank in parts and parts[sealed.rank].groups == sealed.digests:
                del parts[sealed.rank]
                if not parts:
                    del self._parts[sealed.generation, sealed.step]
            if slot.sealed is sealed:
                slot.sealed = None

    def unlooked(self, rank: int) -> list[tuple[Slot, Sealed]]:
        """Entered slots of a rank whose values nobody looked at, oldest first; each gets a reader."""
        with self._lock:
            pairs = [
                pair
                for pair in reversed(self._ranks[rank].sealed())
                if pair[1].digests is not None and not pair[1].looked
            ]
            for slot, _ in pairs:
                slot.readers += 1
            return pairs

    def acquire(self, slot: Slot) -> None:
        with self._lock:
            slot.readers += 1

    def release(self, slot: Slot) -> None:
        with self._lock:
            slot.readers -= 1

    # ---- parts

    def mirrored(self, part: Part, sender: str = "") -> bool:
        """A peer's part. False, changing nothing, for an older generation or bytes that do not match their digest."""
        if not all(matches(blob, digest) for digest, blob in part.inline.items()):
            return False
        with self._lock:
            if part.generation < self.generation or part.rank in self._local:
                return False
            self._inline.update(part.inline)
            self._origins[part.rank] = sender
            self._enter(part)
            return True

    def _enter(self, part: Part) -> None:
        bare = Part(
            generation=part.generation, step=part.step, rank=part.rank, world_size=part.world_size,
            groups=part.groups, sizes_bytes=part.sizes_bytes,
        )  # fmt: skip
        self._parts.setdefault((part.generation, part.step), {})[part.rank] = bare
        self._let_go()

    def _complete(self) -> list[At]:
        """Steps of which every rank's part is known, newest first."""
        return sorted((at for at, parts in self._parts.items() if _is_complete(parts)), reverse=True)

    def _newest_complete(self) -> At | None:
        return max((at for at, parts in self._parts.items() if _is_complete(parts)), default=None)

    def _let_go(self) -> None:
        """Free what cannot be asked for any more."""
        done = self._complete()
        if sum(generation == self.generation for generation, _ in done) >= 2:
            self._held.clear()
            if not self._copies:
                self._copied.needless((self.generation, -1))
                self._arenas.prune(self._copied.should_keep)
            for fetched in self._fetched.values():
                fetched.close()
            self._fetched.clear()
            for rank in set(self._ranks) - self._local:
                self._ranks[rank].drop_sealed(
                    lambda sealed: sealed.generation < self.generation and not self._is_wanted(sealed)
                )
                if not self._ranks[rank].slots:
                    del self._ranks[rank]
        keep = set(sorted(self._parts, reverse=True)[:KEEP_STEPS]) | self._held | set(done[:1])
        keep |= self._copied.known() | {at for copy in self._arenas.copies.values() for at in copy.steps}
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
                if slot.spilled:
                    continue
                for place in sealed.places if sealed.digests is not None else ():
                    digest = (sealed.digests or {})[place.name]
                    if digest not in sealed.damaged:
                        yield digest, Located(place.size_bytes, slot.view(place), slot.fd, place.offset, slot)
        for digest, copy in self._arenas.copies.items():
            view = memoryview(copy.arena.map)[: copy.size_bytes]
            yield digest, Located(copy.size_bytes, view, copy.arena.fd, slot=copy.arena)
        for digest, blob in self._inline.items():
            yield digest, Located(len(blob), memoryview(blob))
        for digest, fetched in self._fetched.items():
            yield digest, Located(len(fetched.view), fetched.view, fetched.fd)

    @contextlib.contextmanager
    def located(self, digest: str, recall: Callable[[], None] | None = None) -> Iterator[Located | None]:
        """The bytes of a digest, kept in place inside the block; None if they are not on this node.

        ``recall`` is called if their slot is needed for a snapshot: leave the block then. It must not wait.
        """
        with self._lock:
            found = next((where for name, where in self._everything() if name == digest), None)
            slot = found.slot if found is not None else None
            if slot is not None:
                slot.readers += 1
                slot.recalls += [recall] if recall is not None else []
        try:
            yield found
        finally:
            if slot is not None:
                with self._lock:
                    slot.readers -= 1
                    if recall is not None:
                        slot.recalls.remove(recall)

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
                if matches(found.data, digest):
                    return ""
                self._discard(digest, found)

    def _discard(self, digest: str, found: Located) -> None:
        with self._lock:
            if found.slot is not None and found.slot.sealed is not None:
                found.slot.sealed.damaged |= {digest}
            else:
                self._inline.pop(digest, None)
                self._fetched.pop(digest, None)
                self._arenas.discard(digest)

    # ---- copies

    def whole_steps(self) -> list[At]:
        """Steps of the current generation of which every rank's part is known, newest first."""
        with self._lock:
            return [at for at in self._complete() if at[0] == self.generation]

    def parts_at(self, at: At) -> tuple[dict[int, Part], dict[int, str], bool]:
        """Parts of a step; where ranks of other nodes are; whether a rank of this node sealed it for the disk."""
        with self._lock:
            sealed = [entry for slots in self._ranks.values() for _, entry in slots.sealed()]
            durable = any(entry.durable for entry in sealed if (entry.generation, entry.step) == at)
            parts = self._parts.get(at, {})
            return (
                dict(parts),
                {rank: self._origins.get(rank, "") for rank in parts if rank not in self._local},
                durable,
            )

    def offered(self, offer: Offer) -> Slot | Taken:
        """A peer wants a copy of a blob to be kept: memory to page in and fill, or the answer. Pair the former with
        :meth:`filled`."""
        at = (offer.generation, offer.step)
        with self._lock:
            if offer.generation < self.generation:
                return Taken(verdict="refused", reason=f"generation {offer.generation} is over")
            if (copy := self._arenas.copies.get(offer.digest)) is not None:
                copy.steps.add(at)
                return Taken(verdict="held")
            if any(offer.digest in (sealed.digests or {}).values() for sealed in self._sealed_of(at)):
                return Taken(verdict="held")
            try:
                arena = self._arenas.take(offer.size_bytes, self._must_keep, lambda size: self._fits(size))
            except OSError as error:
                return Taken(verdict="refused", reason=error.strerror or str(error))
            if arena is None:
                return Taken(verdict="refused", reason=f"no room for {offer.size_bytes} bytes within the memory limits")
            return arena

    def _sealed_of(self, at: At) -> list[Sealed]:
        sealed = [entry for slots in self._ranks.values() for _, entry in slots.sealed()]
        return [entry for entry in sealed if (entry.generation, entry.step) == at]

    def _fits(self, size_bytes: int) -> bool:
        return self.used_bytes() + size_bytes <= self._limit_bytes

    def filled(self, offer: Offer, arena: Slot, *, whole: bool) -> None:
        """The memory of :meth:`offered` is filled and verified, or not."""
        with self._lock:
            if whole:
                self._arenas.keep(offer.digest, arena, offer.size_bytes, (offer.generation, offer.step))
            else:
                self._arenas.give_back(arena)

    def begin_copies(self, *, made: bool) -> None:
        """Whether this node makes copies from here on. If not, older ones go once the generation has steps of its own."""
        with self._lock:
            self._copies = made

    def copying(self, at: At, world_size: int) -> None:
        """Copies of a step are about to be made: its slots should stay."""
        with self._lock:
            self._copied.begin(at, world_size)

    def safe(self, word: Safe) -> None:
        """Copies of these ranks' groups are where they shall be."""
        with self._lock:
            if word.generation >= self.generation:
                self._copied.done(word)
                self._arenas.prune(lambda at: at in self._held or self._copied.should_keep(at))

    def _must_keep(self, at: At) -> bool:
        return at in self._held or self._copied.must_keep(at)

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
            self._arenas.close()


def _is_complete(parts: dict[int, Part]) -> bool:
    return len(parts) >= next(iter(parts.values())).world_size
