"""Memory for what a restore brings to this node. Owns how it is filled fast, and that nobody writes to it afterwards."""

import contextlib
import fcntl
import mmap
import os
import threading

from keepstep.checkpoint.snapshot.reading import FROZEN

_PAGED_AT_ONCE = 64 * 1024 * 1024


class Fetched:
    """Anonymous memory for one blob that comes from a peer or a store: filled through ``view``, with its pages made ahead, or
    through ``fd`` and then frozen, which is faster. Nobody writes to it afterwards."""

    def __init__(self, size_bytes: int, *, by_fd: bool = False) -> None:
        size = max(size_bytes, 1)
        self.size_bytes = size_bytes
        self.view = memoryview(b"")
        self._paging: threading.Thread | None = None
        self.fd = os.memfd_create("keepstep-fetched", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            if by_fd:
                return
            self.view = memoryview(mmap.mmap(self.fd, size))[:size_bytes]
        except BaseException:
            os.close(self.fd)
            raise
        # Pages in bulk, ahead of what is read into them: a fault for each page would halve the speed of a disk.
        self._paging = threading.Thread(target=self._page_in, args=(size,), name="page in", daemon=True)
        self._paging.start()

    def _page_in(self, size_bytes: int) -> None:
        with contextlib.suppress(OSError):
            for begin in range(0, size_bytes, _PAGED_AT_ONCE):
                os.posix_fallocate(self.fd, begin, min(_PAGED_AT_ONCE, size_bytes - begin))

    def freeze(self) -> None:
        """From here on the kernel lets nobody write it: who gets the descriptor need not copy the bytes."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, FROZEN)
        memory = mmap.mmap(self.fd, max(self.size_bytes, 1), mmap.MAP_PRIVATE, mmap.PROT_READ)
        self.view = memoryview(memory)[: self.size_bytes]

    def close(self) -> None:
        if self._paging is not None:
            self._paging.join()
        os.close(self.fd)
