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
GROWTH_OBJECTS = 1_000_000
"""A full look comes earlier where what is there for good has doubled, and grown by so many: garbage is bounded, whatever is
connected and left how often. That a fleet of ten thousand nodes joins is less."""


def is_due(since_s: float, objects: int, objects_then: int) -> bool:
    """Whether everything is to be looked at: ``since_s`` and ``objects_then`` are of the last full look."""
    return since_s >= WHOLE_S or objects > 2 * objects_then + GROWTH_OBJECTS


class Collecting:
    """Begin it once the books are read. Only for a process that is a server."""

    def __init__(self) -> None:
        self._whole_s = time.monotonic()
        self._objects = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        gc.collect()
        gc.freeze()
        self._objects = gc.get_freeze_count()
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
        is_whole = is_due(began_s - self._whole_s, gc.get_freeze_count(), self._objects)
        if is_whole:
            self._whole_s = began_s
            gc.unfreeze()
            found = gc.collect()
            log.info("looked at everything in memory in %.2f s: %d objects freed", time.monotonic() - began_s, found)
        else:
            gc.collect(1)
        gc.freeze()
        if is_whole:
            self._objects = gc.get_freeze_count()
        self._later()
