"""The child that goes on talking."""

import asyncio
import gc
import os
import signal
import sys

import pytest

from keepstep.adapters.devices.child import TalkingChild

DEADLINE_S = 90.0


def talk(code: str) -> TalkingChild:
    return TalkingChild([sys.executable, "-c", code], os.environ)


async def gone(child: TalkingChild) -> None:
    """On a busy machine a killed process may take longer than the moment that ``end`` gives it."""
    async with asyncio.timeout(DEADLINE_S):
        while not await child.end():
            pass
    assert child.ended()


def test_lines_come_one_by_one_and_an_empty_one_at_the_end() -> None:
    async def run() -> None:
        child = talk("print('one'); print(''); print('two')")
        assert [await child.line(DEADLINE_S) for _ in range(3)] == [b"one", b"two", b""]
        await gone(child)

    asyncio.run(run())


def test_a_child_that_is_silent_is_ended() -> None:
    async def run() -> None:
        child = talk(
            "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
        )
        assert await child.line(DEADLINE_S) == b"up"
        with pytest.raises(TimeoutError):
            await child.line(0.05)
        await gone(child)

    asyncio.run(run())


class Undying(TalkingChild):
    """As one that sleeps in the kernel: no signal reaches it."""

    def kill(self) -> None:
        self._stop_reading()


def test_one_that_does_not_die_in_time_is_reaped_by_the_next() -> None:
    """And nothing is said of it meanwhile, as Python does of a process that is forgotten while it runs."""

    async def run() -> None:
        for in_order in (True, False):
            child = Undying([sys.executable, "-c", "import time; time.sleep(600)"], os.environ)
            pid = child.pid
            if in_order:
                assert not await child.end()
            else:
                child.end_now()
            del child
            gc.collect()
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(DEADLINE_S):
                while os.path.exists(f"/proc/{pid}"):
                    await gone(talk(""))

    asyncio.run(run())


def test_a_flood_is_held_in_bounds() -> None:
    async def run() -> None:
        child = talk("import sys; sys.stdout.write('x' * 30_000_000); sys.stdout.write('\\n' * 200_000)")
        line = await child.line(DEADLINE_S)
        assert len(line) <= 2_000_000
        await gone(child)

    asyncio.run(run())


def test_a_program_that_is_not_there_is_an_error() -> None:
    async def run() -> None:
        with pytest.raises(OSError, match="nowhere"):
            TalkingChild(["/nowhere/at/all"], os.environ)

    asyncio.run(run())
