"""Runs a server as long as somebody uses it. Arguments: folder, command…

Users hold a shared lock on ``users.lock`` in the folder; locks go with their processes, however these end. Once nobody
holds one, the server is killed and its data are removed. One that ends by itself, for want of a free port, ends this too.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

LOOK_S = 0.5


def _has(users: IO[bytes]) -> bool:
    """Whether nobody else holds the lock any more."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main(folder: Path, command: list[str]) -> None:
    die_with_parent = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        die_with_parent(1, signal.SIGKILL)

    (folder / "data").mkdir()
    with open(folder / "log", "wb") as log, open(folder / "users.lock", "rb") as users:
        server = subprocess.Popen(
            command, cwd=folder / "data", stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=before_exec
        )
        while not _has(users) and server.poll() is None:
            time.sleep(LOOK_S)
        (folder / "ready").unlink(missing_ok=True)
        server.kill()
        server.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


if __name__ == "__main__":
    # Not for the terminal's Ctrl-C: the users' locks say when it is over.
    os.setsid()
    main(Path(sys.argv[1]), sys.argv[2:])
