"""The child that goes on talking."""

import asyncio
import os
import sys

import pytest

from keepstep.adapters.devices.child import TalkingChild

DEADLINE_S = 90.0


def talk(code: str) -> TalkingChild:
    return TalkingChild([sys.executable, "-c", code], os.environ)


def test_lines_come_one_by_one_and_an_empty_one_at_the_end() -> None:
    async def run() -> None:
        child = talk("print('one'); print(''); print('two')")
        assert [await child.line(DEADLINE_S) for _ in range(3)] == [b"one", b"two", b""]
        assert await child.end()

    asyncio.run(run())


def test_a_child_that_is_silent_is_ended() -> None:
    async def run() -> None:
        child = talk(
            "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
        )
        assert await child.line(DEADLINE_S) == b"up"
        with pytest.raises(TimeoutError):
            await child.line(0.05)
        assert await child.end()
        assert child.ended()

    asyncio.run(run())


def test_a_flood_is_held_in_bounds() -> None:
    async def run() -> None:
        child = talk("import sys; sys.stdout.write('x' * 30_000_000); sys.stdout.write('\\n' * 200_000)")
        line = await child.line(DEADLINE_S)
        assert len(line) <= 2_000_000
        assert await child.end()

    asyncio.run(run())


def test_a_program_that_is_not_there_is_an_error() -> None:
    async def run() -> None:
        with pytest.raises(OSError, match="nowhere"):
            TalkingChild(["/nowhere/at/all"], os.environ)

    asyncio.run(run())
