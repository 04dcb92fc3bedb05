"""Facts that the server has not acknowledged yet. Owns their numbers, their order and the bound on their memory."""

from collections import OrderedDict

from keepstep.core.facts import CheckpointCommitted, CheckpointFailed, Fact, GateFinished, NodeJoined, SignalSeen
from keepstep.wire.messages import Report

FACTS_MAX = 4096
"""A rank's end carries at most 18 KiB of text, so the spool stays below 80 MiB whatever happens."""
_CAN_BE_LEARNED_AGAIN = (NodeJoined, CheckpointCommitted, CheckpointFailed, SignalSeen, GateFinished)
"""Inventories and later reports repeat what these say. The end of a rank, and an answer, come once only."""


class Spool:
    """Numbered from 1 per session; a number is never used twice, and gaps (dropped facts) are allowed."""

    def __init__(self, facts_max: int = FACTS_MAX) -> None:
        self._facts_max = facts_max
        self._waiting: OrderedDict[int, Report] = OrderedDict()
        self._last = 0
        self.dropped = 0

    def add(self, fact: Fact) -> Report:
        """Numbers a fact and keeps it until it is acknowledged. Makes room, where there is none, among the oldest facts
        that can be learned again; only if there are none, the oldest fact of all goes."""
        if len(self._waiting) >= self._facts_max:
            self._make_room()
        self._last += 1
        report = Report(number=self._last, fact=fact)
        self._waiting[report.number] = report
        return report

    def acknowledged(self, number: int) -> None:
        """Everything up to ``number`` is in the journal."""
        while self._waiting and next(iter(self._waiting)) <= number:
            self._waiting.popitem(last=False)

    def forget(self, kind: type[Fact]) -> None:
        """Drops waiting facts of a kind that the next one replaces."""
        for number in [number for number, report in self._waiting.items() if isinstance(report.fact, kind)]:
            del self._waiting[number]

    def waiting(self) -> list[Report]:
        """In order."""
        return list(self._waiting.values())

    def _make_room(self) -> None:
        self.dropped += 1
        for number, report in self._waiting.items():
            if isinstance(report.fact, _CAN_BE_LEARNED_AGAIN):
                del self._waiting[number]
                return
        self._waiting.popitem(last=False)
