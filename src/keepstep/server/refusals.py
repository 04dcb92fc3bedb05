"""Refused requests on their way to the journal: every one is counted, equal ones within a minute are one fact.

Somebody who knocks without end must not fill the disk: so many different ones at once are told apart, and the rest is counted
together.
"""

from keepstep.core.facts import RequestRefused

WINDOW_S = 60.0
APART_MAX = 100
TEXT_MAX = 200
EVERYBODY_ELSE = ("(others)", "(various)", "too many different refusals within a minute to tell apart")


class Refusals:
    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str], list[float]] = {}
        """(who, what, why) -> [when its window began, how many since it was told]."""

    def note(self, who: str, what: str, why: str, now_s: float) -> RequestRefused | None:
        """The first of its kind is told at once; None where it is told later, with its like."""
        key = (who[:TEXT_MAX], what[:TEXT_MAX], why[:TEXT_MAX])
        if key not in self._open and len(self._open) >= APART_MAX:
            key = EVERYBODY_ELSE
        if key in self._open:
            self._open[key][1] += 1
            return None
        self._open[key] = [now_s, 0]
        return RequestRefused(who=key[0], what=key[1], why=key[2])

    @property
    def pending(self) -> bool:
        """Whether a window is open, in which something may gather (or has)."""
        return bool(self._open)

    def due(self, now_s: float) -> list[RequestRefused]:
        """What gathered in windows that are over."""
        told = []
        for key, (since_s, waiting) in list(self._open.items()):
            if now_s - since_s < WINDOW_S:
                continue
            if waiting:
                told.append(RequestRefused(who=key[0], what=key[1], why=key[2], count=int(waiting)))
                self._open[key] = [now_s, 0]
            else:
                del self._open[key]
        return told
