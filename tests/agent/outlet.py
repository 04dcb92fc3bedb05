"""An outlet that keeps everything: what a source says, for a test to look at."""

import asyncio
from collections.abc import Callable
from typing import Literal

from keepstep.core.observation import Observation, Same
from keepstep.ports import Source

DEADLINE_S = 120.0


class Kept:
    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self.levels: dict[tuple[str, str], float] = {}
        self.sames: list[Same] = []
        self.covered: list[tuple[str, str]] = []

    def observe(self, observation: Observation) -> None:
        self.seen.append(observation)

    def level(self, part: str, counter: str, value: float) -> None:
        self.levels[part, counter] = value

    def same(self, same: Same) -> None:
        self.sames.append(same)

    def coverage(self, state: Literal["seen", "absent", "failing"], detail: str = "") -> None:
        self.covered.append((state, detail))

    @property
    def signals(self) -> list[str]:
        return [one.signal for one in self.seen]


async def watch(source: Source, outlet: Kept, signal: str, also: Callable[[], bool] = lambda: True) -> Observation:
    """Runs a source until it says a signal, and ``also`` is true."""
    running = asyncio.ensure_future(source.run(outlet))
    try:
        async with asyncio.timeout(DEADLINE_S):
            while signal not in outlet.signals or not also():
                if running.done():
                    running.result()
                    raise AssertionError(f"the source ended without {signal}: {outlet.signals} {outlet.covered}")
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {DEADLINE_S} s in vain for {signal}: {outlet.signals} {outlet.covered}") from None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return next(one for one in outlet.seen if one.signal == signal)
