"""From notices to people: a bounded queue and a thread for each channel, with retries. Owns when to try again and to give up.

In memory only: what is queued when the server dies is lost, but a condition that still lasts is told again by its repetition.
At least once; a notice carries an id, by which a receiver drops the second copy.
"""

import logging
import queue
import random
import threading
from collections.abc import Callable, Sequence

from msgspec import Struct

from keepstep.telemetry import LEVELS, Alert, Channel, DeliveryFailed, Level

log = logging.getLogger("keepstep.alerts")

QUEUE_MAX = 500
Done = Callable[[str, str], None]
"""(channel, ``sent`` / ``failed`` / ``dropped``); called from threads of channels."""


class Patience(Struct, frozen=True, kw_only=True):
    """How long it is tried. Doubles from ``first_s`` to ``most_s``."""

    first_s: float = 1.0
    most_s: float = 60.0
    tries: int = 12


PATIENCE = Patience()


class Delivery:
    """One channel with its thread. ``put`` returns at once."""

    def __init__(self, channel: Channel, min_level: Level, done: Done, patience: Patience = PATIENCE) -> None:
        self._channel = channel
        self._min = LEVELS.index(min_level)
        self._done = done
        self._patience = patience
        self._queue: queue.Queue[Alert | None] = queue.Queue(QUEUE_MAX)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"alerts {channel.name}", daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Dropped where it is below the channel's level, or where the queue is full of what was not delivered."""
        if LEVELS.index(alert.level) < self._min:
            return
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            log.error("%s: the queue is full; dropped: %s", self._channel.name, alert.title)
            self._done(self._channel.name, "dropped")

    def stop(self, within_s: float) -> None:
        """What is queued is still tried, for so long; then the rest is given up."""
        try:
            self._queue.put(None, timeout=within_s)
        except queue.Full:
            pass  # the thread ends by the event
        self._thread.join(within_s)
        self._ends.set()

    def _run(self) -> None:
        while (alert := self._queue.get()) is not None:
            if self._ends.is_set():
                return
            self._done(self._channel.name, "sent" if self._deliver(alert) else "failed")

    def _deliver(self, alert: Alert) -> bool:
        pause_s = self._patience.first_s
        for attempt in range(1, self._patience.tries + 1):
            try:
                self._channel.send(alert)
                return True
            except DeliveryFailed as error:
                log.warning("%s: %s (try %d of %d)", self._channel.name, error, attempt, self._patience.tries)
                if not error.again or attempt == self._patience.tries:
                    break
            except Exception:
                # A bug in one channel must not silence it for every notice that comes after this one.
                log.exception("%s: cannot send %s", self._channel.name, alert.id)
                break
            if self._ends.wait(pause_s * random.uniform(0.8, 1.2)):
                break
            pause_s = min(self._patience.most_s, 2 * pause_s)
        log.error("%s: given up: %s", self._channel.name, alert.title)
        return False


def stop_all(deliveries: Sequence[Delivery], within_s: float) -> None:
    """Side by side: the slowest of them says how long it takes."""
    threads = [threading.Thread(target=one.stop, args=(within_s,)) for one in deliveries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
