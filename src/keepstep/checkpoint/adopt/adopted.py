"""A foreign checkpoint that keepstep vouches for from now on: its files with their digests, and what was found in it.

Owns the record and the hashing. Registers nothing and copies nothing: the record goes into the commit log as it is, and
:func:`compare` tells later whether the files are still those.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Literal

from msgspec import Struct

from keepstep.checkpoint.adopt.inventory import File, Format, Inventory, root_of
from keepstep.checkpoint.adopt.reading import inside, list_files, opened
from keepstep.checkpoint.adopt.recognise import inspect
from keepstep.checkpoint.adopt.validate import Progress, validate
from keepstep.checkpoint.errors import StateInvalid

_THREADS = 2
_BLOCK_BYTES = 4 * 1024 * 1024


class AdoptedFile(Struct, frozen=True, kw_only=True):
    path: str
    """Relative to the checkpoint; of a single file, its name."""
    size_bytes: int
    blake3: str
    """64 hex digits."""


class TensorSummary(Struct, frozen=True, kw_only=True):
    count: int
    size_bytes: int
    dtypes: dict[str, int]
    """Name -> how many tensors."""


class Adopted(Struct, frozen=True, kw_only=True):
    """Immutable and JSON-safe. Fit for use only while ``problems`` is empty."""

    format: Format
    path: str
    step: int | None
    world_size: int | None
    files: tuple[AdoptedFile, ...]
    tensors: TensorSummary
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    missing_parts: tuple[str, ...] = ()


class Change(Struct, frozen=True, kw_only=True):
    """One file that is not what was adopted."""

    path: str
    what: Literal["missing", "added", "length", "content"]


def adopt(path: str | os.PathLike[str], *, finite: bool = True, progress: Progress | None = None) -> Adopted:
    """Recognise, validate and hash a checkpoint.

    Raises StateInvalid if it is none, if its structure cannot be read, or if it changed meanwhile. Whatever else is wrong
    with it is in ``problems``. ``progress``: bytes done and bytes in all, of the validation and then of the hashing.
    """
    path = Path(path).resolve()
    before = _stamps(path)
    inventory = inspect(path)
    findings = validate(inventory, finite=finite, progress=progress)
    files = hash_files(root_of(path), inventory.files, progress)
    if _stamps(path) != before:
        raise StateInvalid(f"{path} changed while it was read: adopt it when its writer is done")
    return Adopted(
        format=inventory.format, path=str(path), step=inventory.step, world_size=inventory.world_size, files=files,
        tensors=_summary(inventory), problems=findings.problems, warnings=findings.warnings,
        missing_parts=findings.missing_parts,
    )  # fmt: skip


def compare(adopted: Adopted, path: str | os.PathLike[str], *, progress: Progress | None = None) -> list[Change]:
    """What is different in ``path`` (where it was, or a copy of it) from what was adopted. Empty: every bit is the same.

    Raises StateInvalid if it cannot be read at all.
    """
    path = Path(path).resolve()
    if not path.exists():
        return [Change(path=file.path, what="missing") for file in adopted.files]
    there, odd = list_files(path)
    if not path.is_dir() and len(adopted.files) == 1:
        there = (File(path=adopted.files[0].path, size_bytes=there[0].size_bytes),)
    sizes = {file.path: file.size_bytes for file in there}
    known = {file.path: file for file in adopted.files}
    changes = [Change(path=line.partition(" is ")[0], what="added") for line in odd]
    changes += [Change(path=name, what="added") for name in sizes if name not in known]
    same = []
    for name, file in known.items():
        if name not in sizes:
            changes.append(Change(path=name, what="missing"))
        elif sizes[name] != file.size_bytes:
            changes.append(Change(path=name, what="length"))
        else:
            same.append(File(path=name if path.is_dir() else path.name, size_bytes=file.size_bytes))
    for found in hash_files(root_of(path), tuple(same), progress):
        name = found.path if path.is_dir() else adopted.files[0].path
        if found.blake3 != known[name].blake3:
            changes.append(Change(path=name, what="content"))
    return sorted(changes, key=lambda change: change.path)


def hash_files(root: Path, files: tuple[File, ...], progress: Progress | None = None) -> tuple[AdoptedFile, ...]:
    """The BLAKE3 of each file, streamed by two threads. Raises StateInvalid if one has not its length any more."""
    lock, done, total = Lock(), [0], sum(file.size_bytes for file in files)

    def advance(count: int) -> None:
        with lock:
            done[0] += count
            if progress is not None:
                progress(done[0], total)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="keepstep-adopt") as pool:
        return tuple(pool.map(lambda file: _hash_file(root, file, advance), files))


def _hash_file(root: Path, file: File, advance: Callable[[int], None]) -> AdoptedFile:
    from blake3 import blake3

    hasher = blake3()
    buffer = memoryview(bytearray(min(_BLOCK_BYTES, file.size_bytes)))
    with opened(inside(root, file.path)) as reader:
        if reader.size_bytes != file.size_bytes:
            raise StateInvalid(
                f"{file.path} has {reader.size_bytes} bytes where {file.size_bytes} were found: it is written to"
            )
        for at in range(0, file.size_bytes, _BLOCK_BYTES):
            block = buffer[: min(_BLOCK_BYTES, file.size_bytes - at)]
            reader.into(at, block)
            hasher.update(block)
            advance(len(block))
    return AdoptedFile(path=file.path, size_bytes=file.size_bytes, blake3=hasher.hexdigest())


def _stamps(path: Path) -> dict[str, tuple[int, int, int]]:
    """What the file system says of every file, to see that none was touched meanwhile."""
    stamps = {}
    for file in list_files(path)[0]:
        try:
            found = (root_of(path) / file.path).lstat()
        except OSError as error:
            raise StateInvalid(f"{file.path} went away: {error.strerror}") from error
        stamps[file.path] = (found.st_ino, found.st_size, found.st_mtime_ns)
    return stamps


def _summary(inventory: Inventory) -> TensorSummary:
    dtypes: dict[str, int] = {}
    for tensor in inventory.tensors:
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + 1
    return TensorSummary(
        count=len(inventory.tensors), size_bytes=sum(tensor.size_bytes for tensor in inventory.tensors), dtypes=dtypes
    )
