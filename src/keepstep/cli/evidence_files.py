"""Files and folders of evidence, opened for the readers. Owns the file system side of `diagnose`; reads no format."""

import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from keepstep.evidence.document import Document

MAX_FILE_BYTES = 512 * 1024 * 1024
"""Of a larger file the last part is read: what went wrong stands at the end."""
MAX_FILES = 100_000


class CannotRead(Exception):
    """A file of evidence cannot be read; says why and what to do."""


def files_under(paths: list[Path]) -> list[Path]:
    """Every regular file among the paths and below them, sorted, each once. Raises CannotRead for a path that is not there."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise CannotRead(f"{path} does not exist; give files or folders of evidence")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                found[file] = None
            if len(found) > MAX_FILES:
                raise CannotRead(f"more than {MAX_FILES} files below {path}; name the folders that matter")
    return list(found)


def open_document(path: Path) -> Document:
    """One file; ``.gz`` and ``.xz`` by their magic. Raises CannotRead."""
    try:
        with path.open("rb") as raw:
            magic = raw.read(6)
            raw.seek(0)
            if magic[:2] == b"\x1f\x8b":
                return Document(str(path), _bounded(gzip.open(raw), path))
            if magic == b"\xfd7zXZ\x00":
                return Document(str(path), _bounded(lzma.open(raw), path))
            raw.seek(max(0, path.stat().st_size - MAX_FILE_BYTES))
            return Document(str(path), raw.read(MAX_FILE_BYTES))
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise CannotRead(f"{path}: {error}") from None


def _bounded(stream: IO[bytes] | gzip.GzipFile | lzma.LZMAFile, path: Path) -> bytes:
    data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise CannotRead(f"{path} unpacks to more than {MAX_FILE_BYTES >> 20} MiB; unpack the part that matters")
    return data


def documents(paths: list[Path]) -> Iterator[tuple[Path, Document | CannotRead]]:
    """Each file with its document, or why it has none."""
    for path in files_under(paths):
        try:
            yield path, open_document(path)
        except CannotRead as error:
            yield path, error
