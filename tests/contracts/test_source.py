"""The contract of ports.Source, run against every source that the agent knows: what is true whatever it looks at."""

import asyncio
import importlib
from pathlib import Path
from typing import Literal

import pytest

from keepstep.agent import sources
from keepstep.agent.settings import Settings
from keepstep.agent.sources import Surroundings
from keepstep.core.catalog import CATALOG, UNKNOWN
from keepstep.core.ids import NodeId, Session
from keepstep.core.observation import PART_KINDS, Observation, Same, kind_of
from keepstep.ports import Source

DEADLINE_S = 60.0
LOOK_S = 0.4


class Kept:
    """An outlet that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self.covered: list[str] = []
        self.levels: dict[tuple[str, str], float] = {}

    def observe(self, observation: Observation) -> None:
        self.seen.append(observation)

    def level(self, part: str, counter: str, value: float) -> None:
        self.levels[part, counter] = value

    def same(self, same: Same) -> None:
        assert all("/" in name for name in same.parts)

    def coverage(self, state: Literal["seen", "absent", "failing"], detail: str = "") -> None:
        self.covered.append(state)


def make(name: str, folder: Path) -> Source:
    settings = Settings(node=NodeId("n0"), session=Session("s"), state_dir=str(folder))
    Path(settings.own_dir).mkdir(parents=True)
    return sources.make(name, Surroundings(settings, "boot", True, lambda: True))


async def looked(source: Source, outlet: Kept) -> None:
    """Runs it for a while after its first word about coverage, and until it has ended once it was cancelled."""
    running = asyncio.ensure_future(source.run(outlet))
    async with asyncio.timeout(DEADLINE_S):
        while not outlet.covered and not running.done():
            await asyncio.sleep(0.02)
    await asyncio.wait([running], timeout=LOOK_S)
    running.cancel()
    ended = await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), DEADLINE_S)
    assert not isinstance(ended[0], Exception), ended


@pytest.mark.parametrize("name", sources.NAMES)
def test_a_source_says_what_it_can_see_in_known_words_and_ends_when_it_is_told(name: str, tmp_path: Path) -> None:
    outlet = Kept()
    source = make(name, tmp_path)
    assert source.name == name
    asyncio.run(looked(source, outlet))
    assert outlet.covered
    assert set(outlet.covered) <= {"seen", "absent", "failing"}
    assert outlet.covered != ["absent"] or outlet.seen == []
    for seen in outlet.seen:
        assert CATALOG.row(seen.signal) is not UNKNOWN
        assert not seen.part or kind_of(seen.part) in PART_KINDS
        assert seen.source == name
    assert all(not part or kind_of(part) in PART_KINDS for part, _ in outlet.levels)


def test_every_source_can_be_imported() -> None:
    for place in sources._FURTHER.values():
        module, _, attribute = place.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))
