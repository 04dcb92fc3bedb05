"""Leases: a restore in progress says which checkpoint it needs. Owns the objects below ``leases/``.

    leases/<job mark>-<number of the commit>-<unix second it ends>-<random>

All that a lease says is in its name. A holder that dies does not hold for ever: a lease ends by itself, and is renewed by a new
object. A lease is taken before the log is looked at, and leases are looked at after an ``expire`` record is written: so a
restore either finds its checkpoint expired, or retention finds its lease. Clocks matter only to how long a dead holder holds,
and a live one that was late: its reads then fail, because every byte is checked anyhow.
"""

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Callable

from keepstep.checkpoint.repository.history import Commit
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.save import job_mark
from keepstep.checkpoint.stores.port import Store

PREFIX = "leases/"
DURATION_S = 900.0
SKEW_S = 60.0
"""Clocks of two nodes may differ so much."""
_NAME = re.compile(r"leases/([0-9a-f]{8})-(\d{20})-(\d{1,12})-[0-9a-f]{16}")

Clock = Callable[[], float]


class Lease:
    """Keeps the files of one commit while it is being read. Use as a context manager, and :meth:`renew` in time."""

    def __init__(
        self, repository: Repository, key: str, clock: Clock = time.time, duration_s: float = DURATION_S
    ) -> None:
        """Raises StateInvalid if the commit does not exist or has expired, or OSError."""
        self._repository, self._commit, self._clock, self._duration_s = repository, key, clock, duration_s
        self._lock, self._renewed_s = threading.Lock(), clock()
        self._object = self._write()
        try:
            self.commit: Commit = repository.commit(key)
        except BaseException:
            self.release()
            raise

    def _write(self) -> str:
        until = int(self._clock() + self._duration_s) + 1
        name = f"{PREFIX}{job_mark(self._repository.job)}-{self._commit}-{until}-{secrets.token_hex(8)}"
        self._repository.store.create(name, b"")
        return name

    def renew(self) -> None:
        """Hold it for another whole duration. Raises OSError; the old lease then still stands."""
        before, self._object = self._object, self._write()
        self._repository.store.delete(before)

    def progress(self, _size_bytes: int) -> None:
        """The holder goes on: renew once a third of the time is over. Callable from any thread; raises nothing."""
        with self._lock:
            if self._clock() < self._renewed_s + self._duration_s / 3:
                return
            self._renewed_s = self._clock()
            with contextlib.suppress(OSError):
                self.renew()

    def release(self) -> None:
        """Idempotent. A lease that cannot be removed ends by itself."""
        try:
            self._repository.store.delete(self._object)
        except OSError:
            return

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def leased(store: Store, job: str, now_unix_s: float) -> set[int]:
    """Numbers of the commits of a job that somebody reads. Removes leases that have ended. Raises OSError."""
    held, mark = set(), job_mark(job)
    for entry in list(store.list(PREFIX)):
        match = _NAME.fullmatch(entry.key)
        if match is None or match[1] != mark:
            continue
        if int(match[3]) + SKEW_S < now_unix_s:
            store.delete(entry.key)
        else:
            held.add(int(match[2]))
    return held
