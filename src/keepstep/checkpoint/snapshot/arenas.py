"""Copies that this node keeps for its peers, and the steps that are safe by copies. Owns the copies' memory: it is paged in
once, used again, and within a limit.

Not thread-safe: memory.Memory holds the lock, and says what must stay. Must not do I/O beyond allocating.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from keepstep.checkpoint.snapshot.messages import Safe
from keepstep.checkpoint.snapshot.slots import Slot, whole_pages

At = tuple[int, int]
"""Generation and step. Two generations that ran the same step are never mixed."""
KEEP_SAFE = 2
"""Newest steps that are kept once copies of them are where they shall be."""
KEEP_COPYING = 4
"""Steps of which copies are on their way; one that was overtaken so often will not be finished."""


class Copy(Struct):
    """One blob, verified."""

    arena: Slot
    size_bytes: int
    steps: set[At]
    """Those that it is part of."""


class Arenas:
    """``limit_bytes`` may be changed at any time; what is over it goes when room is needed."""

    def __init__(self, numbers: Callable[[], int], limit_bytes: int) -> None:
        self._numbers, self.limit_bytes = numbers, limit_bytes
        self.copies: dict[str, Copy] = {}
        self._free: list[Slot] = []
        self._filling: set[Slot] = set()

    def used_bytes(self) -> int:
        return sum(arena.size_bytes for arena in self._every())

    def _every(self) -> Iterator[Slot]:
        yield from self._free
        yield from self._filling
        for copy in self.copies.values():
            yield copy.arena

    def take(self, size_bytes: int, keeps: Callable[[At], bool], room: Callable[[int], bool]) -> Slot | None:
        """Memory to fill, or None if there is none within the limits. ``keeps``: steps whose copies must stay.

        Raises OSError if the system has none. Pair it with :meth:`keep` or :meth:`give_back`.
        """
        size = whole_pages(max(size_bytes, 1))
        stays = [copy.arena for copy in self.copies.values() if any(keeps(at) for at in copy.steps)]
        if sum(arena.size_bytes for arena in (*stays, *self._filling)) + size > self.limit_bytes:
            return None
        arena = self._reusable(size_bytes)
        while arena is None:
            if self.used_bytes() + size <= self.limit_bytes and room(size):
                arena = Slot(self._numbers(), size, writable=True, paged_in=False)
            elif not self._close_free() and not self._let_oldest_go(keeps):
                return None
            else:
                arena = self._reusable(size_bytes)
        self._filling.add(arena)
        return arena

    def _reusable(self, size_bytes: int) -> Slot | None:
        fitting = [a for a in self._free if not a.readers and size_bytes <= a.size_bytes <= 2 * whole_pages(size_bytes)]
        if not fitting:
            return None
        best = min(fitting, key=lambda arena: arena.size_bytes)
        self._free.remove(best)
        return best

    def keep(self, digest: str, arena: Slot, size_bytes: int, at: At) -> None:
        """What was filled is whole."""
        self._filling.discard(arena)
        if digest in self.copies:
            self._free.append(arena)
            self.copies[digest].steps.add(at)
        else:
            self.copies[digest] = Copy(arena, size_bytes, {at})

    def give_back(self, arena: Slot) -> None:
        """It was not filled."""
        self._filling.discard(arena)
        self._free.append(arena)

    def prune(self, keeps: Callable[[At], bool]) -> None:
        """Let go of the steps that need not stay; their memory is used again."""
        for digest, copy in list(self.copies.items()):
            copy.steps = {at for at in copy.steps if keeps(at)}
            if not copy.steps:
                self.discard(digest)

    def discard(self, digest: str) -> None:
        copy = self.copies.pop(digest, None)
        if copy is not None:
            self._free.append(copy.arena)

    def shed(self, size_bytes: int, keeps: Callable[[At], bool] | None) -> None:
        """Give so many bytes back to the system: unused memory and, where ``keeps`` is given, copies that need not stay."""
        goal = self.used_bytes() - size_bytes
        while self.used_bytes() > goal:
            if not self._close_free() and (keeps is None or not self._let_oldest_go(keeps)):
                return

    def _close_free(self) -> bool:
        for arena in self._free:
            if not arena.readers:
                self._free.remove(arena)
                arena.close()
                return True
        return False

    def _let_oldest_go(self, keeps: Callable[[At], bool]) -> bool:
        """Drop the copies of the oldest step that need not stay."""
        steps = {at for copy in self.copies.values() for at in copy.steps if not keeps(at)}
        if not steps:
            return False
        oldest = min(steps)
        self.prune(lambda at: at != oldest)
        return True

    def close(self) -> None:
        for arena in self._every():
            arena.close()
        self.copies.clear()
        self._free.clear()
        self._filling.clear()


class _Step(Struct):
    world_size: int
    copied: bool = False
    """Whether copies of anything are made; if not, the step is nothing special."""
    done: set[int] = set()
    """Ranks whose groups are where they shall be."""

    def is_safe(self) -> bool:
        return self.copied and len(self.done) >= self.world_size


class CopiedSteps:
    """Which steps survive the loss of a failure domain, by the word of every rank's node."""

    def __init__(self) -> None:
        self._steps: dict[At, _Step] = {}
        self._needless: At = (0, -1)
        """The newest step that needed no copies: older ones that did are of no use any more."""

    def begin(self, at: At, world_size: int) -> None:
        """Copies are about to be made here."""
        self._steps.setdefault(at, _Step(world_size)).copied = True
        self._forget()

    def done(self, word: Safe) -> None:
        at = (word.generation, word.step)
        step = self._steps.setdefault(at, _Step(word.world_size))
        step.copied |= word.copied
        step.done.update(word.ranks)
        if len(step.done) >= step.world_size and not step.copied:
            # Every node has what the others have: the newest complete step is as safe as this one.
            self.needless(at)
        self._forget()

    def needless(self, at: At) -> None:
        """Nothing up to this step needs copies any more."""
        self._needless = max(self._needless, at)
        self._forget()

    def _forget(self) -> None:
        safe = self.safe()
        late = sorted(set(self._steps) - set(safe), reverse=True)[KEEP_COPYING:]
        oldest = safe[-1] if safe else (0, -1)
        self._steps = {
            at: step for at, step in self._steps.items() if at not in late and at >= oldest and at > self._needless
        }

    def safe(self) -> list[At]:
        """Newest first."""
        return sorted((at for at, step in self._steps.items() if step.is_safe()), reverse=True)[:KEEP_SAFE]

    def wanted(self) -> set[At]:
        """The newest step that is safe, and the newest that is about to be: they are whole only with every node's own slots."""
        return {*self.safe()[:1], *sorted(at for at, step in self._steps.items() if step.copied)[-1:]}

    def known(self) -> set[At]:
        return set(self._steps)

    def must_keep(self, at: At) -> bool:
        return at in self.safe()[:1]

    def should_keep(self, at: At) -> bool:
        safe = self.safe()
        return at > self._needless and (not safe or at in safe or at > safe[0])
