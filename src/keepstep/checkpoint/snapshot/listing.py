"""What a store holds, listed beside everything else: one that hangs holds up nobody for long. Owns the thread that lists."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.snapshot.messages import DiskStock

AGAIN_S = 1.0
"""A store that hangs must not hold up an inventory: the last list is used then."""
FIRST_S = 30.0
"""While there is no list yet, none can stand in for it: a job that hears of nothing begins from nothing."""
ASKED_S = 120.0

Disk = tuple[DiskStock, ...]


class Listing:
    """``make`` lists, newest first. Callable from any thread."""

    def __init__(self, make: Callable[[], Disk]) -> None:
        self._make = make
        self._lister = ThreadPoolExecutor(max_workers=1, thread_name_prefix="list")
        self._lock = threading.Lock()
        self._newest: Future[Disk] | None = None
        self._known: Disk | None = None

    def begin(self) -> "Future[Disk]":
        """A list that begins no earlier than this call."""
        with self._lock:
            # One that is under way may have passed by what was committed since.
            if self._newest is None or self._newest.running() or self._newest.done():
                self._newest = self._lister.submit(self._list)
            return self._newest

    def soon(self) -> Disk:
        """For those who cannot wait: what there is now, or was when it was last known."""
        return self._within(FIRST_S if self._known is None else AGAIN_S)

    def asked(self) -> Disk:
        """For those who want nothing else."""
        return self._within(ASKED_S)

    def close(self) -> None:
        self._lister.shutdown(wait=False, cancel_futures=True)

    def _within(self, most_s: float) -> Disk:
        try:
            return self.begin().result(most_s)
        except TimeoutError:
            # One that hangs from the start is waited for once.
            self._known = self._known or ()
        except (OSError, CheckpointError):
            return self._known or ()
        return self._known

    def _list(self) -> Disk:
        self._known = self._make()
        return self._known
