"""A read that goes to another place when the first one fails, or stands still. Owns the race; knows no places."""

import threading
import time
from collections.abc import Callable

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.snapshot.fetched import Fetched

PATIENCE_S = 15.0
"""A read that gets no byte for so long stands still."""
_LOOK_S = 0.5
Progress = Callable[[int], None]
Fill = Callable[[int, Progress], None]
"""Fills a file (its descriptor), telling bytes as they come. Raises StateInvalid or OSError where another place may do."""


class _Read:
    """One read, on a thread of its own: what hangs in a store cannot be ended, only left behind."""

    def __init__(self, size_bytes: int, fill: Fill, progress: Progress, changed: threading.Event) -> None:
        self.fetched = Fetched(size_bytes, by_fd=True)
        self.error: BaseException | None = None
        self.done = self._left = False
        self.moved_s = time.monotonic()
        self._fill, self._tell, self._changed, self._lock = fill, progress, changed, threading.Lock()
        threading.Thread(target=self._run, name="hedged read", daemon=True).start()

    def _run(self) -> None:
        try:
            self._fill(self.fetched.fd, self._progress)
            self.fetched.freeze()
        except BaseException as error:  # noqa: BLE001  (it is raised where somebody waits for it)
            self.error = error
        with self._lock:
            self.done = True
            if self._left:
                self.fetched.close()
        self._changed.set()

    def _progress(self, size_bytes: int) -> None:
        self.moved_s = time.monotonic()
        if not self._left:
            self._tell(size_bytes)

    def leave(self) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._left = True
            if self.done:
                self.fetched.close()


def first_to_fill(
    size_bytes: int, own: Fill, other: Fill | None, progress: Progress, patience_s: float = PATIENCE_S
) -> Fetched:
    """Memory that ``own`` has filled; or ``other``, once the former has failed or got no byte for ``patience_s``.

    Raises what ``own`` raised if neither could.
    """
    changed = threading.Event()
    reads = [_Read(size_bytes, own, progress, changed)]
    while True:
        changed.clear()
        filled = next((read for read in reads if read.done and read.error is None), None)
        over = all(read.done for read in reads) and (len(reads) == 2 or other is None or not _may_try(reads[0].error))
        if filled is not None or over:
            for read in reads:
                if read is not filled:
                    read.leave()
            if filled is not None:
                return filled.fetched
            assert reads[0].error is not None
            raise reads[0].error
        still = time.monotonic() > reads[0].moved_s + patience_s
        if other is not None and len(reads) == 1 and (reads[0].done or still):
            reads.append(_Read(size_bytes, other, progress, changed))
        changed.wait(min(_LOOK_S, patience_s))


def _may_try(error: BaseException | None) -> bool:
    """Whether another place may do better."""
    return isinstance(error, (StateInvalid, OSError))
