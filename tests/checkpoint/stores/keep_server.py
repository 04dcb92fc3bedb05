"""Runs a server as long as somebody uses it. Arguments: folder, command…

Users hold a shared lock on ``users.lock`` in the folder; locks go with their processes, however these end. Once nobody
holds one, the server is killed and its data are removed.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


def main(folder: Path, command: list[str]) -> None:
    die_with_parent = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        die_with_parent(1, signal.SIGKILL)

    (folder / "data").mkdir()
    with open(folder / "log", "wb") as log, open(folder / "users.lock", "rb") as users:
        server = subprocess.Popen(
            command, cwd=folder / "data", stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=before_exec
        )
        fcntl.flock(users, fcntl.LOCK_EX)
        (folder / "ready").unlink(missing_ok=True)
        server.kill()
        server.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


if __name__ == "__main__":
    # Not for the terminal's Ctrl-C: the users' locks say when it is over.
    os.setsid()
    main(Path(sys.argv[1]), sys.argv[2:])
