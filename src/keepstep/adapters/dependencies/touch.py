"""A child of its own: touches one mounted file system and says how full it is. It may hang; whoever started it may not.

Run as a file by a bare interpreter, so that it starts in milliseconds. Imports nothing of this project.
"""

import os
import signal
import sys

_LAST_RESORT_S = 900
"""If the agent is gone and nobody ends us."""


def touch(path: str, write: bool) -> str:
    """Share of free space and of free files. Raises OSError."""
    found = os.statvfs(path)
    with os.scandir(path) as entries:
        next(entries, None)
    if write:
        _write(path)
    space = found.f_bavail / found.f_blocks if found.f_blocks else 1.0
    files = found.f_favail / found.f_files if found.f_files else 1.0
    return f"{space:.4f} {files:.4f}"


def _write(path: str) -> None:
    name = os.path.join(path, f".keepstep-probe-{os.uname().nodename}-{os.getpid()}")
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, b"keepstep")
        os.fsync(descriptor)
        if os.pread(descriptor, 16, 0) != b"keepstep":
            raise OSError("what was written does not come back")
    finally:
        os.close(descriptor)
        os.unlink(name)


if __name__ == "__main__":
    signal.alarm(_LAST_RESORT_S)
    try:
        print(touch(sys.argv[1], sys.argv[2:] == ["write"]))
    except OSError as error:
        print(f"{sys.argv[1]}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
