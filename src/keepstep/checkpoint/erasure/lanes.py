"""One thread for one operation's calls to one location, in order. Owns that no caller ever waits for a location that hangs.

A call that hangs cannot be taken back. The operation goes on without it; the thread ends when the call does, and until then the
location counts it. Buffers given to such a call belong to it: they are not used again.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from keepstep.checkpoint.erasure.locations import Location

_T = TypeVar("_T")


class Lane:
    """Made for one operation. Submit and close from one thread."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._unfinished = 0
        self._left = 0  # calls counted as abandoned at the location

    def submit(self, act: Callable[[], _T]) -> "Future[_T]":
        """Call ``act`` after those before it. Fails at once with TimeoutError where the location is known to hang."""
        future: Future[_T] = Future()
        if self._thread is None:
            try:
                self.location.admit()
            except TimeoutError as error:
                future.set_exception(error)
                return future
            self._thread = threading.Thread(target=self._run, name=f"lane-{self.location.name}", daemon=True)
            self._thread.start()
        with self._lock:
            self._unfinished += 1
        self._calls.put((future, act))
        return future

    def close(self) -> None:
        """No more calls. Those submitted are still made; nobody waits for them. Idempotent."""
        with self._lock:
            if self._unfinished and not self._left:
                self._left = 1
                self.location.abandon(1)
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, act = call
            if future.set_running_or_notify_cancel():
                try:
                    result = act()
                except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del future, act, call
            with self._lock:
                self._unfinished -= 1
                if self._left and not self._unfinished:
                    self._left = 0
                    self.location.abandon(-1)


class Lanes:
    """The lanes of one operation, made as they are needed. Leaving the ``with`` block closes them."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}

    def to(self, location: Location) -> Lane:
        if location.name not in self._lanes:
            self._lanes[location.name] = Lane(location)
        return self._lanes[location.name]

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self._lanes.values():
            lane.close()
