"""Blobs out of descriptors into memory of this process's own, verified there. Owns how a restore keeps two cores busy.

Chunk by chunk, on two threads: a chunk is digested while it is still in the caches, and the first touch of new memory, which
costs more than the copy, is shared between them. Bytes are judged where nobody else writes: in memory of this process's own, or
in frozen memory, which is mapped and not copied (what is changed there later is this process's own as well).
"""

import fcntl
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.repository.repository import staging
from keepstep.checkpoint.snapshot.messages import Source
from keepstep.checkpoint.state.blob import TRAILER_BYTES, check_root, chunk_digest, ends_of, root_of, tail_begin
from keepstep.checkpoint.state.leaves import CHUNK_BYTES

READ_THREADS = 2
FROZEN = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def read_blob(source: Source, fd: int) -> Any:
    """The bytes of one group (uint8), verified. Raises StateInvalid."""
    try:
        frozen = _is_frozen(source, fd)
        data = _mapped(source, fd) if frozen else staging(source.size_bytes)
        fill = _nothing if frozen else _fill
        view = memoryview(data.data)
        # What follows the payload says how the blob is cut.
        trailer = max(0, source.size_bytes - TRAILER_BYTES)
        fill(fd, source, view, trailer, source.size_bytes)
        tail = tail_begin(view[trailer:], source.size_bytes)
        fill(fd, source, view, tail, source.size_bytes)
        ends = ends_of(view)

        def work(run: list[tuple[int, int]]) -> list[bytes]:
            fill(fd, source, view, run[0][0], min(run[-1][1], tail))
            return [chunk_digest(view[begin:end]) for begin, end in run]

        check_root(root_of(ends, _on_threads(work, ends)), source.digest)
        return data
    except (OSError, ValueError) as error:
        raise StateInvalid(f"group {source.name!r} cannot be read: {error}") from error


def _on_threads(work: Callable[[list[tuple[int, int]]], list[bytes]], ends: tuple[int, ...]) -> list[bytes]:
    """Digests of all chunks, which ``work`` makes of several at a time."""
    runs: list[list[tuple[int, int]]] = []
    for piece in zip((0, *ends[:-1]), ends, strict=True):
        if runs and piece[1] - runs[-1][0][0] <= CHUNK_BYTES:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    if len(runs) == 1:
        return work(runs[0])
    with ThreadPoolExecutor(max_workers=READ_THREADS, thread_name_prefix="restore") as pool:
        return [digest for digests in pool.map(work, runs) for digest in digests]


def _fill(fd: int, source: Source, view: memoryview, begin: int, end: int) -> None:
    while begin < end:
        count = os.preadv(fd, [view[begin:end]], source.offset + begin)
        if not count:
            raise ValueError(f"group {source.name!r} ended after {begin} of {source.size_bytes} bytes")
        begin += count


def _nothing(fd: int, source: Source, view: memoryview, begin: int, end: int) -> None:
    """Frozen bytes are there."""


def _is_frozen(source: Source, fd: int) -> bool:
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & FROZEN == FROZEN
    except OSError:
        return False
    return (
        sealed and source.offset % mmap.PAGESIZE == 0 and 0 < source.size_bytes <= os.fstat(fd).st_size - source.offset
    )


def _mapped(source: Source, fd: int) -> Any:
    memory = mmap.mmap(fd, source.size_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=source.offset)
    return np.frombuffer(memory, np.uint8)
