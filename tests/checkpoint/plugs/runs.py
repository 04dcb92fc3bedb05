"""What training programs said, and stores with faults."""

import errno
import importlib
import json
import os
from pathlib import Path
from typing import Any

from keepstep.checkpoint.stores.posix import PosixStore

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE_S = 500.0


def by_name(said: str) -> dict[str, Any]:
    """What each run of a program said, by the name of the run."""
    results = [json.loads(line) for line in said.splitlines() if line.startswith('{"run"')]
    return {result["run"]: result for result in results}


class Later:
    """A module that is imported on first use: a process that only collects tests does not wait for it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


class FullStore(PosixStore):
    """Has no room while ``full``."""

    full = False

    def create(self, key: str, data: Any) -> bool:
        self._check()
        return super().create(key, data)

    def writer(self, key: str, size_bytes: int) -> Any:
        self._check()
        return super().writer(key, size_bytes)

    def _check(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def damage(root: Path, step: int) -> None:
    """Flip a bit in the first chunk of each pack of the saves of a step."""
    found = list(root.glob(f"steps/{step:08d}-*/*.pack"))
    assert found, f"step {step} has no pack"
    for path in found:
        data = bytearray(path.read_bytes())
        data[4096] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
