"""The source of a watch: hands on what is seen, and goes on when a look hangs or fails."""

import asyncio
import threading
from typing import Literal

import pytest

from keepstep.adapters.sysfs.watching import Batch, Polled
from keepstep.core.observation import Observation, Same


class Heard:
    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.levels: list[tuple[str, str, float]] = []
        self.states: list[str] = []

    def observe(self, observation: Observation) -> None:
        self.observations.append(observation)

    def level(self, part: str, counter: str, value: float) -> None:
        self.levels.append((part, counter, value))

    def same(self, same: Same) -> None: ...

    def coverage(self, state: Literal["seen", "absent", "failing"], detail: str = "") -> None:
        self.states.append(state)


class Counting:
    name = "counting"

    def __init__(self) -> None:
        self.looks = 0

    def look(self, now_s: float) -> Batch:
        self.looks += 1
        if self.looks == 2:
            raise OSError(19, "no such device")
        return Batch(observations=[Observation(signal="port.up", detail=str(self.looks))], levels=[("nic/a", "x", 1.0)])


async def until(condition: object, source: Polled, heard: Heard) -> None:
    task = asyncio.create_task(source.run(heard))
    async with asyncio.timeout(90):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_looks_are_handed_on_and_an_error_is_coverage() -> None:
    heard = Heard()
    asyncio.run(until(lambda: len(heard.observations) >= 2, Polled(Counting(), 0.01), heard))
    assert [x.detail for x in heard.observations][:2] == ["1", "3"]
    assert heard.states[:3] == ["seen", "failing", "seen"]
    assert ("nic/a", "x", 1.0) in heard.levels


class Hanging:
    name = "hanging"

    def __init__(self) -> None:
        self.free = threading.Event()

    def look(self, now_s: float) -> Batch:
        self.free.wait(30)
        return Batch()


def test_a_look_that_does_not_come_back_is_a_signal_and_the_loop_goes_on() -> None:
    heard, watch = Heard(), Hanging()
    times = iter(range(0, 100_000, 15))
    source = Polled(watch, 0.01, clock=lambda: float(next(times)))
    asyncio.run(until(lambda: heard.observations, source, heard))
    watch.free.set()
    assert (heard.observations[0].signal, heard.observations[0].attributes["probe"]) == ("probe.hung", "hanging")
    assert heard.states == ["failing"]


class Broken:
    name = "broken"

    def look(self, now_s: float) -> Batch:
        raise KeyError("a bug of the watch")


def test_a_bug_of_a_watch_ends_the_source_where_it_is_seen() -> None:
    async def run() -> None:
        async with asyncio.timeout(90):
            await Polled(Broken(), 0.01).run(Heard())

    with pytest.raises(KeyError, match="a bug of the watch"):
        asyncio.run(run())
