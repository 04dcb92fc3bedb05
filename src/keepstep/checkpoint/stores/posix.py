"""A store in a directory of a POSIX file system. Owns how bytes get onto a disk for good; must not know what they mean.

An object appears under its name complete and synced (temporary name, fsync, link, directory fsync), or not at all. A name
that another process made is relied on only after its directory was synced here: whoever made it may have died before. Large
objects go past the page cache where the file system lets them: direct I/O keeps its speed on a busy machine, takes little
of a core, and does not push out what the training job has cached.
"""

import contextlib
import errno
import functools
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keepstep.checkpoint.stores.port import BLOCK_BYTES, Entry

TEMPORARY_PREFIX = ".tmp-"
_TEMPORARY = re.compile(r"\.tmp-([0-9a-f]{8})-(\d+)-[0-9a-f]{16}")
DIRECT_BYTES = 1024 * 1024
"""Reads of at least this much bypass the page cache where their alignment allows it."""
_MAX_READ_BYTES = 1 << 30
_KEY = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_key(key: str) -> str:
    """The key, if it may be one. Raises ValueError."""
    if len(key) > 1024 or not _KEY.fullmatch(key) or {".", ".."} & set(key.split("/")):
        raise ValueError(f"{key!r} is not a key: use 1 to 1024 of A-Z a-z 0-9 . _ - in parts between slashes")
    return key


class PosixStore:
    """``directory`` is made when the first object is created. ``link(2)`` there must fail for a name that exists."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory)
        self.name = str(directory)
        self._made: set[Path] = set()
        """Directories whose names are durable: seen to by this process."""

    def _path(self, key: str) -> Path:
        return self.path / check_key(key)

    def create(self, key: str, data: Any) -> bool:
        path = self._path(key)
        self._make_directory(path.parent)
        if path.exists():
            _sync_directory(path.parent)
            return False
        with _temporary(path.parent, os.O_WRONLY) as (fd, temporary):
            _write_all(fd, memoryview(data).cast("B"))
            os.fsync(fd)
            try:
                os.link(temporary, path)
            except FileExistsError:
                created = False
            else:
                created = True
        _sync_directory(path.parent)
        return created

    def _make_directory(self, directory: Path) -> None:
        """Create a directory and its parents; its name is durable, whoever made it."""
        if directory in self._made and directory.is_dir():
            return
        if directory != self.path:
            self._make_directory(directory.parent)
        else:
            # What is above the store is the user's; names that are missing there are made durable one by one.
            _make_parents(directory.parent)
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
        _sync_directory(directory.parent)
        self._made.add(directory)

    def writer(self, key: str, size_bytes: int) -> "PosixWriter":
        path = self._path(key)
        self._make_directory(path.parent)
        return PosixWriter(path, size_bytes)

    def read(self, key: str) -> bytes:
        return self._path(key).read_bytes()

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        fd = _open_for_reading(self._path(key), offset, view)
        done = 0
        try:
            while done < len(view):
                count = os.preadv(fd, [view[done : done + _MAX_READ_BYTES]], offset + done)
                if not count:
                    raise OSError(
                        errno.EIO, f"{key} ends after {offset + done} bytes where {offset + len(view)} were saved"
                    )
                done += count
        finally:
            os.close(fd)

    def size(self, key: str) -> int | None:
        try:
            return self._path(key).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, prefix: str) -> Iterator[Entry]:
        if prefix:
            check_key(prefix.removesuffix("/"))
        return iter(sorted(_walk(self.path / prefix, prefix.removesuffix("/"))))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
        for folder in list(path.parents)[: max(key.count("/") - 1, 0)]:
            # An empty folder has no meaning here. The names in it are gone whether or not its removal lasts.
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                break

    def hint(self, key: str, data: bytes) -> None:
        path = self._path(key)
        self._make_directory(path.parent)
        with _temporary(path.parent, os.O_WRONLY) as (fd, temporary):
            _write_all(fd, memoryview(data))
            os.fsync(fd)
            os.rename(temporary, path)
        _sync_directory(path.parent)

    def tidy(self, idle_s: float) -> None:
        before = time.time() - idle_s
        for folder, _, names in os.walk(self.path, topdown=False):
            here = Path(folder)
            died = False
            for name in names:
                if name.startswith(TEMPORARY_PREFIX) and (_writer_is_dead(name) or _is_older(here / name, before)):
                    (here / name).unlink(missing_ok=True)
                    died = True
            if here.parent != self.path and here != self.path and (died or _is_older(here, before)):
                with contextlib.suppress(OSError):
                    here.rmdir()


class PosixWriter:
    """See ``ObjectWriter``."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._temporary = path.parent / _temporary_name()
        self._at = 0
        self._fd = _open_direct(self._temporary)
        self.direct = bool(_flags(self._fd) & os.O_DIRECT)
        try:
            _reserve(self._fd, size_bytes)
        except BaseException:
            self.abort()
            raise

    def write(self, block: Any) -> None:
        view = memoryview(block).cast("B")
        if self.direct and (len(view) % BLOCK_BYTES or self._at % BLOCK_BYTES):
            self._buffered()
        done = 0
        while done < len(view):
            try:
                count = os.pwrite(self._fd, view[done:], self._at)
            except OSError as error:
                if error.errno != errno.EINVAL or not self.direct:
                    raise
                # The buffer's address, or what a short write left, does not suit direct I/O.
                self._buffered()
                continue
            done += count
            self._at += count

    def _buffered(self) -> None:
        import fcntl

        fcntl.fcntl(self._fd, fcntl.F_SETFL, _flags(self._fd) & ~os.O_DIRECT)
        self.direct = False

    def finish(self) -> None:
        os.ftruncate(self._fd, self._at)
        os.fsync(self._fd)
        os.link(self._temporary, self._path)
        self.abort()
        _sync_directory(self._path.parent)

    def abort(self) -> None:
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()

    def __enter__(self) -> "PosixWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_parents(directory: Path) -> None:
    if directory.is_dir():
        return
    _make_parents(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
    _sync_directory(directory.parent)


@functools.cache
def _pid_space() -> str:
    """Eight hex digits that stand for where pids mean what they mean here: this boot, this pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        return "0" * 8
    return hashlib.blake2b(f"{boot} {space}".encode(), digest_size=4).hexdigest()


def _temporary_name() -> str:
    return f"{TEMPORARY_PREFIX}{_pid_space()}-{os.getpid()}-{secrets.token_hex(8)}"


def _writer_is_dead(name: str) -> bool:
    """Whether a temporary file's writer surely lives no more."""
    match = _TEMPORARY.fullmatch(name)
    return match is not None and match[1] == _pid_space() != "0" * 8 and not Path(f"/proc/{match[2]}").exists()


@contextlib.contextmanager
def _temporary(directory: Path, flags: int) -> Iterator[tuple[int, Path]]:
    path = directory / _temporary_name()
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        yield fd, path
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _open_direct(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # A file system without direct I/O (tmpfs, some network ones). It may have made the file before it refused.
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return os.open(path, flags, 0o644)


def _open_for_reading(path: Path, offset: int, view: memoryview) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC
    if len(view) >= DIRECT_BYTES and not offset % BLOCK_BYTES and not len(view) % BLOCK_BYTES and _is_aligned(view):
        try:
            return os.open(path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return os.open(path, flags)


def _is_aligned(view: memoryview) -> bool:
    import numpy as np

    return not np.frombuffer(view, np.uint8).ctypes.data % BLOCK_BYTES


def _flags(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_GETFL)


def _reserve(fd: int, size_bytes: int) -> None:
    """Find a full disk before the bulk is written, where the file system can tell. The write itself is what is checked."""
    if size_bytes <= 0:
        return
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise


def _write_all(fd: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        done += os.write(fd, view[done:])


def _is_older(path: Path, unix_s: float) -> bool:
    try:
        return path.stat().st_mtime < unix_s
    except FileNotFoundError:
        return False


def _walk(directory: Path, prefix: str) -> Iterator[Entry]:
    try:
        entries = list(os.scandir(directory))
        # After the look: what was seen was there before.
        _sync_directory(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        key = f"{prefix}/{entry.name}" if prefix else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), key)
        elif not entry.name.startswith(TEMPORARY_PREFIX):
            with contextlib.suppress(FileNotFoundError):
                yield Entry(key, entry.stat().st_size)
