"""Facts that the server has not acknowledged yet. Owns their numbers, their order and the bound on their memory.

It lives in memory: it outlives every connection and every server, but not its own process.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from keepstep.core.facts import Fact, SignalSeen
from keepstep.wire.messages import Report

FACTS_MAX = 4096
"""A signal holds a few kilobytes, the end of a rank at most 18 KiB of text: below 20 MiB in an agent, 80 MiB in a launcher."""

Worth = Callable[[Fact], int]
"""Where there is no room, facts of the least worth go first, the oldest of them first."""


@dataclass(frozen=True)
class _Kept:
    report: Report
    worth: int
    added_s: float


class Spool:
    """Numbered from 1 per session; a number is never used twice, and gaps (dropped facts) are allowed."""

    def __init__(self, worth: Worth, facts_max: int = FACTS_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._worth = worth
        self._facts_max = facts_max
        self._clock = clock
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._last = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, fact: Fact) -> Report:
        """Numbers a fact and keeps it until it is acknowledged."""
        if len(self._kept) >= self._facts_max:
            self.dropped += 1
            del self._kept[min(self._kept, key=lambda number: self._kept[number].worth)]
        self._last += 1
        report = Report(number=self._last, fact=fact)
        self._kept[report.number] = _Kept(report, self._worth(fact), self._clock())
        return report

    def acknowledged(self, number: int) -> None:
        """Everything up to ``number`` is in the journal."""
        while self._kept and next(iter(self._kept)) <= number:
            self._kept.popitem(last=False)

    def forget(self, kind: type[Fact], *, but_oldest: bool = False) -> None:
        """Drops waiting facts of a kind that the next one replaces. ``but_oldest``: what was reported after the first of
        them may count on it."""
        numbers = [number for number, kept in self._kept.items() if isinstance(kept.report.fact, kind)]
        for number in numbers[1:] if but_oldest else numbers:
            del self._kept[number]

    def holds(self, kind: type[Fact]) -> bool:
        return any(isinstance(kept.report.fact, kind) for kept in self._kept.values())

    def waiting(self) -> list[Report]:
        """In order; signals say how long they have waited, by our own clock."""
        now_s = self._clock()
        return [_aged(kept, now_s) for kept in self._kept.values()]


def _aged(kept: _Kept, now_s: float) -> Report:
    fact = kept.report.fact
    if not isinstance(fact, SignalSeen):
        return kept.report
    age_s = max(0.0, now_s - kept.added_s)
    return Report(number=kept.report.number, fact=msgspec.structs.replace(fact, age_s=age_s))
