"""Progress while evidence is read: on standard error, only where somebody watches and only where it takes a while."""

import sys
import time
from pathlib import Path
from types import TracebackType

QUIET_S = 0.5
EVERY_S = 0.2


class Progress:
    def __init__(self) -> None:
        self._began_s = self._said_s = time.monotonic()
        self._files = 0
        self._bytes = 0
        self._shown = False

    def at(self, path: Path, size_bytes: int) -> None:
        """A file is being read."""
        self._files, self._bytes = self._files + 1, self._bytes + size_bytes
        now_s = time.monotonic()
        if not sys.stderr.isatty() or now_s - self._began_s < QUIET_S or now_s - self._said_s < EVERY_S:
            return
        self._said_s, self._shown = now_s, True
        text = f"{self._files} files, {self._bytes / 1e6:.0f} MB: {path.name}"
        sys.stderr.write(f"\r\x1b[K{text[:100]}")
        sys.stderr.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
