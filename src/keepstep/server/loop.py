"""The loop: facts → World → turn → decisions → journal → acknowledgements and orders. Owns that order and nothing else.

Synchronous on purpose: what ``collect`` hands back is durable and safe to send. Sockets, timers and processes are the
hub's; decisions are the core's.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from keepstep.core.decision import Decision, Entry, Excuse, Record
from keepstep.core.detect import before, detect, excuse
from keepstep.core.engine import orders_of, replay, turn, waits_s
from keepstep.core.facts import Fact, ServerStarted
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import Order
from keepstep.core.job import TERMINAL
from keepstep.core.policy import Policy
from keepstep.core.vitals import Vitals
from keepstep.ports import Clock, Journal, JournalUnavailable
from keepstep.server.history import Books
from keepstep.server.local_orders import is_local, session_of
from keepstep.server.logs import about_decision
from keepstep.server.meters import Meters
from keepstep.server.replay import file_away, finished_by

FACTS_PER_PASS = 128
"""A pass takes no more of them, so that a fleet that joins at once leaves room for beats and for what is urgent."""
IDLE_TICK_S = 0.5
"""Between ticks while no job lives: only slow deadlines of resources are left."""
SESSIONS_MAX = 100_000
"""Whose newest report is remembered: ten programs on each node of a large fleet, some 30 MB."""

log = logging.getLogger("keepstep.server")


@dataclass(frozen=True)
class Received:
    """A fact and the report it came in; ``session`` is None for what the server itself observed."""

    fact: Fact
    session: Session | None = None
    number: int = 0


@dataclass
class Outcome:
    """What became true, durably, since it was last asked for."""

    acks: dict[Session, int] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    ended: list[JobId] = field(default_factory=list)
    entries: dict[Session, int] = field(default_factory=dict)
    """Session -> number of the newest entry that came from it."""
    kept: list[Entry] = field(default_factory=list)
    """Entries that are in the journal now, in order."""


@dataclass
class Batch:
    """What one pass folded and decided: one transaction, facts first. Nothing of it is told to anybody before it is kept."""

    at_s: float
    records: list[Record] = field(default_factory=list)
    origins: list[tuple[Session, int] | None] = field(default_factory=list)
    sessions: dict[Session, None] = field(default_factory=dict)
    """Sessions that wait for an acknowledgement."""

    def add(self, record: Record, origin: tuple[Session, int] | None = None) -> None:
        self.records.append(record)
        self.origins.append(origin)


class ControlLoop:
    """``books`` are what the journal says so far.

    ``work`` raises JournalUnavailable where the journal's medium fails; nothing is lost, and the next call tries again.
    """

    def __init__(self, journal: Journal, books: Books, policy: Policy, clock: Clock) -> None:
        self.journal = journal
        self.policy = policy
        self._clock = clock
        self._worked_s = clock.now_s()
        self.books = books
        self.vitals = Vitals()
        self.meters = Meters()
        self._queue: deque[Received] = deque()
        self._kept = journal.received()
        """Session -> highest report number that is in the journal."""
        self._folded = dict(self._kept)
        """The same, of what is folded but perhaps not kept yet; heard longest ago first."""
        self._forget_sessions()
        self._batch: Batch | None = None
        self._live = dict.fromkeys(self.books.world.live_jobs)
        self._outcome = Outcome()
        self._addressed: dict[Session, list[Order]] = {}
        self._addressed_at = (-1, True)
        """As of which entry it says who is to be sent what, and whether all of that was durable."""
        self._filing_problem = ""

    @property
    def term(self) -> int:
        """Under which this server leads."""
        return self.books.registry.term

    def start(self, server: str, version: str, term: int = 1) -> None:
        """Take the journal over. Launchers of live jobs have a lease to be heard again."""
        self.books.registry.term = term
        self._queue.append(Received(ServerStarted(server=server, version=version, term=term)))
        now_s = self._clock.now_s()
        for job in self.books.world.live_jobs:
            for launcher in self.books.world.jobs[job].launchers.values():
                if not (launcher.left or launcher.gone):
                    self.vitals.connected(job, launcher.node, launcher.session, now_s)
        for agent in self.books.world.agents.values():
            self.vitals.agent_connected(agent.node, agent.session, now_s)
            self.vitals.agents[agent.node].reported_silent = agent.silent_since_s is not None

    def acked(self, session: Session) -> int:
        """Highest report number of the session that is in the journal."""
        return self._kept.get(session, 0)

    def sessions(self, prefix: str) -> list[Session]:
        """Those whose names begin so, of which something was taken."""
        return [session for session in self._folded if session.startswith(prefix)]

    def receive(self, item: Received) -> None:
        """Queue a fact for the next ``work``."""
        self._queue.append(item)

    def work(self) -> None:
        """Fold what is queued and what became due by now, decide until nothing more follows, keep it all at once.

        One flush to disk per pass. Facts are folded before they are durable, decisions applied likewise, but neither an
        acknowledgement nor an order leaves earlier; a death in between leaves a journal without them and launchers that
        report them again. Where deciding fails (a bug of ours), the facts that led to it are kept first.
        """
        self._keep()
        self._batch = batch = Batch(self._clock.now_s())
        self._notice_standstill(batch.at_s)
        for _ in range(min(len(self._queue), FACTS_PER_PASS)):
            self._take(self._queue.popleft(), batch)
        for fact in detect(self.vitals, self.books.world, self.policy, batch.at_s):
            self._fold(fact, batch)
        try:
            decided = turn(self.books.world, self.policy, batch.at_s)
        except AssertionError:
            self._keep()
            raise
        for decision in decided:
            batch.add(decision)
        self._keep()

    def _notice_standstill(self, now_s: float) -> None:
        """Passes come far more often than this; where they did not, the server was stopped, or waited for its disk."""
        lost_s = now_s - self._worked_s - IDLE_TICK_S
        self._worked_s = now_s
        if lost_s > IDLE_TICK_S:
            log.warning("the server stood still for %.1f s; nobody else is blamed for that silence", lost_s)
            self.vitals.stood_still(lost_s, now_s)

    def _take(self, item: Received, batch: Batch) -> None:
        """A report that was taken before is only acknowledged."""
        origin = None
        if item.session is not None:
            batch.sessions[item.session] = None
            if item.number <= self._folded.get(item.session, 0):
                return
            self._folded.pop(item.session, None)
            self._folded[item.session] = item.number
            origin = (item.session, item.number)
        ahead = before(item.fact, self.vitals, self.books.world)
        if ahead is not None:
            self._fold(ahead, batch)
        self._fold(item.fact, batch, origin)

    def _fold(self, fact: Fact, batch: Batch, origin: tuple[Session, int] | None = None) -> None:
        replay(self.books.world, fact, batch.at_s)
        batch.add(fact, origin)

    def _keep(self) -> None:
        """Make the batch durable, and only then let out what follows from it."""
        batch = self._batch
        if batch is None:
            return
        entries = self._append(batch) if batch.records else []
        self._batch = None
        for entry, origin in zip(entries, batch.origins, strict=True):
            self.books.note(entry)
            if origin is not None:
                self._kept[origin[0]] = origin[1]
                self._outcome.entries[origin[0]] = entry.seq
            if isinstance(entry.record, Decision):
                self._let_out(entry.record)
        self._outcome.kept += entries
        self._file(entries)
        self._outcome.acks.update({session: self.acked(session) for session in batch.sessions})
        self._note_ends()
        self._forget_sessions()

    def _append(self, batch: Batch) -> list[Entry]:
        began_s = time.perf_counter()
        entries = self.journal.append(batch.at_s, batch.records, batch.origins)
        self.meters.journal(time.perf_counter() - began_s, len(entries))
        return entries

    def _file(self, entries: Sequence[Entry]) -> None:
        """What is over goes to the archive; where that fails it waits for the next pass, since the journal has it."""
        for entry in entries:
            self.books.unfiled += finished_by(self.books, entry)
        if self.books.unfiled:
            try:
                file_away(self.books)
            except JournalUnavailable as error:
                if str(error) != self._filing_problem:  # tried again with each pass, told once
                    log.warning("%s; %d things that are over wait to be filed", error, len(self.books.unfiled))
                self._filing_problem = str(error)
            else:
                self._filing_problem = ""

    def _let_out(self, decision: Decision) -> None:
        told = about_decision(decision, self.books.world)
        log.info("%s %s: %s", decision.stage, decision.subject, decision.reason, extra=told)
        self._outcome.orders += orders_of(decision)
        for change in decision.changes:
            if isinstance(change, Excuse):
                excuse(self.vitals, self.books.world.incidents[change.incident].job, self.policy.hang)

    def _forget_sessions(self) -> None:
        """Each start of a program and each request is a session. One that so many others came after repeats nothing."""
        while len(self._folded) > SESSIONS_MAX:
            session = next(iter(self._folded))
            del self._folded[session]
            self._kept.pop(session, None)

    def _note_ends(self) -> None:
        for job in [job for job in self._live if self.books.world.jobs[job].state in TERMINAL]:
            del self._live[job]
            self.vitals.forget(job)
            self._outcome.ended.append(job)
        self._live.update(dict.fromkeys(self.books.world.live_jobs))

    def pause_s(self) -> float:
        """How long the hub may wait before the next pass when nothing arrives."""
        if self._queue:
            return 0.0
        world = self.books.world
        return waits_s(world, self.policy) if world.live_jobs or world.open_incidents else IDLE_TICK_S

    def collect(self) -> Outcome:
        """What may be sent now."""
        outcome, self._outcome = self._outcome, Outcome()
        return outcome

    def open_orders(self) -> list[Order]:
        """Orders that have no answer yet, oldest first, as far as they are durable."""
        waiting = [r for r in self._batch.records if isinstance(r, Decision)] if self._batch else []
        limit = waiting[0].first_order if waiting else self.books.world.next_order
        return [
            Order(number=pending.number, intent=pending.intent)
            for pending in self.books.world.orders.values()
            if pending.number < limit
        ]

    def open_orders_for(self, session: Session) -> list[Order]:
        """Those among ``open_orders`` that its launcher or agent carries out. Cheap also while thousands come back at once."""
        now = (self.books.world.seq, self._batch is None)
        if self._addressed_at != now:
            self._addressed_at, self._addressed = now, {}
            for order in self.open_orders():
                if not is_local(order) and (target := session_of(order)) is not None:
                    self._addressed.setdefault(target, []).append(order)
        return self._addressed.get(session, [])

    def is_present(self, job: JobId, node: NodeId, session: Session) -> bool:
        """Whether this session may speak for the node: it is the newest one, or one that was never seen."""
        known = self.books.history.sessions.get((job, node), [])
        return session not in known or known[-1] == session
