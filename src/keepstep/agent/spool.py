"""Facts that the server has not acknowledged yet. Owns their numbers, their order and the bound on their memory."""

import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from keepstep.core.catalog import CATALOG, Verdict
from keepstep.core.facts import Answered, Fact, SignalSeen
from keepstep.wire.messages import Report

FACTS_MAX = 4096
"""A signal holds a few kilobytes at most, so the spool stays below 20 MiB whatever happens."""
_MILD = (Verdict.BENIGN, Verdict.WATCH)


class Spool:
    """Numbered from 1 per session; a number is never used twice, and gaps (dropped facts) are allowed."""

    def __init__(self, facts_max: int = FACTS_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._facts_max = facts_max
        self._clock = clock
        self._waiting: OrderedDict[int, Report] = OrderedDict()
        self._added_s: dict[int, float] = {}
        self._last = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, fact: Fact) -> Report:
        """Numbers a fact and keeps it until it is acknowledged. Where there is no room, mild signals go first, then other
        signals, the oldest first; answers and what the agent sees stay as long as that leaves room."""
        if len(self._waiting) >= self._facts_max:
            self._make_room()
        self._last += 1
        report = Report(number=self._last, fact=fact)
        self._waiting[report.number] = report
        self._added_s[report.number] = self._clock()
        return report

    def acknowledged(self, number: int) -> None:
        """Everything up to ``number`` is in the journal."""
        while self._waiting and next(iter(self._waiting)) <= number:
            self._drop(next(iter(self._waiting)))

    def forget_middle(self, kind: type[Fact]) -> None:
        """Drops waiting facts of a kind that the next one replaces, all but the oldest: what was reported after it may
        count on it."""
        for number in [number for number, report in self._waiting.items() if isinstance(report.fact, kind)][1:]:
            self._drop(number)

    def holds(self, kind: type[Fact]) -> bool:
        return any(isinstance(report.fact, kind) for report in self._waiting.values())

    def waiting(self) -> list[Report]:
        """In order; signals say how long they have waited."""
        return [self._aged(report) for report in self._waiting.values()]

    def _aged(self, report: Report) -> Report:
        if not isinstance(report.fact, SignalSeen):
            return report
        age_s = max(0.0, self._clock() - self._added_s[report.number])
        return Report(number=report.number, fact=msgspec.structs.replace(report.fact, age_s=age_s))

    def _drop(self, number: int) -> None:
        del self._waiting[number]
        del self._added_s[number]

    def _make_room(self) -> None:
        self.dropped += 1
        for worth in (_is_mild, _is_signal, _is_no_answer):
            number = next((number for number, report in self._waiting.items() if worth(report.fact)), None)
            if number is not None:
                self._drop(number)
                return
        self._drop(next(iter(self._waiting)))


def _is_mild(fact: Fact) -> bool:
    return isinstance(fact, SignalSeen) and CATALOG.row(fact.signal).verdict in _MILD


def _is_signal(fact: Fact) -> bool:
    return isinstance(fact, SignalSeen)


def _is_no_answer(fact: Fact) -> bool:
    return not isinstance(fact, Answered)
