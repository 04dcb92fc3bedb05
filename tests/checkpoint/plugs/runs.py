"""Training programs run once per session, and stores with faults."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from keepstep.checkpoint.stores.posix import PosixStore

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE_S = 170.0


def results(program: str, folder: Path, *points: str) -> dict[str, Any]:
    """What each run of a program said, by the name of the run."""
    command = [sys.executable, str(PROGRAMS / program), str(folder), *points]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"run"')]
    return {result["run"]: result for result in said}


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
