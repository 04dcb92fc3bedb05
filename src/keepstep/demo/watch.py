"""The demo's eyes: the journal, read while the server writes it, and the server's live answer. Must not act on the job.

The journal goes on answering while the server is dead; only the vitals of the ranks come from the server alone.
"""

from collections import deque
from typing import NamedTuple

from keepstep.adapters.database.opening import open_journal
from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.core.decision import Decision, Entry
from keepstep.core.facts import CheckpointCommitted, Launched, ServerStarted
from keepstep.core.ids import IncidentId, JobId, NodeId, ResourceId
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.intents import Launch, RankPlace
from keepstep.core.job import Job, JobState
from keepstep.demo.plan import DemoPlan
from keepstep.demo.processes import Process, process
from keepstep.ports import Journal, JournalUnavailable
from keepstep.server.history import Books
from keepstep.server.views import Live

EVENTS_KEPT = 200
ASK_TIMEOUT_S = 2.0


class Event(NamedTuple):
    at_s: float
    """Seconds since the epoch."""
    text: str
    about: str
    """``incident``, ``resource``, ``checkpoint`` or ``server``."""


class Watch:
    """``poll`` looks; everything else answers from what was seen."""

    def __init__(self, plan: DemoPlan) -> None:
        self._plan = plan
        self._journal: Journal | None = None
        self._client: ToolClient | None = None
        self._seq = 0
        self._committed: set[str] = set()
        self.books = Books()
        self.live: Live | None = None
        """The newest answer of the server; None while none answers."""
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.new_events: list[Event] = []
        """Since the last time that somebody took them."""
        self.server_starts: list[float] = []

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._journal is not None:
            self._journal.close()

    # ---- looking

    def read_journal(self) -> None:
        """Cheap: a query that mostly finds nothing."""
        if self._journal is None:
            try:
                self._journal = open_journal(self._plan.state.journal, read_only=True)
            except (FileNotFoundError, JournalUnavailable):
                return  # the server has not made it yet
        for entry in self._journal.read(after=self._seq):
            self.books.enter(entry)
            self._seq = entry.seq
            self._note(entry)

    def poll(self) -> None:
        self.read_journal()
        self.live = self._ask()

    def _ask(self) -> Live | None:
        if self.job is None:
            return None
        try:
            if self._client is None:
                address = self._plan.state.address()
                if address is None:
                    return None
                self._client = ToolClient(address, self._plan.state.token(), timeout_s=ASK_TIMEOUT_S)
            return self._client.query("live", Live, job=self._plan.job)
        except (ServerGone, ServerRefused):
            # Killed by us, or on its way up: it is asked again at the next look.
            if self._client is not None:
                self._client.close()
            self._client = None
            return None

    def _note(self, entry: Entry) -> None:
        text, about = self._words(entry)
        if text:
            event = Event(entry.at_s, text.replace(f"{self._plan.job}-", ""), about)
            self.events.append(event)
            self.new_events.append(event)

    def _words(self, entry: Entry) -> tuple[str, str]:
        """What a viewer is told of an entry, and what it is about; empty for most entries."""
        world = self.books.world
        match entry.record:
            case Decision(subject=subject) as decision if subject in world.incidents:
                return f"{subject} {decision.stage}: {decision.reason}", "incident"
            case Decision(subject=subject) as decision if (
                known := world.resources.get(ResourceId(subject))
            ) is not None:
                return (f"{subject}: {decision.reason}", "resource") if known.incident or known.holds else ("", "")
            case CheckpointCommitted() as commit if commit.key not in self._committed:
                self._committed.add(commit.key)  # every node reports it
                return f"checkpoint of step {commit.step} is on disk", "checkpoint"
            case ServerStarted() as start:
                self.server_starts.append(entry.at_s)
                return f"server {start.server} leads", "server"
            case _:
                return "", ""

    # ---- answers

    @property
    def job(self) -> Job | None:
        return self.books.world.jobs.get(JobId(self._plan.job))

    @property
    def step(self) -> int:
        """Steps that all ranks completed; -1 before the first."""
        known = self.job.step if self.job is not None else -1
        return max(known, self.live.step) if self.live is not None else known

    @property
    def settled(self) -> bool:
        """The job runs, and no incident leads it."""
        return self.job is not None and self.job.state is JobState.RUNNING and self.job.incident is None

    def faults(self) -> list[Incident]:
        """Incidents so far, oldest first, without the job's start, and without looks that have found nothing wrong."""
        mine = [x for x in self.books.world.incidents.values() if x.job == self._plan.job and x.kind == "fault"]
        return [incident for incident in mine if incident.state is not IncidentState.NO_FAULT]

    def leading(self) -> Incident | None:
        return self.books.world.leading(self.job) if self.job is not None else None

    def mid_recovery(self, incident: Incident) -> bool:
        return incident.open and incident.state is not IncidentState.OPEN

    def incident(self, name: str) -> Incident:
        return self.books.world.incidents[IncidentId(name)]

    def pids(self) -> dict[int, int]:
        """Rank -> pid in the present generation, as far as its launchers have answered."""
        found: dict[int, int] = {}
        job = self.job
        for order in self.books.history.orders.values() if job is not None else ():
            intent, outcome = order.intent, order.outcome
            if not (isinstance(intent, Launch) and isinstance(outcome, Launched)):
                continue
            if job is not None and (intent.job, intent.generation) == (job.id, job.generation):
                found.update(outcome.pids)
        return found

    def rank_process(self, rank: int) -> Process | None:
        pid = self.pids().get(rank)
        return process(pid) if pid is not None else None

    def place_of(self, rank: int) -> tuple[NodeId, RankPlace]:
        """Raises LookupError where the rank is not placed now."""
        placement = self.job.placement if self.job is not None else None
        for node, places in placement.nodes.items() if placement is not None else ():
            for place in places:
                if place.rank == rank:
                    return node, place
        raise LookupError(f"rank {rank} is not placed now")

    def launcher_processes(self) -> list[tuple[NodeId, Process]]:
        """Launchers that are not known to be gone."""
        known = self.job.launchers.values() if self.job is not None else ()
        return [(x.node, Process(x.pid, x.pid_start)) for x in known if not x.gone and not x.left]
