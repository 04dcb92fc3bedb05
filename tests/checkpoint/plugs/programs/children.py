"""Runs of a training program, each in a child process, so that a heavy library is imported once; and a store that kills."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keepstep.checkpoint.stores.posix import PosixStore


class DyingStore(PosixStore):
    """``point``: ``record:2`` dies in place of the second commit record, ``receipt:2`` and ``manifest:2`` likewise; empty
    lives on. Log records that are no commits are not counted."""

    def __init__(self, root: Path, point: str) -> None:
        super().__init__(root)
        self._kind, _, left = point.partition(":")
        self._left = int(left or 0)

    def create(self, key: str, data: Any) -> bool:
        kinds = {
            "record": b'"kind":"commit"' in data,
            "receipt": "/receipts/" in key,
            "manifest": key.endswith("manifest"),
        }
        if kinds.get(self._kind):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().create(key, data)


def run_each(main: Callable[[Path, str, str], None], folder: Path, kinds: list[str], points: list[str]) -> None:
    """Of each kind a run without fault in ``kind``, and for each point one in ``kind-point`` that dies there, then the same
    again without fault. A child prints its result as JSON."""
    for kind in kinds:
        _run(main, folder / kind, "", kind)
        for point in points:
            name = folder / f"{kind}-{point}"
            assert _run(main, name, point, kind) == signal.SIGKILL, f"{name} was to die"
            assert _run(main, name, "", kind) == 0


def _run(main: Callable[[Path, str, str], None], folder: Path, point: str, kind: str) -> int:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            main(folder, point, kind)
            status = 0
        finally:
            if status:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) * -1
