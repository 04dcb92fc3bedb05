"""The company of a signal: who else speaks of its part, its boot and its moment. What the rules of accelerators share. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain

from keepstep.core.catalog.row import Verdict
from keepstep.core.combine.nearness import boot_of
from keepstep.core.observation import kind_of
from keepstep.core.signal import Context, Signal, within

ECHO_S = 60.0
"""What one failure prints on its card, and on its neighbours, comes within this."""
LOST_S = 600.0
"""A card that is gone keeps failing whatever still asks it."""
DAY_S = 86_400.0
MEMORY = ("xid.48", "xid.64", "xid.95", "xid.140", "xid.171", "xid.172")

MAX_COMPARED = 256
"""Neighbours on all clocks together."""
MAX_NEAR = 64
"""Neighbours on one clock that one signal is compared with: a storm of thousands stays cheap, and says no more than these."""

Grade = Callable[[Signal, list[Signal]], Signal]


class Moments:
    """Signals by group, clock and time: who is near in time is found without looking at all."""

    def __init__(self, signals: Iterable[Signal], group: Callable[[Signal], Hashable]) -> None:
        self._group = group
        self._timed: dict[Hashable, dict[str, tuple[list[float], list[Signal]]]] = {}
        self._untimed: dict[Hashable, list[Signal]] = {}
        for signal in sorted(signals, key=when):
            at_s = signal.seen.at_s
            if at_s is None:
                self._untimed.setdefault(group(signal), []).append(signal)
                continue
            times, found = self._timed.setdefault(group(signal), {}).setdefault(signal.seen.clock, ([], []))
            times.append(at_s)
            found.append(signal)

    def around(self, signal: Signal, window_s: float) -> list[Signal]:
        """Those of its group that are within the window, as far as clocks can tell; itself too, where it is one of them."""
        group, seen = self._group(signal), signal.seen
        near = self._untimed.get(group, [])[:MAX_NEAR]
        clocks = self._timed.get(group, {})
        for clock in chain((seen.clock,), (other for other in clocks if other != seen.clock)):
            if len(near) >= MAX_COMPARED:
                break
            times, found = clocks.get(clock, ([], []))
            low, high = 0, len(times)
            if seen.at_s is not None and clock == seen.clock:
                low, high = bisect_left(times, seen.at_s - window_s), bisect_right(times, seen.at_s + window_s)
                if high - low > MAX_NEAR:
                    low = max(low, bisect_left(times, seen.at_s) - MAX_NEAR // 2)
            near = near + found[low : min(high, low + MAX_NEAR)]
        return near

    def count(self, signal: Signal, window_s: float) -> int:
        """How many ``around`` would give, were it not bounded."""
        group, seen = self._group(signal), signal.seen
        total = len(self._untimed.get(group, ()))
        for clock, (times, _) in self._timed.get(group, {}).items():
            if seen.at_s is not None and clock == seen.clock:
                total += bisect_right(times, seen.at_s + window_s) - bisect_left(times, seen.at_s - window_s)
            else:
                total += len(times)
        return total


def on_node(signal: Signal) -> Hashable:
    """One node between two boots."""
    return signal.seen.node, boot_of(signal)


def on_part(context: Context) -> Callable[[Signal], Hashable]:
    """One part between two boots, whatever it is called."""

    def group(signal: Signal) -> Hashable:
        seen = signal.seen
        return seen.node, context.parts.canonical(seen.node, seen.part), boot_of(signal)

    return group


def each(
    signals: Sequence[Signal], context: Context, keys: tuple[str, ...], grade: Grade, window_s: float
) -> list[Signal]:
    """Every signal of some keys graded in the company of its part's others within a window; what is harmless stays as it is."""
    if not any(is_one_of(signal, keys) for signal in signals):
        return list(signals)
    moments = Moments(signals, on_part(context))
    graded = []
    for signal in signals:
        if is_one_of(signal, keys) and signal.row.verdict is not Verdict.BENIGN:
            signal = grade(signal, [x for x in moments.around(signal, window_s) if x is not signal])
        graded.append(signal)
    return graded


def is_one_of(signal: Signal, keys: tuple[str, ...]) -> bool:
    return signal.key in keys


def beside(signal: Signal, other: Signal, window_s: float) -> bool:
    """Of one boot and close in time, as far as can be told."""
    return other is not signal and boot_of(signal) == boot_of(other) and within(signal, other, window_s)


def named(signal: Signal) -> str:
    return f"Xid {signal.key.split('.')[1]}" if signal.key.startswith(("xid.", "nvlink5.")) else signal.key


def fatal_card(signal: Signal) -> bool:
    return signal.row.verdict is Verdict.FAULTY and kind_of(signal.seen.part) == "gpu"


def when(signal: Signal) -> tuple[float, int]:
    return signal.seen.at_s if signal.seen.at_s is not None else 0.0, signal.seen.line


def replaced(signals: Sequence[Signal], graded: list[tuple[Signal, Signal]]) -> list[Signal]:
    new = {id(old): fresh for old, fresh in graded}
    return [new.get(id(signal), signal) for signal in signals]
