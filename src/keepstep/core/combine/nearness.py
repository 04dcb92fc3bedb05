"""What is near what: the same host and boot, close in time or in one file. Owns no rule; must not judge.

Each comparison is bounded, so that a log with tens of thousands of different signals stays cheap.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from keepstep.core.observation import Observation
from keepstep.core.signal import Signal

MAX_COMPARED = 256
"""Signals of one host and boot that one signal is compared with."""

Place = tuple[str, str]


def boot_of(signal: Signal) -> str:
    return signal.seen.attributes.get("boot", "")


def place(signal: Signal) -> Place:
    """Host and boot."""
    return signal.seen.node, boot_of(signal)


def by_boot(signals: Iterable[Signal]) -> dict[Place, list[Signal]]:
    found: dict[Place, list[Signal]] = {}
    for signal in signals:
        found.setdefault(place(signal), []).append(signal)
    return found


def near(one: Signal, other: Signal, lines: int, seconds: float) -> bool:
    """Of one host and boot, and close in time; where times say nothing, close in one file."""
    a, b = one.seen, other.seen
    if a.node != b.node or boot_of(one) != boot_of(other):
        return False
    if a.at_s is not None and b.at_s is not None and a.clock == b.clock:
        return _start_s(a) - seconds <= end_s(b) and _start_s(b) - seconds <= end_s(a)
    return a.file == b.file and abs(a.line - b.line) <= lines


def follows(later: Signal, earlier: Signal) -> bool:
    """Whether one came after the other, as far as can be told."""
    a, b = earlier.seen, later.seen
    if a.at_s is not None and b.at_s is not None and a.clock == b.clock and end_s(b) != _start_s(a):
        return end_s(b) > _start_s(a)
    return a.file == b.file and b.line > a.line


def _start_s(seen: Observation) -> float:
    return seen.at_s or 0.0


def end_s(seen: Observation) -> float:
    """When the last of a burst was seen."""
    try:
        return float(seen.attributes["last_s"])
    except (KeyError, ValueError):
        return seen.at_s or 0.0


class Nearby:
    """Signals by their lines in a file."""

    def __init__(self, signals: Sequence[Signal]) -> None:
        self._signals = sorted(signals, key=_line)
        self._lines = [_line(signal) for signal in self._signals]

    def around(self, signal: Signal, lines: int) -> list[Signal]:
        """Those of the same file that are at most so many lines away, nearest line number first to last."""
        file, line = _line(signal)
        low, high = bisect_left(self._lines, (file, line - lines)), bisect_right(self._lines, (file, line + lines))
        return self._signals[low : min(high, low + MAX_COMPARED)]


def _line(signal: Signal) -> tuple[str, int]:
    return signal.seen.file, signal.seen.line
