"""Durable file primitives. Owns how bytes get onto a disk for good; must not know what they mean.

Nothing is ever overwritten: a file appears under its name complete and synced (temporary name, fsync, link, directory
fsync), or not at all.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TEMPORARY_PREFIX = ".tmp-"
_WRITE_CHUNK_BYTES = 8 * 1024 * 1024


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Create a directory and its parents; the new names are durable."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
    sync_directory(directory.parent)


def create_file(path: Path, data: Any) -> bool:
    """Make ``path`` appear with all of ``data``, synced. Returns False, touching nothing, if the name is taken.

    Raises OSError (ENOSPC, EIO, EFBIG …) with nothing left behind. The caller syncs the directory.
    """
    if path.exists():
        return False
    with _temporary(path.parent) as (fd, temporary):
        _write_all(fd, data)
        os.fsync(fd)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    return True


def replace_file(path: Path, data: bytes) -> None:
    """Swap the whole content of a hint file. For nothing that a checkpoint depends on."""
    with _temporary(path.parent) as (fd, temporary):
        _write_all(fd, data)
        os.fsync(fd)
        os.rename(temporary, path)
    sync_directory(path.parent)


@contextlib.contextmanager
def _temporary(directory: Path) -> Iterator[tuple[int, str]]:
    name = str(directory / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        yield fd, name
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _write_all(fd: int, data: Any) -> None:
    view = memoryview(data).cast("B")
    if len(view) > _WRITE_CHUNK_BYTES:
        with contextlib.suppress(OSError):
            # Finds a full disk before the bulk is written, where the file system can tell. It need not be able to:
            # the write itself is what is checked.
            os.posix_fallocate(fd, 0, len(view))
    done = 0
    while done < len(view):
        done += os.write(fd, view[done : done + _WRITE_CHUNK_BYTES])


def read_exact(path: Path, size: int, *, cold: bool = False) -> "np.ndarray[Any, Any]":
    """All ``size`` bytes of a file. Raises OSError if absent, ValueError if the file has another size.

    ``cold``: ask the kernel to drop its cached pages first, so that what the disk holds is what is read.
    """
    with open(path, "rb", buffering=0) as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise ValueError(f"{path.name} has {found} bytes where {size} were written")
        if cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        data: np.ndarray[Any, Any] = np.empty(size, np.uint8)
        view, done = memoryview(data.data), 0
        while done < size:
            count = file.readinto(view[done : done + _WRITE_CHUNK_BYTES])
            if not count:
                raise ValueError(f"{path.name} ended after {done} of {size} bytes")
            done += count
    return data
