"""Watching how old the newest VERIFIED checkpoint of a job is. Owns what was seen of its saves, and when people are told.

What is late is measured against the job's own saves: how often they came, and how long it took until they were verified. Must
not judge by itself: that is ``interval.age``.
"""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable

from keepstep.checkpoint.interval.age import Age, Attempt, Level, Outcome, judge, target_age_s

MEASURED = 8
"""Of so many last saves it is taken what is usual."""
LEAST = 3
"""Of fewer it cannot be told what is usual."""
KEPT = 32
_WORDS: dict[Level, str] = {"ok": "in time again", "late": "late", "alarm": "far too late"}


class AgeWatch:
    """One durable tier of one job. Thread-safe. Times are taken from ``clock``, in seconds.

    target_s: the oldest that the newest verified checkpoint should get; 0: measured, and nothing is said before a few saves
    came.
    """

    def __init__(self, target_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._target_s, self._clock = target_s, clock
        self._lock = threading.Lock()
        self._attempts: dict[int, Attempt] = {}
        """Step -> its last save."""
        self._between_s: deque[float] = deque(maxlen=MEASURED)
        self._verified_after_s: deque[float] = deque(maxlen=MEASURED)
        self._last_s = 0.0
        self._started_s, self._step, self._level = clock(), -1, "ok"

    # ---- what is seen

    def resumed(self) -> None:
        """Training begins, or begins again: from what was there, so age counts from now on."""
        with self._lock:
            self._attempts.clear()
            self._started_s, self._step, self._last_s = self._clock(), -1, 0.0

    def moved(self, step: int) -> None:
        """The job was seen at a step."""
        with self._lock:
            self._step = max(self._step, step)

    def begun(self, step: int, taken_s: float) -> None:
        """A save of a step, taken then. Of its parts, the first counts."""
        with self._lock:
            self._step = max(self._step, step)
            known = self._attempts.get(step)
            if known is not None and known.outcome in ("running", "verified"):
                return
            if self._last_s and taken_s > self._last_s and known is None:
                self._between_s.append(taken_s - self._last_s)
            self._last_s = max(self._last_s, taken_s)
            self._attempts[step] = Attempt(step=step, taken_s=taken_s, outcome="running")
            for old in sorted(self._attempts)[:-KEPT]:
                if self._attempts[old].outcome != "verified":
                    del self._attempts[old]

    def verified(self, step: int) -> None:
        with self._lock:
            self._decide(step, "verified")
            taken_s = self._attempts[step].taken_s
            self._verified_after_s.append(self._clock() - taken_s)
            for old in [one for one in self._attempts if one < step]:
                del self._attempts[old]

    def committed(self, step: int) -> None:
        """It exists, and could not be read back just now."""
        with self._lock:
            self._decide(step, "committed")

    def failed(self, step: int, reason: str) -> None:
        """It is none, or is damaged."""
        with self._lock:
            self._decide(step, "failed", reason)

    def _decide(self, step: int, outcome: Outcome, reason: str = "") -> None:
        known = self._attempts.get(step)
        if known is None or known.outcome != "verified":
            taken_s = self._clock() if known is None else known.taken_s
            self._attempts[step] = Attempt(step=step, taken_s=taken_s, outcome=outcome, reason=reason)

    # ---- what is said

    def look(self) -> str | None:
        """Words for people, once where it has become late, too late, or is in time again. To be called every few seconds."""
        age = self.age()
        with self._lock:
            if age is None or age.level == self._level:
                return None
            self._level = age.level
            return f"the newest verified checkpoint is {_WORDS[age.level]}: {'; '.join(age.reasons)}"

    def age(self) -> Age | None:
        """The verdict now; None as long as nothing is known of how often the job saves."""
        with self._lock:
            target_s = self._target_s or self._measured_s()
            if not target_s:
                return None
            attempts = list(self._attempts.values())
            return judge(attempts, target_s, self._clock(), started_s=self._started_s, step=self._step)

    def _measured_s(self) -> float:
        if len(self._between_s) < LEAST:
            return 0.0
        after_s = statistics.median(self._verified_after_s) if self._verified_after_s else 0.0
        return target_age_s(statistics.median(self._between_s), after_s)
