"""AMD's source over a stand-in for the vendor's library."""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from keepstep.adapters.amd.source import AmdSource
from keepstep.core.observation import Observation, Same

DEADLINE_S = 90.0


class Seen:
    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.names: list[Same] = []
        self.covered: list[tuple[str, str]] = []
        self.levels: dict[tuple[str, str], float] = {}

    def observe(self, observation: Observation) -> None:
        self.observations.append(observation)

    def level(self, part: str, counter: str, value: float) -> None:
        self.levels[(part, counter)] = value

    def same(self, same: Same) -> None:
        self.names.append(same)

    def coverage(self, state: str, detail: str = "") -> None:
        self.covered.append((state, detail))


class _Source(AmdSource):
    """Finds the stand-in beside this file."""

    library = "json"  # Whatever is installed: the child alone imports the stand-in.

    def __init__(self, answers: str) -> None:
        super().__init__(interval_s=0.2, deadline_s=60.0)
        self._answers = answers

    def environ(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "STANDIN_AMD": self._answers}


def test_an_uncorrectable_error_of_an_amd_device_is_a_signal() -> None:
    async def run() -> None:
        seen = Seen()
        task = asyncio.create_task(_Source("").run(seen))
        async with asyncio.timeout(DEADLINE_S):
            while not seen.observations:
                await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert [(one.signal, one.part) for one in seen.observations] == [("gpu.ecc.dbe", "gpu/0000:c1:00")]
        assert seen.levels[("gpu/0000:c0:00", "gpu.temperature")] == 50.0
        assert seen.covered[-1] == ("seen", "2 devices")

    asyncio.run(run())


def test_without_the_driver_there_is_nothing_to_see() -> None:
    async def run() -> None:
        seen = Seen()
        await asyncio.wait_for(_Source("absent").run(seen), DEADLINE_S)
        assert seen.covered[-1][0] == "absent"

    asyncio.run(run())
