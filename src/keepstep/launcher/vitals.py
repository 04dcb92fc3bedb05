"""From progress cells and process states to beats. Owns the measuring of idle time; must not judge it.

Time counts only while this launcher ran itself: after a suspend, a job-control stop or a long pause of the whole machine
at most three intervals are held against a rank.
"""

from typing import NamedTuple

from keepstep.adapters.local import procfs
from keepstep.wire.messages import Beat, RankVitals
from keepstep.wire.progress import Progress, ProgressCell

INTERVAL_S = 0.1
_COUNTED_INTERVALS = 3


class Watched(NamedTuple):
    """A living rank as far as vitals go."""

    rank: int
    pid: int
    cell: ProgressCell


class _Counter:
    """Accumulated running time since something last moved in one rank."""

    def __init__(self, first: Progress) -> None:
        self._ticks = first.ticks
        self._phase_since_ns = first.phase_since_ns
        self.idle_s = 0.0
        self.phase_s = 0.0

    def advance(self, reading: Progress, running_s: float, now_ns: int) -> None:
        if reading.ticks != self._ticks:
            self._ticks = reading.ticks
            self.idle_s = min(running_s, max(0.0, (now_ns - reading.ticked_ns) / 1e9))
        else:
            self.idle_s += running_s
        if reading.phase_since_ns != self._phase_since_ns:
            self._phase_since_ns = reading.phase_since_ns
            self.phase_s = min(running_s, max(0.0, (now_ns - reading.phase_since_ns) / 1e9))
        else:
            self.phase_s += running_s


class Vitals:
    """Call ``beat`` every INTERVAL_S."""

    def __init__(self, now_ns: int) -> None:
        self._last_ns = now_ns
        self._counters: dict[tuple[int, int], _Counter] = {}

    def beat(self, generation: int, ranks: list[Watched], now_ns: int) -> Beat:
        """``now_ns`` is CLOCK_MONOTONIC."""
        running_s = min((now_ns - self._last_ns) / 1e9, _COUNTED_INTERVALS * INTERVAL_S)
        self._last_ns = now_ns
        known = {(generation, one.rank) for one in ranks}
        self._counters = {key: counter for key, counter in self._counters.items() if key in known}
        vitals = tuple(self._one(generation, one, running_s, now_ns) for one in ranks)
        return Beat(generation=generation, running_s=running_s, ranks=vitals)

    def stalled_s(self) -> float:
        """How long nothing at all has moved: the idle time of the rank that moved last; infinite without ranks."""
        return min((counter.idle_s for counter in self._counters.values()), default=float("inf"))

    def _one(self, generation: int, one: Watched, running_s: float, now_ns: int) -> RankVitals:
        reading = one.cell.read()
        counter = self._counters.get((generation, one.rank))
        if counter is None:
            counter = self._counters[generation, one.rank] = _Counter(reading)
        else:
            counter.advance(reading, running_s, now_ns)
        found = procfs.stat(one.pid)
        return RankVitals(
            rank=one.rank, phase=reading.phase, step=reading.step, idle_s=counter.idle_s, phase_s=counter.phase_s,
            step_time_s=reading.step_time_ns / 1e9, loss=reading.loss, state=found.state if found else "X",
            cpu_s=found.cpu_s if found else 0.0,
        )  # fmt: skip
