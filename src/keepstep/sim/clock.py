"""Virtual time and the queue of what happens next. Owns the order of events; knows nothing of what they do.

Two events at one instant happen in the order in which they were scheduled, so a run depends on its seed alone.
"""

import heapq
from collections.abc import Callable
from random import Random


def stream(seed: int, name: str) -> Random:
    """A source of randomness of its own, so that a change in one part does not shift the draws of another."""
    return Random(f"{seed}:{name}")


class Timeline:
    """Virtual seconds since the start of the run, and what is to happen."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Raises ValueError for the past."""
        if delay_s < 0:
            raise ValueError(f"an event cannot happen {-delay_s} s ago")
        self._count += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._count, action))

    @property
    def events(self) -> int:
        """Scheduled so far."""
        return self._count

    def step(self, until_s: float) -> bool:
        """Let the next event happen; False, and time moves to ``until_s``, where none is due before."""
        if not self._heap or self._heap[0][0] > until_s:
            self.now_s = max(self.now_s, until_s)
            return False
        at_s, _, action = heapq.heappop(self._heap)
        self.now_s = at_s
        action()
        return True
