"""The server's clock. Owns the meaning of ``at_s`` in the journal; must not be read by the core.

Journal times are compared over restarts and reboots, so they start from the wall clock; within one life of the server
they follow CLOCK_BOOTTIME, so that a correction of the wall clock moves no deadline and a suspended machine does not
stand still.
"""

import time


class ServerClock:
    """Seconds since the epoch that never run backwards, not even behind the journal's last entry."""

    def __init__(self, not_before_s: float = 0.0) -> None:
        self._wall_s = max(time.time(), not_before_s)
        self._boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    def advance_to(self, at_s: float) -> None:
        """From now on not behind ``at_s``: another server, whose clock is ahead, wrote that time into the journal."""
        self._wall_s += max(0.0, at_s - self.now_s())

    def now_s(self) -> float:
        return self._wall_s + (time.clock_gettime(time.CLOCK_BOOTTIME) - self._boot_s)
