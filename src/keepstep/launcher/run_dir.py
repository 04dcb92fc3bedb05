"""The directory of one life of a launcher: sockets, nothing else. Owns its making and its removal, also of what a killed
launcher left.

It is locked as long as its launcher lives (flock, which the kernel gives back); one that is not locked is a leftover.
"""

import fcntl
import os
import shutil

_SHORT_ENOUGH_BYTES = 100
"""A unix socket's address holds 107."""


class RunDirectory:
    """Held from its making until ``remove``."""

    def __init__(self, path: str) -> None:
        self.path = path
        parent = os.path.dirname(path)
        os.makedirs(parent, mode=0o700, exist_ok=True)
        with _Locked(parent):
            _remove_leftovers(parent)
            os.mkdir(path, 0o700)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._fd, fcntl.LOCK_EX)

    def socket_path(self, name: str) -> str:
        """A path of a socket here that fits into a socket's address, however deep the directory lies.

        A long one goes by our own descriptor table, which every process of this user can follow while we live.
        """
        plain = os.path.join(self.path, name)
        return plain if len(plain.encode()) <= _SHORT_ENOUGH_BYTES else f"/proc/{os.getpid()}/fd/{self._fd}/{name}"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


class _Locked:
    """Makers and cleaners of run directories take turns: one that is not locked yet must not look like a leftover."""

    def __init__(self, directory: str) -> None:
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _remove_leftovers(parent: str) -> None:
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            # Gone meanwhile, or no directory of ours.
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)
