"""The limits of the machine: a memory copy, direct I/O, a TCP stream. Owns how they are taken."""

import ctypes
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

STREAM_BYTES = 8 * 1024 * 1024
"""Sent at a time: as a peer is sent a copy."""
DIRECT_BYTES = 16 * 1024 * 1024
"""Read and written at a time: more is no faster here."""
PAGE_BYTES = 4096


class Room:
    """Shared memory, all pages there: what a slot is made of. Use as a context manager."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        fd = os.memfd_create("bench")
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            self.map = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        finally:
            os.close(fd)
        self.bytes: Any = np.frombuffer(self.map, np.uint8)

    def like(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors of the same shapes in it, each on a page boundary."""
        whole, end, views = torch.frombuffer(self.map, dtype=torch.uint8), 0, []
        for tensor in tensors:
            views.append(whole[end : end + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
            end += -(-tensor.nbytes // PAGE_BYTES) * PAGE_BYTES
        return views


def room_for(tensors: Sequence[torch.Tensor]) -> Room:
    return Room(sum(-(-tensor.nbytes // PAGE_BYTES) * PAGE_BYTES for tensor in tensors))


def memmove(target: int, source: int, size_bytes: int) -> None:
    """The C library's copy of one run of bytes; the GIL is released meanwhile."""
    ctypes.memmove(target, source, size_bytes)


def direct_write(path: Path, data: memoryview) -> None:
    """A new file of ``data`` (rounded down to whole pages): reserved, written past the page cache, synced."""
    size = len(data) // PAGE_BYTES * PAGE_BYTES
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        for begin in range(0, size, DIRECT_BYTES):
            os.pwrite(fd, data[begin : min(begin + DIRECT_BYTES, size)], begin)
        os.fsync(fd)
    finally:
        os.close(fd)


def direct_read(path: Path, into: memoryview, offset: int = 0) -> None:
    """As much of a file as ``into`` takes, in whole pages, into memory that is there, past the page cache."""
    size = min(path.stat().st_size - offset, len(into)) // PAGE_BYTES * PAGE_BYTES
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for begin in range(0, size, DIRECT_BYTES):
            os.preadv(fd, [into[begin : min(begin + DIRECT_BYTES, size)]], offset + begin)
    finally:
        os.close(fd)


class Sink:
    """A process that receives streams of ``size_bytes`` into memory that is there, and says when it has one whole."""

    def __init__(self, size_bytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.checkpoint.limits", str(size_bytes)], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._socket = socket.create_connection(("127.0.0.1", int(self._process.stdout.readline())))

    def send(self, data: memoryview) -> None:
        for begin in range(0, len(data), STREAM_BYTES):
            self._socket.sendall(data[begin : begin + STREAM_BYTES])
        if not self._socket.recv(1):
            raise ConnectionResetError("the receiver of the raw stream has gone")

    def __enter__(self) -> "Sink":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _receive_streams(size_bytes: int) -> None:
    into = memoryview(mmap.mmap(-1, size_bytes, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        while True:
            done = 0
            while done < size_bytes:
                count = connection.recv_into(into[done:])
                if not count:
                    return
                done += count
            connection.sendall(b"x")


if __name__ == "__main__":
    _receive_streams(int(sys.argv[1]))
