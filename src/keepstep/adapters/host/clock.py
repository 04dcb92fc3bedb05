"""The wall clock: its steps against a clock that nobody sets, and what the kernel knows of its error.

Owns the comparison; must not correct anything.
"""

import ctypes
import time
from collections.abc import Callable
from typing import NamedTuple

STEP_S = 0.05
"""A clock that is slewed moves by at most 0.5 ms in a second; more at once is a step."""
SLEW_PER_S = 0.0006
_TRIES = 3


def offset_s() -> float:
    """Wall clock less the clock since boot, which goes on in a suspend. The best of three: we may be interrupted in between."""
    best = (float("inf"), 0.0)
    for _ in range(_TRIES):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        wall = time.clock_gettime(time.CLOCK_REALTIME)
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        best = min(best, (after - before, wall - (before + after) / 2))
    return best[1]


class Discipline(NamedTuple):
    """What whoever disciplines the clock has told the kernel."""

    synchronised: bool
    offset_s: float
    """Still to be slewed away."""


class _Timex(ctypes.Structure):
    """The beginning of ``struct timex``; the rest is padding that the kernel may fill."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_byte * 256),
    )  # fmt: skip


_UNSYNCHRONISED, _NANOSECONDS = 0x0040, 0x2000


def discipline() -> Discipline | None:
    """None where the kernel does not say."""
    timex = _Timex()
    if ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0:
        return None
    unit_s = 1e-9 if timex.status & _NANOSECONDS else 1e-6
    return Discipline(not timex.status & _UNSYNCHRONISED, timex.offset * unit_s)


class ClockSteps:
    """Ask it now and then."""

    def __init__(self, read_offset_s: Callable[[], float] = offset_s) -> None:
        self._read = read_offset_s
        self._last_s = read_offset_s()

    def step_s(self, elapsed_s: float) -> float | None:
        """By how much the wall clock was moved since the last call; None where it was not, or was only slewed."""
        now_s = self._read()
        moved_s, self._last_s = now_s - self._last_s, now_s
        return moved_s if abs(moved_s) > STEP_S + SLEW_PER_S * elapsed_s else None
