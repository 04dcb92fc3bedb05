"""Are the claims of an inventory true? Owns the checks that are the same for every format; changes nothing.

Lengths, bounds, exact coverage of every tensor, the checksums that the format itself keeps, and finite values: streamed,
a few megabytes at a time.
"""

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct

from keepstep.checkpoint.adopt import orbax_values
from keepstep.checkpoint.adopt.boxes import cover_fault
from keepstep.checkpoint.adopt.finite import BLOCK_BYTES, may_be_infinite, scan
from keepstep.checkpoint.adopt.inventory import Checksum, Inventory, Piece, Tensor, root_of
from keepstep.checkpoint.adopt.reading import Reader, inside, opened
from keepstep.checkpoint.errors import StateInvalid

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""
_MOST_LINES = 100


class Findings(Struct, frozen=True, kw_only=True):
    """``problems`` make the checkpoint unfit; see :class:`Inventory`."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    missing_parts: tuple[str, ...]


def validate(inventory: Inventory, *, finite: bool = True, progress: Progress | None = None) -> Findings:
    """Check everything that content can tell. Never raises for what a checkpoint contains."""
    problems, warnings = list(inventory.problems), list(inventory.warnings)
    root = root_of(inventory.path)
    sizes = {file.path: file.size_bytes for file in inventory.files}
    problems += _lengths(root, sizes)
    for tensor in inventory.tensors:
        if inventory.format != "orbax" and (fault := _place_fault(tensor, sizes)) is not None:
            problems.append(f"tensor {tensor.name}: {fault}")
    if not inventory.tensors and not inventory.values:
        problems.append("there is nothing in it")
    reading = _Streams(root, inventory, finite, progress)
    problems += reading.check_sums()
    if finite:
        reading.check_finite(problems, warnings)
    if inventory.format == "orbax":
        found = orbax_values.check(Path(inventory.path), finite=finite)
        problems += found.problems
        warnings += found.warnings
    return Findings(problems=_shortened(problems), warnings=_shortened(warnings), missing_parts=inventory.missing_parts)


def _shortened(lines: Iterable[str]) -> tuple[str, ...]:
    once = list(dict.fromkeys(lines))
    if len(once) > _MOST_LINES:
        once[_MOST_LINES:] = [f"and {len(once) - _MOST_LINES} more"]
    return tuple(once)


def _lengths(root: Path, sizes: dict[str, int]) -> list[str]:
    problems = []
    for name, size in sizes.items():
        try:
            found = inside(root, name).lstat().st_size
        except (OSError, StateInvalid):
            problems.append(f"{name} is gone")
            continue
        if found != size:
            problems.append(f"{name} has {found} bytes now, and had {size} when it was looked at: it is being written")
    return problems


def _place_fault(tensor: Tensor, sizes: dict[str, int]) -> str | None:
    for piece in tensor.pieces:
        if piece.offset < 0 or piece.offset + piece.size_bytes > sizes.get(piece.file, -1):
            return f"its bytes are not all in {piece.file}"
    if not tensor.pieces:
        return "its bytes are not there" if tensor.size_bytes else None
    return cover_fault(tensor.shape, [(piece.start, piece.shape) for piece in tensor.pieces])


_Item = TypeVar("_Item", Checksum, "_Scan")


class _Scan(Struct, frozen=True):
    file: str
    piece: Piece
    tensor: Tensor
    size_bytes: int


class _Streams:
    """The passes that read bulk bytes, file by file, through one buffer."""

    def __init__(self, root: Path, inventory: Inventory, finite: bool, progress: Progress | None) -> None:
        self._root = root
        self._sums = inventory.checksums
        self._scans = list(_scans(inventory.tensors)) if finite else []
        self._buffer = np.empty(BLOCK_BYTES, np.uint8)
        self._total = sum(entry.size_bytes for entry in self._sums) + sum(entry.size_bytes for entry in self._scans)
        self._done = 0
        self._progress = progress

    def check_sums(self) -> list[str]:
        problems: list[str] = []
        self._each(self._sums, self._check_sum, problems)
        return problems

    def check_finite(self, problems: list[str], warnings: list[str]) -> None:
        def check(reader: Reader, entry: _Scan) -> None:
            if count := scan(reader, entry.piece, entry.tensor.dtype, self._buffer):
                where = "the bytes that it is a view of hold" if entry.piece.stride else "it holds"
                line = f"tensor {entry.tensor.name}: {where} {count} values that are NaN or infinite"
                # A lone number may be infinite for a reason: the best score before there is one.
                (problems if entry.tensor.shape else warnings).append(line)

        self._each(self._scans, check, problems)

    def _check_sum(self, reader: Reader, entry: Checksum) -> None:
        crc = 0
        for at in range(0, entry.size_bytes, BLOCK_BYTES):
            block = self._buffer[: min(BLOCK_BYTES, entry.size_bytes - at)]
            reader.into(entry.offset + at, block.data)
            crc = zlib.crc32(block.data, crc)
        if crc != entry.crc32:
            raise StateInvalid(f"{entry.file}: {entry.what} does not match its own checksum: its bytes are damaged")

    def _each(self, entries: Iterable[_Item], check: Callable[[Reader, _Item], None], problems: list[str]) -> None:
        by_file: dict[str, list[_Item]] = {}
        for entry in entries:
            by_file.setdefault(entry.file, []).append(entry)
        for file, group in by_file.items():
            try:
                with opened(inside(self._root, file)) as reader:
                    for entry in group:
                        self._one(reader, entry, check, problems)
            except StateInvalid as error:
                problems.append(str(error))

    def _one(self, reader: Reader, entry: _Item, check: Callable[[Reader, _Item], None], problems: list[str]) -> None:
        try:
            check(reader, entry)
        except StateInvalid as error:
            problems.append(str(error))
        self._done += entry.size_bytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _scans(tensors: Iterable[Tensor]) -> Iterable[_Scan]:
    """Each run of bytes once, however many tied tensors share it."""
    seen: set[tuple[str, int, int, str]] = set()
    for tensor in tensors:
        for piece in tensor.pieces if may_be_infinite(tensor.dtype) else ():
            key = (piece.file, piece.offset, piece.size_bytes, tensor.dtype)
            if piece.size_bytes and key not in seen:
                seen.add(key)
                yield _Scan(piece.file, piece, tensor, piece.size_bytes)
