"""The live kernel log: what was there before, what is lost, and where the next life goes on. Contract of ports.Source."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.adapters.kmsg import KernelLogSource
from keepstep.adapters.kmsg.feeds import Batch, DeviceFeed, FileFeed, JournalFeed, Unavailable, _Lines
from keepstep.adapters.kmsg.position import Position

from .outlet import DEADLINE_S, Kept, watch

LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
DOUBLE_BIT = (
    "NVRM: Xid (PCI:0000:3f:00): 48, pid=77, name=python, An uncorrectable double bit error (DBE) has been detected"
)


class Ring(DeviceFeed):
    """A kernel ring of our own: like the device, it gives one record for each read."""

    def __init__(self, position: Position, *records: str) -> None:
        super().__init__("ring", position)
        self._writer, self._reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reader.setblocking(False)
        for record in records:
            self.write(record)

    def write(self, record: str) -> None:
        self._writer.send(record.encode())

    def _open(self) -> int:
        return os.dup(self._reader.fileno())

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


class RingSource(KernelLogSource):
    def __init__(self, ring: Ring) -> None:
        super().__init__()
        self._ring = ring

    def _feeds(self) -> list[DeviceFeed]:
        return [self._ring]


async def first(batches: AsyncIterator[Batch], number: int) -> list[Batch]:
    found = []
    async with asyncio.timeout(DEADLINE_S):
        async for batch in batches:
            found.append(batch)
            if len(found) == number:
                break
    await batches.aclose()  # type: ignore[attr-defined]
    return found


def test_what_the_ring_held_before_is_old_and_what_comes_is_not() -> None:
    async def scene() -> Kept:
        ring, outlet = Ring(Position(), f"3,1,1000,-;{LOST}\n"), Kept()
        running = asyncio.ensure_future(watch(RingSource(ring), outlet, "xid.48"))
        while "xid.79" not in outlet.signals:
            await asyncio.sleep(0.02)
        ring.write(f"3,2,2000,-;{DOUBLE_BIT}\n")
        await running
        ring.close()
        return outlet

    outlet = asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))
    assert [(one.signal, one.attributes.get("old")) for one in outlet.seen] == [("xid.79", "yes"), ("xid.48", None)]
    assert outlet.covered == [("seen", "ring")]


def test_what_came_while_the_agent_was_away_is_not_old() -> None:
    async def scene() -> list[Batch]:
        ring = Ring(Position(kind="device", mark=1), f"3,1,1000,-;{LOST}\n", f"3,2,2000,-;{DOUBLE_BIT}\n")
        try:
            return await first(ring.batches(), 2)
        finally:
            ring.close()

    old, fresh = asyncio.run(scene())
    assert (old.old, len(old.lines)) == (True, 1)
    assert (fresh.old, len(fresh.lines), fresh.mark) == (False, 1, 2)


def test_records_that_the_ring_lost_are_counted() -> None:
    async def scene() -> Batch:
        ring = Ring(Position(), "6,1,1,-;a\n", "6,9,1,-;b\n")
        try:
            return (await first(ring.batches(), 1))[0]
        finally:
            ring.close()

    assert asyncio.run(scene()).lost == 7


def test_a_storm_is_taken_in_bounded_batches() -> None:
    async def scene() -> list[Batch]:
        ring = Ring(Position(), *(f"6,{n},1,-;line\n" for n in range(200)))
        batches = ring.batches()
        found = [await anext(batches)]
        ring.write("6,200,1,-;more\n")
        found.append(await anext(batches))
        await batches.aclose()  # type: ignore[attr-defined]
        ring.close()
        return found

    assert [len(batch.lines) for batch in asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))] == [200, 1]


def test_a_log_that_is_not_there_is_absent_and_no_fault(tmp_path: Path) -> None:
    outlet = Kept()
    asyncio.run(asyncio.wait_for(KernelLogSource(path=str(tmp_path / "none")).run(outlet), DEADLINE_S))
    assert [state for state, _ in outlet.covered] == ["absent"]
    assert outlet.seen == []


def test_a_log_that_has_worked_is_looked_for_again_when_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("")
    source, outlet = KernelLogSource(path=str(path)), Kept()

    async def run() -> None:
        task = asyncio.ensure_future(source._follow_first_that_works(outlet))
        async with asyncio.timeout(DEADLINE_S):
            while not outlet.covered:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        path.unlink()
        assert await source._follow_first_that_works(outlet)

    asyncio.run(run())
    assert [state for state, _ in outlet.covered] == ["seen", "failing"]


def test_a_file_is_followed_from_its_end_over_a_truncation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")

    async def scene() -> list[str]:
        batches = FileFeed(str(path)).batches()
        lines: list[str] = []
        async with asyncio.timeout(DEADLINE_S):
            lines += (await anext(batches)).lines
            with path.open("a") as file:
                file.write("one\nhal")
            lines += (await anext(batches)).lines
            path.write_text("two\n")
            lines += (await anext(batches)).lines
        await batches.aclose()  # type: ignore[attr-defined]
        return lines

    assert asyncio.run(scene()) == ["one", "two"]


def journal(tmp_path: Path, *lines: str) -> str:
    """A program that prints what a journal of this boot would."""
    program = tmp_path / "journalctl"
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/lines; exec sleep 600\n")
    program.chmod(0o755)
    return str(program)


def test_the_last_lines_before_a_rotation_come_too(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("before\n")

    async def scene() -> list[str]:
        batches, told = FileFeed(str(path)).batches(), []
        await anext(batches)
        following = asyncio.ensure_future(anext(batches))
        for _ in range(5):
            await asyncio.sleep(0)  # it has found nothing, and looks again later
        with path.open("a") as file:
            file.write("late\n")
        path.rename(tmp_path / "kern.log.1")
        path.write_text("fresh\n")
        async with asyncio.timeout(DEADLINE_S):
            while "fresh" not in told:
                told += (await following).lines
                following = asyncio.ensure_future(anext(batches))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await batches.aclose()
        return told

    assert asyncio.run(scene()) == ["late", "fresh"]


def test_the_journal_is_split_where_this_agent_began(tmp_path: Path) -> None:
    entry = '{{"__MONOTONIC_TIMESTAMP":"{}","_TRANSPORT":"kernel","MESSAGE":"{}"}}'
    program = journal(tmp_path, entry.format(10, "early"), entry.format(10**15, "late"))

    async def scene() -> list[Batch]:
        return await first(JournalFeed(program, Position()).batches(), 2)

    old, fresh = asyncio.run(scene())
    assert (old.old, fresh.old) == (True, False)
    assert fresh.mark == 10**15


def test_a_journal_that_cannot_be_started_is_unavailable(tmp_path: Path) -> None:
    async def scene() -> None:
        await anext(JournalFeed(str(tmp_path / "none"), Position()).batches())

    with pytest.raises(Unavailable):
        asyncio.run(scene())


def test_a_position_counts_in_its_own_boot_only(tmp_path: Path) -> None:
    path = str(tmp_path / "position")
    Position.load(path, "boot-1").keep("device", 41)
    assert Position.load(path, "boot-1").mark == 41
    assert (Position.load(path, "boot-2").kind, Position.load(path, "boot-2").mark) == ("", 0)
    Path(path).write_bytes(b"\x00broken")
    assert Position.load(path, "boot-1").mark == 0


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=30))
def test_lines_are_the_same_however_the_stream_is_cut(data: bytes, cuts: list[int]) -> None:
    lines, pieces, rest = _Lines(), [], data
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    found = [line for piece in (*pieces, rest) for line in lines.add(piece)]
    whole = data.split(b"\n")[:-1]
    assert found == [line.decode("utf-8", "replace").rstrip("\r") for line in whole]


def test_a_line_without_end_costs_bounded_memory() -> None:
    lines = _Lines()
    found = [line for _ in range(100) for line in lines.add(b"x" * 100_000)]
    assert len(found) == 1
    assert lines.add(b"rest\nnext\n") == ["next"]
