"""The agent's loop: runs sources, tells what they see, keeps the node's holds. Decides nothing.

Owns the coming together of the parts of this package. A source that breaks is started again, later each time, and never takes
another one with it.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Coroutine, Sequence

from keepstep.adapters.local import procfs
from keepstep.adapters.local.holds import Holds
from keepstep.adapters.server_link import backoff
from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.link import LinkSettings, ServerLink
from keepstep.agent.health import HealthWatch
from keepstep.agent.inventory import Inventory
from keepstep.agent.outlet import Board
from keepstep.agent.self_watch import LOOK_S, SelfWatch
from keepstep.agent.settings import Settings
from keepstep.agent.whereabouts import find_servers, host_of
from keepstep.agent.worth import worth
from keepstep.core.facts import AgentJoined, Answered, Done, Failed, Outcome
from keepstep.core.intents import Intent, Order, Quarantine, Release
from keepstep.core.observation import Observation
from keepstep.ports import Source
from keepstep.wire.messages import PROTOCOL, Beat, Command, Health, Hello, Message, Welcome

log = logging.getLogger("keepstep.agent")

BEAT_S = 1.0
_COUNTED_BEATS = 3
"""A beat counts at most so much running time: what a suspend or a stop took was not spent running."""
_AGAIN_FIRST_S = 1.0
_AGAIN_LAST_S = 60.0
_STEADY_S = 300.0
"""A source that ran so long is healthy again: its next break is the first one."""
_BREAKS_TOLD = 5
_LAST_WORDS_S = 2.0
_ANSWERS_KEPT = 256


class Agent:
    """One life of an agent. ``run`` returns when ``stop`` was called."""

    def __init__(self, settings: Settings, sources: Sequence[Source], credentials: Credentials) -> None:
        self._settings = settings
        self._sources = sources
        self._boot_id = procfs.boot_id()
        self._inventory = Inventory(settings.node, settings.devices)
        self.link = ServerLink(_link_settings(settings, credentials), lambda: find_servers(settings), self)
        self.board = Board(settings, self._inventory, self._boot_id, self.link.report)
        self._holds = Holds(settings.own_dir)
        self._answers: OrderedDict[int, tuple[Intent, Outcome]] = OrderedDict()
        self._told_inventory = -1
        self._stop = asyncio.Event()
        self._self_watch = SelfWatch()
        self._health = HealthWatch()

    async def run(self) -> None:
        self._join()
        lives: list[Coroutine[None, None, None]] = [self.link.run(), self._beats(), self._watch_self()]
        lives += [keep_running(source, self.board) for source in self._sources]
        tasks = [asyncio.ensure_future(life) for life in lives]
        stop = asyncio.ensure_future(self._stopped())
        done, _ = await asyncio.wait([stop, *tasks[:3]], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks[1:]:
            task.cancel()
        self.board.finish()
        if self.link.is_up:
            await self.link.drained(_LAST_WORDS_S)
        for task in (*tasks, stop):
            task.cancel()
        await asyncio.gather(*tasks, stop, return_exceptions=True)
        for task in done - {stop}:
            # None of our own loops ends by itself: this is a bug of ours, and the next life begins afresh.
            task.result()

    def stop(self) -> None:
        self._stop.set()

    async def _stopped(self) -> None:
        await self._stop.wait()

    @property
    def is_settled(self) -> bool:
        """All that was seen so far is in the server's journal."""
        return self.link.is_empty and self.board.is_quiet

    # ---- the connection (server_link.link.Listener)

    def connected(self, welcome: Welcome) -> None:
        log.info("connected to server %s", welcome.server)
        if not self.link.holds(AgentJoined):
            # It may be another server, that has never heard of this node.
            self._join()

    def lost(self, problem: str) -> None:
        log.warning("%s; signals are kept until there is one", problem)

    def received(self, message: Message) -> None:
        if isinstance(message, Command):
            self._take(message.order)
        else:
            log.warning("the server sent %s, which an agent has no use for", type(message).__name__)

    def _join(self) -> None:
        """Says who we are and what the node is made of; the newest word replaces one that still waits."""
        self.link.forget(AgentJoined, but_oldest=True)
        self._told_inventory = self._inventory.version
        self.link.report(
            AgentJoined(
                node=self._settings.node, session=self._settings.session, boot_id=self._boot_id,
                parts=self._inventory.parts(), domains=self._settings.domains,
            )
        )  # fmt: skip

    # ---- orders

    def _take(self, order: Order) -> None:
        intent, outcome = self._answers.get(order.number, (None, None))
        if (
            outcome is None or intent != order.intent
        ):  # a server that was restored from a copy counts from an older number
            outcome = self._act(order.intent)
            self._answers[order.number] = (order.intent, outcome)
            while len(self._answers) > _ANSWERS_KEPT:
                self._answers.popitem(last=False)
        self.link.report(Answered(intent=order.number, outcome=outcome))

    def _act(self, intent: Intent) -> Outcome:
        try:
            match intent:
                case Quarantine(resource=resource, reason=reason):
                    self._holds.hold(resource, reason)
                case Release(resource=resource):
                    self._holds.lift(resource)
                case _:
                    return Failed(reason=f"an agent of this version does not carry out {type(intent).__name__}")
        except OSError as error:
            return Failed(reason=f"{type(error).__name__}: {error}")
        return Done()

    # ---- time

    async def _beats(self) -> None:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = time.monotonic()
            running_s, last_s = min(now_s - last_s, _COUNTED_BEATS * BEAT_S), now_s
            if self._told_inventory != self._inventory.version:
                self._join()
            self.board.tick()
            self.link.say(Beat(generation=0, running_s=running_s, ranks=()))
            forecast = self._health.look(self.board.levels)
            if forecast is not None:
                self.link.say(Health(report=forecast))

    async def _watch_self(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            cost = self._self_watch.look()
            self.board.level("", "agent.cpu_share", cost.cpu_share)
            self.board.level("", "agent.pss_bytes", float(cost.pss_bytes))
            self.board.level("", "agent.facts_dropped", float(self.link.dropped))
            if self._self_watch.is_too_heavy:
                detail = f"the agent takes {cost.cpu_share:.1%} of a core and {cost.pss_bytes >> 20} MiB"
                self.board.observe(Observation(signal="agent.heavy", detail=detail, source="agent"))


def _link_settings(settings: Settings, credentials: Credentials) -> LinkSettings:
    return LinkSettings(
        hello=Hello(protocol=PROTOCOL, role="agent", node=settings.node, session=settings.session),
        credentials=credentials, backoff=backoff.AGENT, worth=worth, on_refusal="try again", lease_s=settings.lease_s,
        find_host=host_of,
    )  # fmt: skip


async def keep_running(source: Source, board: Board) -> None:
    """Until cancelled, or until the source says by returning that there is nothing to see."""
    outlet = board.begin(source.name)
    again_s, breaks = _AGAIN_FIRST_S, 0
    while True:
        began_s = time.monotonic()
        try:
            await source.run(outlet)
            return
        except Exception as error:
            # A source's own bug must leave the others watching.
            log.exception("source %s broke; again in %.0f s", source.name, again_s)
            outlet.coverage("failing", f"{type(error).__name__}: {error}")
            breaks += 1
        if time.monotonic() - began_s > _STEADY_S:
            again_s, breaks = _AGAIN_FIRST_S, 0
        if breaks == _BREAKS_TOLD:
            detail = f"source {source.name} broke {breaks} times in a row: what it looks at is not seen"
            outlet.observe(Observation(signal="probe.failing", detail=detail, source=source.name))
        await asyncio.sleep(again_s)
        again_s = min(_AGAIN_LAST_S, again_s * 2)
