"""A worker that is killed inside a snapshot, at one C call after another. Arguments: socket.

Says ``<step>`` after each death and waits for a line; ends with ``done`` when a snapshot outlived its boundary.
"""

import os
import signal
import sys
from typing import Any

import numpy as np

from keepstep.checkpoint import SnapshotClient, flatten


def groups(step: int) -> dict[str, Any]:
    return {"model": flatten({f"w{n}": np.full(500, step + n) for n in range(8)}), "rank": flatten({"step": step})}


def die_in_snapshot(path: str, step: int, boundary: int) -> None:
    """Seal ``step``; be killed at C call ``boundary`` of the snapshot after it (0: before that snapshot)."""
    client = SnapshotClient(path, job="job", generation=1, rank=0, world_size=1, patience_s=120.0)
    assert client.snapshot(step, groups(step))
    seen = 0

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        seen += event == "c_call"
        if seen == boundary:
            os.kill(os.getpid(), signal.SIGKILL)

    if boundary == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(watch)
    client.snapshot(step + 1, groups(step + 1))
    os._exit(0)


def main(path: str) -> None:
    step, boundary = 1, 0
    while True:
        child = os.fork()
        if child == 0:
            die_in_snapshot(path, step, boundary)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, status
            print("done", flush=True)
            return
        print(step, flush=True)
        sys.stdin.readline()
        step, boundary = step + 2, boundary + 3


main(sys.argv[1])
