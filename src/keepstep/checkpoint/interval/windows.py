"""When the jobs that share a store write to it, so that their windows do not pile up. Owns the time line; no clock, no I/O.

Phases only last if the pattern repeats. So the time line is a circle of SLOTS slots, and each job's interval becomes the
circle's length divided by a divisor of SLOTS: at most an eighth longer or shorter than wanted (more only where a write time
asks for it), which adds less than 1 % to what its saves and its lost work cost. Jobs that are placed stay where they are when
others come and go; only where the longest interval of all leaves the circle's range is everybody placed anew.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

SLOTS = 5040
"""Has 60 divisors, so that there is one near any interval."""
_DIVISORS = tuple(n for n in range(1, SLOTS + 1) if SLOTS % n == 0)
_FEWEST, _MOST = 4, 16
"""Windows of the least frequent job on the circle. With fewer, its interval would be far from what it wants."""
_STEADY_SLOTS = 4
"""A job that saves more often than this is taken as a steady load: it has no phase worth choosing."""

Loads = npt.NDArray[np.int64]


class Job(Struct, frozen=True, kw_only=True):
    """A job as the store sees it."""

    id: str
    interval_s: float
    write_s: float
    """How long one save occupies the store; its interval never gets shorter than this."""
    load_bytes_s: int
    """While it does."""
    priority: int = 0
    """Greater is placed first."""


class Window(Struct, frozen=True, kw_only=True):
    """When a job writes: from ``phase_s`` on, every ``interval_s``, counted from time 0 of the caller's clock."""

    id: str
    interval_s: float
    phase_s: float
    write_s: float
    load_bytes_s: int
    priority: int


class Timeline(Struct, frozen=True, kw_only=True):
    """The windows of all jobs of a store."""

    cycle_s: float
    windows: tuple[Window, ...]
    """In order of their ids."""
    peak_before_bytes_s: int
    """Greatest load, had every new job begun at time 0."""
    peak_bytes_s: int
    mean_bytes_s: float


def arrange(jobs: Sequence[Job], previous: Timeline | None = None, *, moves: int = 0) -> Timeline:
    """Give every job a phase: greedily, in order of priority and size, each where it adds least to the peak.

    previous: jobs in it keep their phase as long as their interval fits the same slots. moves: how many of those may be placed
    anew, one after another, where that lowers the peak. The same input gives the same answer.
    """
    _check(jobs)
    if not jobs:
        return Timeline(cycle_s=0.0, windows=(), peak_before_bytes_s=0, peak_bytes_s=0, mean_bytes_s=0.0)
    cycle_s = _cycle_s(max(job.interval_s for job in jobs), previous)
    fitted = {job.id: _fit(job, cycle_s) for job in jobs}
    held = _held(fitted, cycle_s, previous)
    unplaced = {**fitted, **held}
    before = _load(list(unplaced.values()), cycle_s)
    placed, load = dict(held), _load(list(held.values()), cycle_s)
    for job in sorted(jobs, key=_order):
        if job.id not in placed:
            placed[job.id] = _place(fitted[job.id], load, cycle_s)
            load += _load([placed[job.id]], cycle_s)
    for _ in range(moves):
        if not _improve(placed, load, cycle_s):
            break
    return Timeline(
        cycle_s=cycle_s,
        windows=tuple(placed[name] for name in sorted(placed)),
        peak_before_bytes_s=int(before.max()),
        peak_bytes_s=int(load.max()),
        mean_bytes_s=float(load.mean()),
    )


def next_start_s(window: Window, now_s: float) -> float:
    """The first start of the window at or after ``now_s``."""
    turns = math.ceil((now_s - window.phase_s) / window.interval_s - 1e-9)
    return window.phase_s + turns * window.interval_s


def _check(jobs: Sequence[Job]) -> None:
    if len({job.id for job in jobs}) != len(jobs):
        raise ValueError("two jobs of a store have the same id")
    for job in jobs:
        if not 0 < job.write_s <= job.interval_s < math.inf or job.load_bytes_s < 0:
            raise ValueError(
                f"job {job.id} writes for {job.write_s:g} s every {job.interval_s:g} s: "
                "needs 0 < write time <= interval, and a load of 0 or more"
            )


def _order(job: Job) -> tuple[int, float, str]:
    return (-job.priority, -job.load_bytes_s * job.write_s, job.id)


def _cycle_s(longest_s: float, previous: Timeline | None) -> float:
    """A power of two of seconds; the previous one as long as it serves, since another one moves everybody."""
    if previous is not None and _FEWEST <= previous.cycle_s / longest_s <= _MOST:
        return previous.cycle_s
    return float(_FEWEST * 2.0 ** math.ceil(math.log2(longest_s)))


def _fit(job: Job, cycle_s: float) -> Window:
    """With the nearest interval that divides the circle; at phase 0."""
    allowed = [n for n in _DIVISORS if cycle_s / n >= job.write_s]
    times = min(allowed, key=lambda n: abs(math.log(cycle_s / n / job.interval_s)))
    return Window(
        id=job.id, interval_s=job.interval_s if _steady(job, cycle_s) else cycle_s / times, phase_s=0.0, write_s=job.write_s,
        load_bytes_s=job.load_bytes_s, priority=job.priority,
    )  # fmt: skip


def _held(fitted: dict[str, Window], cycle_s: float, previous: Timeline | None) -> dict[str, Window]:
    """Windows whose phase stays."""
    if previous is None or previous.cycle_s != cycle_s:
        return {}
    old = {window.id: window for window in previous.windows}
    return {
        name: Window(
            id=name, interval_s=window.interval_s, phase_s=old[name].phase_s, write_s=window.write_s,
            load_bytes_s=window.load_bytes_s, priority=window.priority,
        )
        for name, window in fitted.items()
        if name in old and old[name].interval_s == window.interval_s
    }  # fmt: skip


def _slots(window: Window, cycle_s: float) -> tuple[int, int]:
    """(slots from start to start, slots that it writes); the second rounded up."""
    slot_s = cycle_s / SLOTS
    period = round(window.interval_s / slot_s)
    return period, min(period, max(1, math.ceil(window.write_s / slot_s - 1e-9)))


def _steady(who: Job | Window, cycle_s: float) -> bool:
    return who.interval_s < _STEADY_SLOTS * cycle_s / SLOTS


def _load(windows: Sequence[Window], cycle_s: float) -> Loads:
    """Bytes per second in each slot."""
    total: Loads = np.zeros(SLOTS, dtype=np.int64)
    for window in windows:
        if _steady(window, cycle_s):
            total += window.load_bytes_s
            continue
        period, width = _slots(window, cycle_s)
        start = round(window.phase_s / cycle_s * SLOTS)
        one: Loads = np.zeros(period, dtype=np.int64)
        one[(start + np.arange(width)) % period] = window.load_bytes_s
        total += np.tile(one, SLOTS // period)
    return total


def _place(window: Window, load: Loads, cycle_s: float) -> Window:
    """At the phase with the least load under it: first its peak, then its sum, then the earliest."""
    if _steady(window, cycle_s):
        return window
    period, width = _slots(window, cycle_s)
    turns = load.reshape(SLOTS // period, period)
    worst, total = turns.max(axis=0), turns.sum(axis=0)
    peaks = np.lib.stride_tricks.sliding_window_view(np.concatenate([worst, worst]), width)[:period].max(axis=1)
    sums = np.cumsum(np.concatenate([[0], total, total]))
    under = sums[width : width + period] - sums[:period]
    phase = int(np.lexsort((np.arange(period), under, peaks))[0])
    return Window(
        id=window.id, interval_s=window.interval_s, phase_s=phase * cycle_s / SLOTS, write_s=window.write_s,
        load_bytes_s=window.load_bytes_s, priority=window.priority,
    )  # fmt: skip


def _improve(placed: dict[str, Window], load: Loads, cycle_s: float) -> bool:
    """Move the one window, of those at the peak, whose move lowers it; the least important first. False if there is none."""
    peak, at = int(load.max()), int(load.argmax())
    for window in sorted(placed.values(), key=lambda w: (w.priority, w.load_bytes_s * w.write_s, w.id)):
        own = _load([window], cycle_s)
        if not own[at] or _steady(window, cycle_s):
            continue
        moved = _place(window, load - own, cycle_s)
        changed = load - own + _load([moved], cycle_s)
        if int(changed.max()) < peak:
            placed[window.id] = moved
            load[:] = changed
            return True
    return False
