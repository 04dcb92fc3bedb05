"""Counters over time: growth within a window, with saturation, wrapping, resets and gaps. Pure; reads no clock and no file."""

from collections import deque

from keepstep.evidence.network.counters import Limit, wrapped_increase

MAX_STEPS = 512


class Growth:
    """One counter's growth within a sliding window. The first look is a baseline: what was before says nothing.

    ``saturates_bits``: it stops at its maximum (then it is blind until somebody clears it). ``wraps_bits``: it begins anew.
    """

    def __init__(self, window_s: float, saturates_bits: int | None = None, wraps_bits: int | None = None) -> None:
        self.window_s = window_s
        self.saturates_bits, self.wraps_bits = saturates_bits, wraps_bits
        self.value: int | None = None
        self.at_s = 0.0
        self.resets = 0
        self._steps: deque[tuple[float, int]] = deque()
        self._sum = 0

    @property
    def blind(self) -> bool:
        return self.saturates_bits is not None and self.value == (1 << self.saturates_bits) - 1

    def feed(self, value: int, at_s: float) -> int:
        """Growth within the window that ends now."""
        before, self.value, self.at_s = self.value, value, at_s
        if before is not None:
            self._step(self._increase(before, value), at_s)
        self._forget(at_s)
        return self._sum

    def since_reset(self) -> None:
        """Forget what was counted: it has been told."""
        self._steps.clear()
        self._sum = 0

    def _increase(self, before: int, after: int) -> int:
        if after < before:
            self.resets += 1
        if self.wraps_bits is not None:
            return wrapped_increase(before, after, self.wraps_bits)
        # A saturating counter that fell was cleared: what it shows was counted since.
        return after - before if after >= before else after

    def _step(self, increase: int, at_s: float) -> None:
        if increase <= 0:
            return
        self._sum += increase
        if len(self._steps) >= MAX_STEPS:
            late, first = self._steps.popleft()[1], self._steps.popleft()
            self._steps.appendleft((first[0], late + first[1]))
        self._steps.append((at_s, increase))

    def _forget(self, at_s: float) -> None:
        while self._steps and self._steps[0][0] <= at_s - self.window_s:
            self._sum -= self._steps.popleft()[1]


class Watched:
    """A counter against its limit: tells when the limit is passed, then not again before as much has come anew."""

    def __init__(self, limit: Limit, saturates_bits: int | None = None, wraps_bits: int | None = None) -> None:
        self.limit = limit
        self.growth = Growth(limit.window_s, saturates_bits, wraps_bits)

    def feed(self, value: int, at_s: float) -> int:
        """How much it grew, if that is too much; else 0."""
        grown = self.growth.feed(value, at_s)
        if grown < self.limit.count:
            return 0
        self.growth.since_reset()
        return grown


class Standing:
    """Conditions that hold on: told when they have been seen ``looks`` times in a row, and once."""

    def __init__(self, looks: int = 1) -> None:
        self.looks = looks
        self._seen: dict[str, int] = {}

    def begins(self, condition: str, holds: bool) -> bool:
        """True at the look with which it is sure."""
        if not holds:
            self._seen.pop(condition, None)
            return False
        count = self._seen[condition] = min(self._seen.get(condition, 0) + 1, self.looks + 1)
        return count == self.looks
