"""The server's own look at the management controllers. Owns when each is asked, and what of its answers is news.

Says facts: ``BmcSeen`` where power, reachability or health changed, ``SignalSeen`` for what a controller reports. Draws no
conclusion: a controller that does not answer says nothing about its host.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from msgspec import Struct

from keepstep.core.catalog import CATALOG, Catalog, Verdict
from keepstep.core.facts import BmcSeen, Fact, SignalSeen
from keepstep.core.ids import NodeId, node_resource
from keepstep.core.observation import Observation
from keepstep.ports import Bmc, BmcReading

log = logging.getLogger("keepstep.server")

JOINING = ("bmc.cleared", "bmc.power.state", "bmc.boot")
"""Benign by themselves, and what rules need to see other signals rightly."""
MAX_NEWS = 100
"""Signals of one look that are told; a log that storms is cut here, and the cut is told."""

MAX_STANDING = 4096
"""States of one controller that are remembered; one that invents parts is told no more than that."""


class Pace(Struct, frozen=True, kw_only=True):
    """How often controllers are asked, and how many at once."""

    every_s: float = 30.0
    retry_s: float = 5.0
    """After the first look that failed. From then on the wait doubles, up to ``slowest_s``."""
    slowest_s: float = 300.0
    failures: int = 2
    """Looks in a row without an answer, after which a controller counts as not reachable."""
    at_once: int = 16
    jitter: float = 0.2
    """Part of the wait by which it is made shorter or longer, so that a fleet is not asked in step."""


class OutOfBand:
    """Looks at each controller until it is stopped. ``observe`` is called on the event loop, with one fact at a time."""

    def __init__(
        self,
        bmcs: Mapping[NodeId, Bmc],
        observe: Callable[[Fact], None],
        pace: Pace | None = None,
        catalog: Catalog = CATALOG,
    ) -> None:
        self._watches = {node: _Watch(node, bmc) for node, bmc in bmcs.items()}
        self._observe = observe
        self._pace = pace or Pace()
        self._catalog = catalog
        self._tasks: list[asyncio.Task[None]] = []
        self._slots = asyncio.Semaphore(self._pace.at_once)

    def start(self) -> None:
        """Begin, on the running loop."""
        self._tasks = [asyncio.create_task(self._watch(watch)) for watch in self._watches.values()]

    def ask(self, node: NodeId) -> bool:
        """Look at a node's controller now. False where none is known."""
        watch = self._watches.get(node)
        if watch is not None:
            watch.asked.set()
        return watch is not None

    async def stop(self) -> None:
        """No further looks. Those in flight end within their own limit; nothing of them is told."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await asyncio.gather(*(asyncio.to_thread(watch.close) for watch in self._watches.values()))

    async def _watch(self, watch: "_Watch") -> None:
        wait_s = random.uniform(0.0, self._pace.every_s * self._pace.jitter)
        while True:
            await watch.asked_within(wait_s)
            async with self._slots:
                reading = await asyncio.to_thread(watch.look)
            for fact in watch.news(reading, self._pace.failures, self._catalog):
                self._observe(fact)
            wait_s = self._wait_s(watch.failures) * random.uniform(1.0 - self._pace.jitter, 1.0 + self._pace.jitter)

    def _wait_s(self, failures: int) -> float:
        pace = self._pace
        return pace.every_s if failures == 0 else min(pace.retry_s * 2.0 ** min(failures - 1, 16), pace.slowest_s)


class _Watch:
    """One controller: its cursor, and what was last told of it."""

    def __init__(self, node: NodeId, bmc: Bmc) -> None:
        self.node = node
        self.asked = asyncio.Event()
        self.failures = 0
        self._bmc = bmc
        self._cursor: dict[str, str] = {}
        self._told: BmcSeen | None = None
        self._standing: dict[tuple[str, str], Observation] = {}
        """States that were told and are not over."""

    async def asked_within(self, wait_s: float) -> None:
        """Returns after the wait, or at once when somebody asks."""
        try:
            async with asyncio.timeout(wait_s):  # wait_for of 3.11 loses a cancellation that meets the event
                await self.asked.wait()
        except TimeoutError:
            pass  # nobody asked: it is time anyway
        self.asked.clear()

    def look(self) -> BmcReading:
        """In a thread."""
        try:
            return self._bmc.look(self._cursor)
        except Exception as error:
            log.exception("the look at the controller of %s failed", self.node)
            return BmcReading(reachable=False, detail=f"{type(error).__name__}: {error}"[:300], cursor=self._cursor)

    def close(self) -> None:
        self._bmc.close()

    def news(self, reading: BmcReading, failures: int, catalog: Catalog) -> list[Fact]:
        """What is to be told of a look, and remembered for the next one."""
        self.failures = 0 if reading.reachable else self.failures + 1
        if not reading.reachable and self.failures < failures:
            return []
        self._cursor = dict(reading.cursor)
        facts: list[Fact] = []
        seen = BmcSeen(
            node=self.node,
            power=reading.power,
            reachable=reading.reachable,
            health=reading.health,
            detail=reading.detail,
        )
        if self._told is None or _essence(seen) != _essence(self._told):
            facts.append(seen)
            self._told = seen
        told = self._states(reading) + _joined([x for x in reading.observations if x.attributes.get("record") == "log"])
        worth = [x for x in told if x.signal in JOINING or catalog.row(x.signal).verdict is not Verdict.BENIGN]
        facts += [self._fact(observation) for observation in worth[:MAX_NEWS]]
        if len(worth) > MAX_NEWS:
            log.warning(
                "the controller of %s reported %d signals at once; %d are told", self.node, len(worth), MAX_NEWS
            )
        return facts

    def _states(self, reading: BmcReading) -> list[Observation]:
        """States that are new, and the end of those that are over."""
        now = {(x.signal, x.part): x for x in reading.observations if x.attributes.get("record") != "log"}
        over: list[Observation] = []
        if reading.reachable and reading.complete:
            gone = {key: x for key, x in self._standing.items() if key not in now and not _unread(x, reading.unread)}
            over = [_ended(x) for x in gone.values()]
            self._standing = {key: x for key, x in self._standing.items() if key not in gone}
        elif reading.reachable:
            self._standing.pop(("bmc.unreachable", "bmc"), None)
        fresh = [key for key in now if key not in self._standing][: max(0, MAX_STANDING - len(self._standing))]
        self._standing |= {key: x for key, x in now.items() if key in self._standing}
        self._standing |= {key: now[key] for key in fresh}
        return [now[key] for key in fresh] + over

    def _fact(self, seen: Observation) -> SignalSeen:
        return SignalSeen(
            resource=node_resource(self.node), signal=seen.signal, detail=seen.detail, part=seen.part,
            attributes=seen.attributes, count=seen.count, source=seen.source,
        )  # fmt: skip


def _essence(seen: BmcSeen) -> tuple[str, bool, str]:
    """What makes a change: not the wording of a detail."""
    return seen.power, seen.reachable, seen.health


def _unread(seen: Observation, unread: tuple[str, ...]) -> bool:
    """The place where it was reported could not be read this time."""
    path = seen.attributes.get("path", "")
    return bool(path) and path.startswith(unread)


def _ended(seen: Observation) -> Observation:
    attributes = {"record": "state", "ends": seen.signal}
    return Observation(
        signal="bmc.cleared", part=seen.part, detail=f"no longer reported: {seen.detail}"[:500], attributes=attributes,
        source=seen.source,
    )  # fmt: skip


def _joined(records: list[Observation]) -> list[Observation]:
    """Records of one kind about one part as one, with their number, in the order in which they last came."""
    found: dict[tuple[str, str, str], tuple[Observation, int]] = {}
    for seen in records:
        key = (seen.signal, seen.part, seen.attributes.get("subject", ""))
        _, count = found.pop(key, (seen, 0))
        found[key] = (seen, count + seen.count)
    return [_counted(seen, count) for seen, count in found.values()]


def _counted(seen: Observation, count: int) -> Observation:
    return Observation(
        signal=seen.signal,
        part=seen.part,
        detail=seen.detail,
        attributes=seen.attributes,
        count=count,
        source=seen.source,
    )
