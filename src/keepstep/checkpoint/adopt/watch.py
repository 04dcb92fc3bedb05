"""Finds checkpoints that other libraries finish below a directory. Looks only: it touches and deletes nothing.

A checkpoint is reported once its name is exactly one of a step, its content is complete, and none of its files has
changed for the settle time. One that is written again under the same name is reported again. A poll does a bounded
amount of work and goes on in the next one where it stopped.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from keepstep.checkpoint.adopt.inventory import Foreign, step_from_name
from keepstep.checkpoint.adopt.reading import list_files
from keepstep.checkpoint.adopt.recognise import recognise
from keepstep.checkpoint.errors import StateInvalid

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, length and time of change of each file."""


class Found(Struct, frozen=True, kw_only=True):
    """A checkpoint that is complete and has settled. It has not been validated."""

    foreign: Foreign
    size_bytes: int


class Watcher:
    """See the module. Not for use by two threads at once.

    ``settle_s``: how long nothing may have changed. ``names``: what a name must be, from end to end, where it need not be
    that of a step. ``depth``: how far below ``root`` a checkpoint may lie. ``entries_per_poll``: the bound.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, settle_s: float = 30.0, names: str | None = None, depth: int = 3,
        entries_per_poll: int = 1000, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._root = Path(root)
        self._settle_s = settle_s
        self._names = None if names is None else re.compile(names)
        self._depth = depth
        self._limit = entries_per_poll
        self._clock = clock
        self._pending: deque[tuple[Path, int]] = deque()
        self._seen: dict[str, tuple[Stamp, float]] = {}
        self._reported: dict[str, Stamp] = {}
        self._shelves: set[str] = set()

    def poll(self) -> list[Found]:
        """What has become ready since the last call, by step. Never raises for what is below the root."""
        if not self._pending:
            self._forget()
            self._pending.append((self._root, 0))
        found: list[Found] = []
        looked = 0
        while self._pending and looked < self._limit:
            path, depth = self._pending.popleft()
            looked += 1
            if depth and self._wanted(path.name) and str(path) not in self._shelves:
                looked += self._look(path, found)
            elif depth < self._depth:
                self._pending.extend((child, depth + 1) for child in _children(path))
        return sorted(found, key=lambda one: (one.foreign.step or 0, one.foreign.path))

    def _wanted(self, name: str) -> bool:
        return step_from_name(name) is not None if self._names is None else bool(self._names.fullmatch(name))

    def _look(self, path: Path, found: list[Found]) -> int:
        """Add ``path`` to ``found`` if it has become ready. Returns how many files were looked at."""
        now, key = self._clock(), str(path)
        try:
            stamp = _stamp(path)
        except (StateInvalid, OSError):
            self._seen.pop(key, None)
            return 1
        known = self._seen.get(key)
        if known is None or known[0] != stamp:
            self._seen[key] = known = (stamp, now)
        if now - known[1] < self._settle_s or self._reported.get(key) == stamp:
            return len(stamp)
        try:
            foreign = recognise(path)
        except StateInvalid:
            return len(stamp)
        # What is not complete now, stays so until a file changes: it is not parsed at every poll.
        self._reported[key] = stamp
        if foreign is None and path.is_dir():
            self._shelves.add(key)  # named like a step, and only a place where others may lie
        elif foreign is not None and foreign.complete and foreign.format != "keepstep":
            found.append(Found(foreign=foreign, size_bytes=sum(entry[2] for entry in stamp)))
        return len(stamp)

    def _forget(self) -> None:
        """Drop what is gone, so that a watcher of a long run does not grow."""
        for key in [key for key in self._seen if not os.path.lexists(key)]:
            self._seen.pop(key)
            self._reported.pop(key, None)
            self._shelves.discard(key)


def _children(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(path / entry.name for entry in entries if not entry.is_symlink())
    except OSError:
        return []


def _stamp(path: Path) -> Stamp:
    root = path if path.is_dir() else path.parent
    stamp = []
    for file in list_files(path)[0]:
        found = (root / file.path).lstat()
        stamp.append((file.path, found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(stamp)
