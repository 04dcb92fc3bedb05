"""One spell of leading: loop, hub, local orders, BMCs, observers, and how they are put together. Owns their life."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keepstep import __version__
from keepstep.adapters.local import LocalHost
from keepstep.core.catalog import Catalog
from keepstep.core.decision import Entry
from keepstep.core.facts import PolicySet
from keepstep.core.ids import NodeId
from keepstep.core.policy import Policy
from keepstep.ports import Bmc, Clock, Deposed, Journal, JournalUnavailable, Snapshots
from keepstep.server.authentication import Authentication
from keepstep.server.curves import Curves
from keepstep.server.history import Books
from keepstep.server.hub import Hub
from keepstep.server.leading import LeadingSite
from keepstep.server.local_orders import LocalOrders
from keepstep.server.loop import ControlLoop
from keepstep.server.observability import Observability
from keepstep.server.out_of_band import OutOfBand
from keepstep.server.policy_file import read_policy
from keepstep.server.reception import Reception
from keepstep.server.site import Bulletin
from keepstep.server.state_dir import StateDir
from keepstep.server.upkeep import Upkeep, at_the_end

if TYPE_CHECKING:
    from keepstep.server.enrolment import Enrolment

log = logging.getLogger("keepstep.server")

TICK_S = 1.0


@dataclass(frozen=True)
class Equipment:
    """What every spell of leading on this machine works with."""

    state: StateDir
    identity: str
    catalog: Catalog
    bmcs: Mapping[NodeId, Bmc]
    authentication: Authentication
    watch: Observability
    database: str
    """As open_database takes it."""
    snapshots: Snapshots
    enrolment: "MakeEnrolment | None" = None
    """Where there is a certificate authority."""


MakeEnrolment = Callable[[Hub], "Enrolment"]


def policy_of(books: Books, catalog: Catalog) -> Policy:
    """The policy that holds now: the built-in one, with what a person set."""
    known = books.registry.policy
    return read_policy(known.overrides if known is not None else "", catalog)


class Leader:
    """Meets replica.Role."""

    def __init__(
        self, equipment: Equipment, books: Books, journal: Journal, clock: Clock, bulletin: Bulletin, reception: Reception
    ) -> None:  # fmt: skip
        self._equipment = equipment
        self._clock = clock
        self._reception = reception
        self.loop = ControlLoop(journal, books, policy_of(books, equipment.catalog), clock)
        self.hub = Hub(self.loop, equipment.authentication, equipment.identity, clock)
        self.hub.bulletin = bulletin
        self.hub.kept = self._kept
        self.hub.deposed = self._deposed
        self.hub.enrolment = equipment.enrolment(self.hub) if equipment.enrolment is not None else None
        self.site = LeadingSite(self.loop, self.hub, journal, clock)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._curves = Curves()

    def begin(self, term: int) -> None:
        """Take the journal over, order again what is unanswered, and answer whoever connects from here on."""
        equipment, hub = self._equipment, self.hub
        self.loop.start(equipment.identity, __version__, term)
        processes = self.loop.books.history.processes
        hub.run(LocalOrders(LocalHost(), equipment.state.repairs, processes.get, hub.observe, dict(equipment.bmcs)))
        self._reception.become(hub)

    async def run(self) -> None:
        """Until cancelled. Raises Deposed once another server leads."""
        out_of_band = OutOfBand(dict(self._equipment.bmcs), self.hub.observe, catalog=self._equipment.catalog)
        out_of_band.start()
        upkeep = Upkeep(self._equipment.database, lambda: self.loop.books.world.seq)
        beside = [asyncio.ensure_future(self._tick()), asyncio.ensure_future(upkeep.run())]
        try:
            await self._ended
        finally:
            for task in beside:
                task.cancel()
            self._equipment.watch.followed()
            await out_of_band.stop()
            self.hub.stop()
            if not self._ended.done():
                self._leave_snapshot(upkeep.covered)

    def _leave_snapshot(self, covered: int) -> None:
        """So that the next start is quick."""
        try:
            at_the_end(self.loop.books, self._equipment.snapshots, covered)
        except (JournalUnavailable, ValueError) as error:
            log.warning("no snapshot was left at the end: %s", error)

    def _kept(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if isinstance(entry.record, PolicySet):
                self.loop.policy = policy_of(self.loop.books, self._equipment.catalog)
                log.info("the policy was set by %s", entry.record.by)
        self._equipment.watch.note(entries)

    def _deposed(self, error: Deposed) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._clock.now_s()
            self.hub.observe(*self._curves.tick(self.loop.books, self.loop.vitals, now_s))
            self._equipment.watch.tick(now_s)
