"""A file system that is mounted and never answers, as of a dead file server. Needs root and /dev/fuse."""

import ctypes
import os
from pathlib import Path

_MNT_DETACH = 2


class HangingMount:
    """Raises OSError where nothing can be mounted."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
        if self._libc.mount(b"nobody", os.fsencode(path), b"fuse", 0, options) != 0:
            error = ctypes.get_errno()
            os.close(self._device)
            raise OSError(error, os.strerror(error))

    def close(self) -> None:
        self._libc.umount2(os.fsencode(self.path), _MNT_DETACH)
        os.close(self._device)
