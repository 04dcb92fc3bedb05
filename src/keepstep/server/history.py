"""What the journal says beyond the World: who decided what, when, why, and how each order was answered.

A projection, filled entry by entry, by the live server and by a reader of a journal file alike. Owns nothing that
decisions are made from.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.core.decision import Decision, Entry, JoinFault, Open, OpenFault, Retire
from keepstep.core.engine import replay as core_replay
from keepstep.core.facts import Answered, Failed, NodeJoined, Outcome
from keepstep.core.ids import IncidentId, JobId, NodeId, Session
from keepstep.core.intents import Intent
from keepstep.core.preemptions import Ledger
from keepstep.core.world import World
from keepstep.ports import Archive
from keepstep.review.records import FaultRecord, IncidentRecord, JobRecord
from keepstep.server.capacity import Capacities
from keepstep.server.registry import Registry
from keepstep.server.tallies import Tallies

STEPS_KEPT = 256
"""Of a resource, which never leaves: the newest."""
DRILLS_KEPT = 200
"""As core.apply_drill bounds ``World.drills``; the steps of others are in the journal."""


@dataclass
class OrderRecord:
    """One order, from the decision to its answer."""

    number: int
    intent: Intent
    decided_s: float
    answered_s: float | None = None
    outcome: Outcome | None = None

    @property
    def failed(self) -> str:
        """Why it failed; empty while it is open or where it did not fail."""
        return self.outcome.reason if isinstance(self.outcome, Failed) else ""


@dataclass
class Step:
    """One decision about an incident."""

    entry: int
    at_s: float
    stage: str
    reason: str
    orders: tuple[int, ...]


@dataclass
class History:
    steps: dict[str, list[Step]] = field(default_factory=dict)
    """Subject of the decisions (an incident, a job, a resource) -> decisions, oldest first."""
    orders: dict[int, OrderRecord] = field(default_factory=dict)
    sessions: dict[tuple[JobId, NodeId], list[Session]] = field(default_factory=dict)
    """Launcher sessions of a node, oldest first; only the last one may speak for it."""
    processes: dict[Session, tuple[str, int, int]] = field(default_factory=dict)
    """Launcher session -> (boot id, pid, start time of the process)."""
    faults: dict[str, int] = field(default_factory=dict)
    """Job -> incidents of it so far; its starts are none."""
    ledger: Ledger = field(default_factory=Ledger)
    rehearsed: dict[str, None] = field(default_factory=dict)
    """Drills with steps, oldest first."""
    last_s: float = 0.0

    def note(self, entry: Entry) -> None:
        self.last_s = max(self.last_s, entry.at_s)
        self.ledger.note(entry.seq, entry.at_s, entry.record)
        match entry.record:
            case Decision():
                self._note_decision(entry, entry.record)
            case Answered(intent=number, outcome=outcome):
                order = self.orders.get(number)
                if order is not None and order.answered_s is None:
                    order.answered_s, order.outcome = entry.at_s, outcome
            case NodeJoined(job=job, node=node, session=session) as joined:
                self.processes[session] = (joined.boot_id, joined.pid, joined.pid_start)
                known = self.sessions.setdefault((job, node), [])
                if session not in known:
                    known.append(session)
            case _:
                pass

    def _note_decision(self, entry: Entry, decision: Decision) -> None:
        numbers = range(decision.first_order, decision.first_order + len(decision.intents))
        for number, intent in zip(numbers, decision.intents, strict=True):
            self.orders[number] = OrderRecord(number, intent, entry.at_s)
        for change in decision.changes:
            if isinstance(change, Open) and change.kind == "fault":
                self.faults[change.job] = self.faults.get(change.job, 0) + 1
            elif isinstance(change, Retire):
                self._forget(change)
        step = Step(entry.seq, entry.at_s, decision.stage, decision.reason, tuple(numbers))
        subjects = {decision.subject: None} | {
            c.incident if isinstance(c, Open) else c.fault: None
            for c in decision.changes
            if isinstance(c, Open | OpenFault | JoinFault)
        }
        for subject in subjects:
            steps = self.steps.setdefault(subject, [])
            steps.append(step)
            if decision.stage == "rehearse":
                self._bound_drills(subject)
            if len(steps) > STEPS_KEPT and "/" in subject:
                self._drop(steps[: -STEPS_KEPT // 2])
                del steps[: -STEPS_KEPT // 2]

    def _bound_drills(self, newest: str) -> None:
        """The World lets go of old drills by itself."""
        self.rehearsed[newest] = None
        if len(self.rehearsed) > DRILLS_KEPT:
            oldest = next(iter(self.rehearsed))
            del self.rehearsed[oldest]
            self._drop(self.steps.pop(oldest, ()))

    def _forget(self, change: Retire) -> None:
        """What left the World is in the archive with all its steps and orders."""
        for subject in (*change.incidents, *change.faults, *change.jobs):
            self._drop(self.steps.pop(subject, ()))
        for job in change.jobs:
            self.faults.pop(job, None)
        gone = dict.fromkeys(change.jobs)
        for key in [key for key in self.sessions if key[0] in gone] if gone else ():
            for session in self.sessions.pop(key):
                self.processes.pop(session, None)

    def _drop(self, steps: Iterable[Step]) -> None:
        for step in steps:
            for number in step.orders:
                self.orders.pop(number, None)

    def of_incident(self, incident: IncidentId) -> list[Step]:
        return self.steps.get(incident, [])


@dataclass(frozen=True)
class Seat:
    """Which server keeps the books, and who leads, as it last saw. Not of the journal: a lease says it."""

    server: str = ""
    """Names this life of the server; empty: none does, the books were read from a file."""
    leads: bool = False
    leader: str = ""
    """The life of the server that leads; empty: nobody does."""
    address: str = ""
    """Where the leader is reached."""


@dataclass
class Books:
    """The World, its History, who was let in, and what is over: folded from the same entries, kept in step."""

    world: World = field(default_factory=World)
    history: History = field(default_factory=History)
    registry: Registry = field(default_factory=Registry)
    archive: Archive = field(default_factory=MemoryArchive)
    tallies: Tallies = field(default_factory=Tallies)
    capacity: Capacities = field(default_factory=Capacities)
    seat: Seat = field(default_factory=Seat)
    hash: str = ""
    """Of the newest entry, hex."""
    unfiled: list[tuple[IncidentRecord | JobRecord | FaultRecord, bytes]] = field(default_factory=list)
    """What is over, and perhaps not in the archive yet."""

    def enter(self, entry: Entry) -> None:
        """Take one entry that is in the journal: a fact is folded, a decision applied, nothing is decided again."""
        core_replay(self.world, entry.record, entry.at_s)
        self.note(entry)

    def note(self, entry: Entry) -> None:
        """Take an entry whose record the World has folded already."""
        self.hash = entry.hash
        self.history.note(entry)
        self.registry.note(entry.record, entry.at_s)
        self.tallies.note(self.world, entry)
