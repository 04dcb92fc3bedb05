"""What sources see becomes facts: names resolved, repetitions joined, coverage told where it changes.

Owns the way from an observation to a fact, and the newest value of every counter. Must not judge a signal, and must never
raise towards a source.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

from keepstep.agent.inventory import Inventory
from keepstep.agent.joining import Joining
from keepstep.agent.settings import Settings
from keepstep.core.facts import CoverageChanged, Fact, SignalSeen
from keepstep.core.observation import Observation, Same, kind_of

LEVELS_MAX = 8192
SETTLE_S = 5.0
"""For so long after the start a signal of a card waits for the driver's names of it."""
_NAMING_SOURCES = ("nvml", "amd")
_EARLY_MAX = 256
State = Literal["seen", "absent", "failing"]


class Board:
    """All sources write here; ``report`` takes the facts."""

    def __init__(self, settings: Settings, inventory: Inventory, boot_id: str, report: Callable[[Fact], None]) -> None:
        self._settings = settings
        self._inventory = inventory
        self._boot_id = boot_id
        self._report = report
        self._clock = asyncio.get_running_loop().time
        self._joining = Joining()
        self._settled_s = self._clock() + SETTLE_S
        self._early: list[Observation] = []
        self.naming: set[str] = set()
        """Sources that will say names of cards and have not said anything yet."""
        self.coverage: dict[str, tuple[State, str]] = {}
        self.levels: dict[tuple[str, str], float] = {}

    def begin(self, source: str) -> "SourceOutlet":
        if source in _NAMING_SOURCES:
            self.naming.add(source)
        return SourceOutlet(self, source)

    @property
    def is_quiet(self) -> bool:
        """Nothing waits here to be told for the first time."""
        return not self._early

    # ---- what sources say

    def observe(self, seen: Observation) -> None:
        if self._must_wait(seen):
            self._early.append(seen)
            return
        now = self._joining.add(seen, self._inventory.canonical(seen.part), self._clock())
        if now is not None:
            self._tell(now)

    def _must_wait(self, seen: Observation) -> bool:
        return (
            bool(self.naming)
            and kind_of(seen.part) == "gpu"
            and self._inventory.slot(seen.part) is None
            and self._clock() < self._settled_s
            and len(self._early) < _EARLY_MAX
        )

    def learn(self, same: Same) -> None:
        self._inventory.learn(same)

    def level(self, part: str, counter: str, value: float) -> None:
        key = (self._inventory.canonical(part), counter)
        if key in self.levels or len(self.levels) < LEVELS_MAX:
            self.levels[key] = value

    def cover(self, source: str, state: State, detail: str) -> None:
        self.naming.discard(source)
        if self.coverage.get(source) == (state, detail):
            return
        self.coverage[source] = (state, detail)
        self._report(
            CoverageChanged(
                node=self._settings.node,
                session=self._settings.session,
                source=source,
                state=state,
                detail=detail[:500],
            )
        )

    # ---- time

    def tick(self) -> None:
        """Once a second: tells what has gathered."""
        if self._early and (not self.naming or self._clock() >= self._settled_s):
            early, self._early = self._early, []
            self._settled_s = 0.0
            for seen in early:
                self.observe(seen)
        for seen in self._joining.due(self._clock()):
            self._tell(seen)
        if self._joining.overrun:
            lost, self._joining.overrun = self._joining.overrun, 0
            detail = f"{lost} further signals, of too many kinds at once, were counted only"
            self.observe(Observation(signal="agent.overrun", detail=detail, count=lost, source="agent"))

    def finish(self) -> None:
        """Tells what still waits: the agent ends."""
        early, self._early = self._early, []
        for seen in [*early, *self._joining.rest()]:
            self._tell(seen)

    def _tell(self, seen: Observation) -> None:
        self._report(
            SignalSeen(
                resource=self._inventory.resource(seen.part), signal=seen.signal, boot_id=self._boot_id,
                detail=seen.detail[:500], part=seen.part, attributes=seen.attributes, count=seen.count,
                source=seen.source, session=self._settings.session,
            )
        )  # fmt: skip


class SourceOutlet:
    """``ports.Outlet`` of one source."""

    def __init__(self, board: Board, source: str) -> None:
        self._board = board
        self._source = source

    def observe(self, observation: Observation) -> None:
        self._board.observe(observation)

    def level(self, part: str, counter: str, value: float) -> None:
        self._board.level(part, counter, value)

    def same(self, same: Same) -> None:
        self._board.learn(same)

    def coverage(self, state: State, detail: str = "") -> None:
        self._board.cover(self._source, state, detail)
