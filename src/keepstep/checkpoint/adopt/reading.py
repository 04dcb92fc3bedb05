"""Reads of files that nobody vouches for: bounded, exact, never through a symbolic link, never outside the root.

Every failure is a StateInvalid with words for a person. Owns no format.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from keepstep.checkpoint.adopt.inventory import File, printable
from keepstep.checkpoint.errors import StateInvalid

MAX_FILES = 200_000
MAX_JSON_BYTES = 256 * 1024 * 1024
_MAX_DEPTH = 16


class Reader:
    """One open file. Positional reads only, so that threads may share it."""

    def __init__(self, path: Path, fd: int, size_bytes: int) -> None:
        self.path, self.size_bytes = path, size_bytes
        self._fd = fd

    def read(self, offset: int, count: int) -> bytes:
        """Exactly ``count`` bytes. Nothing is allocated for bytes that the file does not have."""
        if offset < 0 or count < 0 or offset + count > self.size_bytes:
            raise StateInvalid(f"{self.path.name} has {self.size_bytes} bytes: {count} at {offset} are not there")
        data = os.pread(self._fd, count, offset)
        while len(data) < count:
            more = os.pread(self._fd, count - len(data), offset + len(data))
            if not more:
                raise StateInvalid(f"{self.path.name} became shorter while it was read")
            data += more
        return data

    def into(self, offset: int, view: memoryview) -> None:
        """Fill ``view``."""
        done = 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], offset + done)
            if not count:
                raise StateInvalid(f"{self.path.name} ended {len(view) - done} bytes early")
            done += count


@contextmanager
def opened(path: Path) -> Iterator[Reader]:
    """A regular file for reading. Symbolic links, pipes and devices are refused; OSError becomes StateInvalid."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise StateInvalid(f"{path.name} cannot be opened: {error.strerror or error}") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise StateInvalid(f"{path.name} is not a regular file")
        yield Reader(path, fd, found.st_size)
    except OSError as error:
        raise StateInvalid(f"{path.name} cannot be read: {error.strerror or error}") from error
    finally:
        os.close(fd)


def inside(root: Path, name: object) -> Path:
    """The path of a file that an untrusted index names. Raises StateInvalid if it would leave ``root``."""
    if type(name) is not str or not name or "\0" in name or "\\" in name or printable(name) != name:
        raise StateInvalid("an index names a file in a way that no file is named")
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise StateInvalid(f"an index names {name[:200]!r}, which is outside the checkpoint")
    return root.joinpath(*pure.parts)


def read_json(path: Path) -> Any:
    """A JSON document of limited size, or StateInvalid."""
    with opened(path) as reader:
        if reader.size_bytes > MAX_JSON_BYTES:
            raise StateInvalid(f"{path.name} has {reader.size_bytes} bytes: no index is that large")
        return parse_json(reader.read(0, reader.size_bytes), path.name)


def json_faults(root: Path, files: Iterable[File]) -> list[str]:
    """What is wrong with the JSON files directly in a directory (settings, tokenizers, indexes)."""
    faults = []
    for file in files:
        if file.path.endswith(".json") and "/" not in file.path:
            try:
                read_json(root / file.path)
            except StateInvalid as error:
                faults.append(str(error))
    return faults


def parse_json(data: bytes, name: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateInvalid(f"{name} is not valid JSON: {error}") from error


def list_files(path: Path) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """Every regular file of a checkpoint in order of name, and a line for each thing there that is none.

    ``path`` may be a single file. Links are reported, not followed.
    """
    if not path.is_dir():
        with opened(path) as reader:
            return (File(path=path.name, size_bytes=reader.size_bytes),), ()
    files: list[File] = []
    odd: list[str] = []
    pending = [("", 0)]
    while pending:
        prefix, depth = pending.pop()
        try:
            with os.scandir(path / prefix) as entries:
                for entry in entries:
                    name = f"{prefix}{entry.name}"
                    if printable(entry.name) != entry.name:
                        raise StateInvalid(f"{printable(name)!r} is not a UTF-8 name: rename it before it is adopted")
                    if entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH:
                        pending.append((f"{name}/", depth + 1))
                    elif entry.is_file(follow_symlinks=False):
                        files.append(File(path=name, size_bytes=entry.stat(follow_symlinks=False).st_size))
                    else:
                        kind = "a symbolic link" if entry.is_symlink() else "neither a file nor a shallow directory"
                        odd.append(f"{name} is {kind}: it is not part of what is adopted")
        except OSError as error:
            raise StateInvalid(f"{path.name}/{prefix} cannot be listed: {error.strerror or error}") from error
        if len(files) + len(odd) > MAX_FILES:
            raise StateInvalid(f"{path.name} has more than {MAX_FILES} files: point at one checkpoint, not at a tree")
    return tuple(sorted(files, key=lambda file: file.path)), tuple(sorted(odd))
