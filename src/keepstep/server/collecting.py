"""When the garbage collector looks at what. A full look at the books of a large fleet takes tenths of a second, in which no
order leaves; nearly all that lives long in a server lives for good.

Owns the collector's settings of this process. Must not free anything by itself.
"""

import asyncio
import gc
import logging
import time

log = logging.getLogger("keepstep.server")

YOUNG_OBJECTS = 10_000
"""Made since the last look, before the young ones are looked at; one look at so many takes a few milliseconds."""
MIDDLE_LOOKS = 1
"""Looks at the young ones between two at those that survived one too. Few: while ten thousand nodes join, each look finds that
nearly everything stays, and what is not looked at soon would be a million objects at once."""
NEVER = 1_000_000
"""Looks before the collector would look at everything by itself."""
SETTLE_S = 30.0
"""Between two times at which what has survived is counted as there for good."""
WHOLE_S = 24 * 3600.0
"""Between two full looks: for cycles among what was counted as there for good."""


class Collecting:
    """Begin it once the books are read. Only for a process that is a server."""

    def __init__(self) -> None:
        self._whole_s = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_LOOKS, NEVER)
        self._later()

    def stop(self) -> None:
        """For whoever runs a server inside another program: the collector as it was."""
        if self._timer is not None:
            self._timer.cancel()
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._settle)

    def _settle(self) -> None:
        began_s = time.monotonic()
        if began_s - self._whole_s >= WHOLE_S:
            self._whole_s = began_s
            gc.unfreeze()
            found = gc.collect()
            log.info("looked at everything in memory in %.2f s: %d objects freed", time.monotonic() - began_s, found)
        else:
            gc.collect(1)
        gc.freeze()
        self._later()
