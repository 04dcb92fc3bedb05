"""Save again and again in forked children, each killed at the next system call boundary; check what is left.

Arguments: directory. Prints the number of boundaries, and in how many cases the old and the new step was there.
"""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from keepstep.checkpoint import LocalCheckpoints, flatten

BASE = 4
"""Steps saved before: more than stay, so that the save that is killed also expires one."""


def state(step: int) -> dict[str, Any]:
    values = np.random.default_rng(step).standard_normal(2000)
    return {"model": flatten({"w": values, "step": step}), "rank": flatten({"rng": list(range(step, step + 5))})}


def kill_at(boundary: int) -> None:
    """SIGKILL this process when its ``boundary``-th call into the operating system is about to happen."""
    seen = 0

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        if event == "c_call" and getattr(argument, "__module__", "") == "posix":
            seen += 1
            if seen == boundary:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


def check(directory: Path, boundary: int) -> int:
    """The step that a restart takes. Fails unless it is the old or the new one, bit-exactly, and nothing was skipped."""
    checkpoints = LocalCheckpoints(directory, job="job")
    newest = checkpoints.newest_valid()
    assert newest is not None, f"nothing is left after a kill at boundary {boundary}"
    assert not checkpoints.skipped, checkpoints.skipped
    assert newest.step in (BASE, BASE + 1), (newest, boundary)
    loaded = checkpoints.load(newest)
    assert loaded["model"]["w"].tobytes() == np.random.default_rng(newest.step).standard_normal(2000).tobytes()
    assert loaded["model"]["step"] == newest.step and loaded["rank"]["rng"][0] == newest.step
    return newest.step


def main(directory: Path) -> None:
    base, work = directory / "base", directory / "work"
    for step in range(1, BASE + 1):
        LocalCheckpoints(base, job="job", run="first").save(step, state(step))
    boundary, found = 1, {BASE: 0, BASE + 1: 0}
    while True:
        shutil.copytree(base, work)
        child = os.fork()
        if child == 0:
            checkpoints = LocalCheckpoints(work, job="job", run="killed")
            kill_at(boundary)
            checkpoints.save(BASE + 1, state(BASE + 1))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        found[check(work, boundary)] += 1
        if boundary % 5 == 0:
            # The next run saves in the same place, and clears away what the dead one left.
            assert LocalCheckpoints(work, job="job", run="next").save(BASE + 2, state(BASE + 2)) is not None
            committed = len(list((work / "steps").iterdir()))
            assert committed == 3, f"{committed} folders are left after a kill at boundary {boundary}"
        shutil.rmtree(work)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, status
            break
        boundary += 1
    print(boundary, found[BASE], found[BASE + 1])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
