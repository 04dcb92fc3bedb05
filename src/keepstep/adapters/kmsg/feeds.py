"""Where lines of the kernel log come from. Owns opening, following and what was lost; must not read meaning into a line.

Each feed gives batches of lines: first what was there before, in one or more batches with ``old``, then what comes.
"""

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from keepstep.adapters.kmsg.position import Position
from keepstep.core.figures import whole

BATCH_LINES = 500
BATCH_PAUSE_S = 0.05
"""At most 10,000 lines a second are taken: a storm beyond that may be lost, and is counted, but never takes the node's core."""
_REST = 4.0
_RECORD_BYTES = 16_384
"""The kernel refuses a buffer that is too small for a record; none is longer than 8 KiB."""
_FILE_POLL_S = 0.25
_KILL_WAIT_S = 5.0
_LINE_BYTES = 65_536
_CHUNK_BYTES = 262_144


async def _rest_after(began_s: float) -> None:
    """A pause after a batch, long enough that a storm takes at most a fifth of a core."""
    await asyncio.sleep(max(BATCH_PAUSE_S, _REST * (time.process_time() - began_s)))


class Unavailable(Exception):
    """This feed cannot be used here. Says why."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    lines: Sequence[str]
    old: bool = False
    """They were there before this agent began to listen."""
    lost: int = 0
    """At least so many records were lost before these."""
    mark: int = 0
    """Where the next life of the agent goes on, see ``Position``."""


class Feed(Protocol):
    name: str

    def batches(self) -> AsyncIterator[Batch]:
        """Raises Unavailable before the first batch where it cannot be used, OSError later."""
        ...


class DeviceFeed:
    """``/dev/kmsg``: the ring of this boot, then each record as it comes, woken by the kernel."""

    def __init__(self, path: str, position: Position) -> None:
        self.name = path
        self._path = path
        self._position = position
        self._last_number = -1

    async def batches(self) -> AsyncIterator[Batch]:
        descriptor = self._open()
        news = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            known = self._position.mark if self._position.kind == "device" else None
            async for batch in self._ring(descriptor, known):
                yield batch
            while True:
                loop.add_reader(descriptor, news.set)
                await news.wait()
                # Level-triggered: while we pause, the loop must not be woken again and again.
                loop.remove_reader(descriptor)
                news.clear()
                lines, lost = self._read(descriptor)
                began_s = time.process_time()
                if lines or lost:
                    yield Batch(lines=lines, lost=lost, mark=self._last_number)
                if len(lines) >= BATCH_LINES:
                    await _rest_after(began_s)
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _open(self) -> int:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"{self._path}: {error.strerror}") from error
        try:
            os.lseek(descriptor, 0, os.SEEK_SET)
        except OSError as error:
            os.close(descriptor)
            raise Unavailable(f"{self._path}: {error.strerror}") from error
        return descriptor

    async def _ring(self, descriptor: int, known: int | None) -> AsyncIterator[Batch]:
        """What the ring holds. Records after ``known`` came while the agent was away for a moment: they are not old."""
        while True:
            try:
                lines, lost = self._read(descriptor)
            except OSError as error:
                # Some systems let everybody open the device, and only some read it.
                raise Unavailable(f"{self._path}: {error.strerror}") from error
            split = sum(_number(line) <= known for line in lines) if known is not None else len(lines)
            if lines[:split]:
                yield Batch(lines=lines[:split], old=True, lost=lost, mark=self._last_number)
            if lines[split:]:
                yield Batch(lines=lines[split:], mark=self._last_number)
            if len(lines) < BATCH_LINES:
                return
            await asyncio.sleep(0)

    def _read(self, descriptor: int) -> tuple[list[str], int]:
        """Records that are there now, at most a batch, and how many were overwritten before we came to them."""
        lines: list[str] = []
        lost = 0
        while len(lines) < BATCH_LINES:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                # The ring went round: the next read is at the oldest record that is left.
                if error.errno == errno.EPIPE:
                    lost += 1
                    continue
                raise
            if not record:
                break
            text = record.decode("utf-8", "replace").rstrip("\n")
            number = _number(text)
            if 0 <= self._last_number < number - 1:
                lost += number - 1 - self._last_number
            self._last_number = max(self._last_number, number)
            lines.append(text)
        return lines, lost


def _number(record: str) -> int:
    """Sequence number of a raw record ``priority,number,µs,flags;text``; 0 where there is none."""
    fields = record[:64].split(",", 2)
    return (whole(fields[1]) if len(fields) == 3 else None) or 0


class JournalFeed:
    """``journalctl``: where the device may not be read. A child that writes one JSON document for each line."""

    name = "journal"

    def __init__(self, program: str, position: Position) -> None:
        self._program = program
        self._position = position

    async def batches(self) -> AsyncIterator[Batch]:
        started_us = time.monotonic_ns() // 1000
        known = self._position.mark if self._position.kind == "journal" else 0
        child = await self._start()
        assert child.stdout is not None
        try:
            first = True
            async for lines in _lines_of(child.stdout):
                times = [_monotonic_us(line) for line in lines]
                fresh_from_us = known or started_us
                split = next((at for at, us in enumerate(times) if us > fresh_from_us), len(lines)) if first else 0
                first = first and split == len(lines)
                mark = max(times, default=0)
                if lines[:split]:
                    yield Batch(lines=lines[:split], old=True, mark=mark)
                if lines[split:]:
                    yield Batch(lines=lines[split:], mark=mark)
            raise OSError(f"{self._program} ended with {await child.wait()}")
        finally:
            await _end(child)

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                self._program, "--dmesg", "--boot", "--follow", "--no-tail", "--output=json", "--quiet",
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                limit=_LINE_BYTES,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"{self._program}: {error.strerror}") from error


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.kill()
        try:
            async with asyncio.timeout(_KILL_WAIT_S):
                await child.wait()
        except TimeoutError:
            # It sleeps in the kernel, as its journal's disk may; nobody waits for it.
            return


def _monotonic_us(line: str) -> int:
    _, found, rest = line.partition('"__MONOTONIC_TIMESTAMP":"')
    if not found:
        _, found, rest = line.partition('"__MONOTONIC_TIMESTAMP" : "')
    return whole(rest.partition('"')[0]) or 0


async def _lines_of(stream: asyncio.StreamReader) -> AsyncIterator[list[str]]:
    """Lines in batches, until the end. A line that is too long is cut."""
    rest = _Lines()
    while piece := await stream.read(_CHUNK_BYTES):
        lines = rest.add(piece)
        for start in range(0, len(lines), BATCH_LINES):
            began_s = time.process_time()
            yield lines[start : start + BATCH_LINES]
            if len(lines) > BATCH_LINES:
                await _rest_after(began_s)


class FileFeed:
    """A file that somebody appends to, and rotates: looked at four times a second, from its present end on."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._path = path

    async def batches(self) -> AsyncIterator[Batch]:
        descriptor = self._open()
        try:
            os.lseek(descriptor, 0, os.SEEK_END)
            rest = _Lines()
            yield Batch(lines=())
            while True:
                piece = os.read(descriptor, _CHUNK_BYTES)
                lines = rest.add(piece)
                for start in range(0, len(lines), BATCH_LINES):
                    began_s = time.process_time()
                    yield Batch(lines=lines[start : start + BATCH_LINES])
                    await _rest_after(began_s)
                if piece:
                    continue
                await asyncio.sleep(_FILE_POLL_S)
                descriptor, rest = self._after_rotation(descriptor, rest)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"{self._path}: {error.strerror}") from error

    def _after_rotation(self, descriptor: int, rest: "_Lines") -> tuple[int, "_Lines"]:
        """The file that the name means now; the same one where nothing changed."""
        here = os.fstat(descriptor)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return descriptor, rest
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
            if here.st_size < os.lseek(descriptor, 0, os.SEEK_CUR):
                os.lseek(descriptor, 0, os.SEEK_SET)
                return descriptor, _Lines()
            return descriptor, rest
        if os.fstat(descriptor).st_size > os.lseek(descriptor, 0, os.SEEK_CUR):
            return descriptor, rest  # the last lines before the rotation come first
        try:
            fresh = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return descriptor, rest
        os.close(descriptor)
        return fresh, _Lines()


class _Lines:
    """Cuts a stream of bytes into lines; what has no end yet waits, bounded."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def add(self, piece: bytes) -> list[str]:
        *whole, rest = (self._rest + piece).split(b"\n")
        if self._skipping and whole:
            # The rest of a line whose beginning was given already.
            whole, self._skipping = whole[1:], False
        if len(rest) > _LINE_BYTES:
            if not self._skipping:
                whole.append(rest[:_LINE_BYTES])
            rest, self._skipping = b"", True
        self._rest = rest
        return [line[:_LINE_BYTES].decode("utf-8", "replace").rstrip("\r") for line in whole]
