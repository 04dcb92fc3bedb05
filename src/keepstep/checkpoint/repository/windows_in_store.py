"""Jobs that save to one store keep out of each other's way, with nobody in charge. Owns the objects below ``windows/``.

    windows/<job mark>-<ms when its save begins>-<ms after due>-<interval in ms>-<write time in ms>-<bytes per s>-<priority>

When a save is due its job lists what all jobs said last, decides when to begin, and says so. Where somebody else writes just
then, all come by ``interval.windows`` to the same time line: who stays, and who begins later. A job only ever moves its own
save, later, by a quarter of its interval at most. All that a job says is in the name, so that one listing a save is all the
reading there is.

Must not make a save fail, nor delay one where nobody else saves.
"""

import contextlib
import re
import time
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from keepstep.checkpoint.interval.windows import SLOTS, Job, arrange
from keepstep.checkpoint.repository.save import job_mark
from keepstep.checkpoint.stores.port import Store

PREFIX = "windows/"
REACH = 0.25
"""A save is delayed by so much of its interval at most: what it holds gets older meanwhile."""
SOON = 0.5
"""A save that comes earlier than so much of its interval after the one before is out of turn: nobody expects it."""
STALE_INTERVALS = 3.0
CLEARED_S = 86400.0
"""What is stale for so long is removed by whoever sees it."""
_MOVES = 32
_DECIDED = 1000
_LEAST_S = 0.001
_NAME = re.compile(r"windows/([0-9a-f]{8})-(\d{1,15})-(\d{1,12})-(\d{1,12})-(\d{1,12})-(\d{1,15})-(\d{1,3})")


class Said(Struct, frozen=True, kw_only=True):
    """What a job says of its saves."""

    mark: str
    begins_s: float
    """Its last save, or the one that waits: unix seconds."""
    delay_s: float
    """So long after it was due."""
    interval_s: float
    write_s: float
    load_bytes_s: int
    priority: int = 0

    def key(self) -> str:
        times = (round(seconds * 1000) for seconds in (self.begins_s, self.delay_s, self.interval_s, self.write_s))
        return f"{PREFIX}{self.mark}-{'-'.join(map(str, times))}-{self.load_bytes_s}-{self.priority}"

    def is_stale(self, now_s: float, more_s: float = 0.0) -> bool:
        return self.begins_s + STALE_INTERVALS * self.interval_s + more_s < now_s

    def has_decided(self, now_s: float) -> bool:
        """Whether this is of its save that waits or goes on, and not of the one before."""
        return self.begins_s > now_s - SOON * self.interval_s

    def next_s(self, now_s: float) -> float:
        """Seconds until its next save begins; below 0 while one goes on."""
        ahead_s = (self.begins_s - now_s) % self.interval_s
        return ahead_s - self.interval_s if ahead_s > self.interval_s - self.write_s else ahead_s

    def writes_during(self, begin_s: float, end_s: float, now_s: float) -> bool:
        """Whether one of its saves goes on at some time between these two, which count from now."""
        since_s = (begin_s - self.next_s(now_s)) % self.interval_s
        return since_s < self.write_s - _LEAST_S or since_s + end_s - begin_s > self.interval_s + _LEAST_S


def parsed(key: str) -> Said | None:
    """None for a name that keepstep would not have given."""
    match = _NAME.fullmatch(key)
    if match is None:
        return None
    begins_s, delay_s, interval_s, write_s = (int(match[n]) / 1000 for n in (2, 3, 4, 5))
    if not 0 < write_s <= interval_s:
        return None
    return Said(
        mark=match[1], begins_s=begins_s, delay_s=delay_s, interval_s=interval_s, write_s=write_s,
        load_bytes_s=int(match[6]), priority=int(match[7]),
    )  # fmt: skip


class SaveWindows:
    """The windows of one job in one store, as one of its nodes sees them. Not for use by two threads at once.

    priority: 0 to 999; of jobs that are in each other's way, the greater one stays. clock: unix seconds.
    """

    def __init__(self, store: Store, job: str, priority: int = 0, clock: Callable[[], float] = time.time) -> None:
        if not 0 <= priority <= 999:
            raise ValueError(f"priority {priority}: it must be from 0 to 999")
        self._store, self._mark, self._priority, self._clock = store, job_mark(job), priority, clock
        self._step, self._due_s, self._interval_s, self._begins_s = -1, 0.0, 0.0, 0.0
        self._write_s, self._load_bytes_s = 0.0, 0

    def delay_s(self, step: int) -> float:
        """How long the save of a step, which is due now, should wait. Looks once a step. Raises nothing."""
        now_s = self._clock()
        if step == self._step:
            return max(0.0, self._begins_s - now_s)
        if self._due_s and self._write_s:
            self._interval_s = max(now_s - self._due_s, self._write_s)
        self._step, self._due_s, self._begins_s = step, now_s, now_s
        with contextlib.suppress(OSError):
            self._plan(now_s)
        return max(0.0, self._begins_s - now_s)

    def wrote(self, step: int, size_bytes: int) -> None:
        """The save of a step is whole, since just now. For every node of the job that learns of it."""
        if step == self._step:
            self._write_s = max(self._clock() - self._begins_s, _LEAST_S)
            self._load_bytes_s = int(size_bytes / self._write_s)

    def _plan(self, now_s: float) -> None:
        """Decide when this save begins, and say so. Raises OSError."""
        said, own_keys = self._read(now_s)
        own = said.get(self._mark)
        if own is not None and own.has_decided(now_s):
            # Another node has decided for the job, or nobody else knew of this save.
            self._begins_s = min(max(now_s, own.begins_s), now_s + REACH * own.interval_s)
            return
        self._begins_s = now_s + delay_of(self._mark, list(said.values()), now_s)
        if not self._interval_s:
            return
        plan = Said(
            mark=self._mark, begins_s=self._begins_s, delay_s=self._begins_s - now_s, interval_s=self._interval_s,
            write_s=self._write_s, load_bytes_s=self._load_bytes_s, priority=self._priority,
        )  # fmt: skip
        self._store.create(plan.key(), b"")
        for key in own_keys:
            self._store.delete(key)

    def _read(self, now_s: float) -> tuple[dict[str, Said], list[str]]:
        """What each job said last, by its mark, and all that this job said. Raises OSError."""
        newest: dict[str, Said] = {}
        own_keys = []
        for entry in list(self._store.list(PREFIX)):
            said = parsed(entry.key)
            if said is None:
                continue
            if said.mark == self._mark:
                own_keys.append(entry.key)
            elif said.is_stale(now_s, CLEARED_S):
                self._store.delete(entry.key)
            last = newest.get(said.mark)
            if not said.is_stale(now_s) and (last is None or last.begins_s < said.begins_s):
                newest[said.mark] = said
        return newest, own_keys


def delay_of(mark: str, said: Sequence[Said], now_s: float) -> float:
    """How long the save of a job that is due now should wait: pure, and the same for all who know the same.

    said: by each job last, also by this one. 0 where it has not said anything yet, or nobody else writes then.
    """
    own = next((one for one in said if one.mark == mark), None)
    if own is None:
        return 0.0
    others = [one for one in said if one.mark != mark]
    reach_s = REACH * own.interval_s
    near = [one for one in others if one.next_s(now_s) < reach_s + own.write_s]
    if not _load_bytes_s(own, near, 0.0, now_s) and _is_first(own, near, now_s):
        return 0.0
    placed = _placed([own, *near], now_s)
    place_s = max(0.0, placed[0].next_s(now_s))
    ends = sorted(end for one in placed[1:] if 0 < (end := one.next_s(now_s) + one.write_s) <= reach_s)
    wanted = [0.0, *ends]
    if place_s <= reach_s:
        wanted.insert(0, place_s)
    elif placed[0] is not own:
        # Its place is out of reach, as those of others may be: so folded, they are spread all over what is in reach.
        return place_s % reach_s
    return min(wanted, key=lambda at_s: _load_bytes_s(own, placed[1:], at_s, now_s))


def _is_first(own: Said, near: Sequence[Said], now_s: float) -> bool:
    """Of all who are due now: each of them sees that nobody writes now, and only one may begin for that."""

    def turn(one: Said) -> tuple[float, str]:
        return one.next_s(now_s), one.mark

    due = [one for one in near if one.delay_s and one.next_s(now_s) - one.delay_s < own.write_s]
    return all(turn(own) < turn(one) for one in due)


def _load_bytes_s(own: Said, others: Sequence[Said], at_s: float, now_s: float) -> int:
    """Of all who write at some time while this one does, if it begins so long after now."""
    return sum(one.load_bytes_s for one in others if one.writes_during(at_s, at_s + own.write_s, now_s))


def _placed(said: Sequence[Said], now_s: float) -> list[Said]:
    """The same, those of them changed whose next save begins at another time if all is to fit.

    Each writes once in the interval of the first, so all have that interval here; and time 0 is now, so that the earliest free
    place is the next one.
    """
    around_s = said[0].interval_s
    jobs = [
        Job(
            id=one.mark, interval_s=around_s, write_s=min(one.write_s, around_s), load_bytes_s=one.load_bytes_s,
            priority=one.priority + _DECIDED * one.has_decided(now_s),
        )
        for one in said
    ]  # fmt: skip
    line = arrange(jobs)
    slot_s, around_s = line.cycle_s / SLOTS, line.windows[0].interval_s
    held_s = {one.mark: round(one.next_s(now_s) % around_s / slot_s) * slot_s for one in said}
    line = replace(line, windows=tuple(replace(window, phase_s=held_s[window.id]) for window in line.windows))
    moved = arrange(jobs, line, moves=min(len(jobs), _MOVES))
    place_s = {window.id: window.phase_s for window in moved.windows}
    return [
        one if place_s[one.mark] == held_s[one.mark] else replace(one, begins_s=now_s + place_s[one.mark])
        for one in said
    ]
