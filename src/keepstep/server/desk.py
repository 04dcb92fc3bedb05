"""What a question of the read side may look at, and what every answer needs. Must not change anything."""

from collections.abc import Iterable
from itertools import islice
from typing import Literal

from keepstep.core.access import Principal
from keepstep.core.ids import IncidentId, JobId
from keepstep.core.incident import Incident
from keepstep.core.job import Job
from keepstep.core.vitals import Vitals
from keepstep.ports import Journal
from keepstep.review.wording import duration
from keepstep.server import views, visibility
from keepstep.server.history import Books, OrderRecord, Step

NAMED_MAX = 5


class UnknownSubject(LookupError):
    """The question names a job, an incident or a resource that does not exist."""


class Desk:
    """Everything that a question may look at."""

    def __init__(self, books: Books, vitals: Vitals | None, now_s: float, journal: Journal | None = None) -> None:
        self.world = books.world
        self.history = books.history
        self.archive = books.archive
        self.registry = books.registry
        self.tallies = books.tallies
        self.capacity = books.capacity
        self.seat = books.seat
        self.vitals = vitals
        self.now_s = now_s
        self.journal = journal
        """None where the answer is wanted from the books alone."""
        self.principal: Principal | None = None
        """For whom the answer is, see server.visibility; None: for whoever can read the journal file itself."""

    def seen_by(self, principal: Principal) -> "Desk":
        """The same, with what ``principal`` may see."""
        self.principal = principal
        return self

    def sees(self, job: str) -> bool:
        """Whether a job may be shown. See visibility.sees_job."""
        return visibility.sees_job(self.principal, self.world, job)

    def job_name(self, job: str) -> str:
        """The name of a job in an answer about the fleet; empty where it is another tenant's."""
        return job if self.sees(job) else ""

    @property
    def tenants(self) -> tuple[str, ...]:
        """Whose jobs may be shown. Empty: all."""
        return visibility.tenants(self.principal)

    def archived(self, kind: Literal["incident", "job", "fault"], id: str) -> bytes | None:
        """The report of what is over; None where there is none, or where it is another tenant's. Faults are everybody's."""
        if self.tenants and kind != "fault" and not self._archived_for_tenants(kind, id):
            return None
        return self.archive.get(kind, id)

    def _archived_for_tenants(self, kind: Literal["incident", "job"], id: str) -> bool:
        return self.archive.list(kind, {"id": id, "tenant": ",".join(self.tenants)}, limit=1).total > 0

    def note_of(self, missing: str) -> str:
        """For people, where ``missing`` says why what is over cannot be read. Empty where it is empty."""
        if not missing:
            return ""
        old = duration(max(0.0, self.now_s - self.history.last_s))
        return f"what is over is missing: {missing}; the rest is as of entry {self.world.seq}, {old} old"

    def job(self, name: str) -> Job:
        found = self.world.jobs.get(JobId(name))
        if found is None or not self.sees(name):
            known = _newest(job for job in reversed(self.world.jobs) if self.sees(job))
            raise UnknownSubject(f"there is no job {name!r}; the newest are: {known}")
        return found

    def incident(self, name: str) -> Incident:
        found = self.world.incidents.get(IncidentId(name))
        if found is None or not self.sees(found.job):
            known = _newest(i.id for i in reversed(self.world.incidents.values()) if self.sees(i.job))
            raise UnknownSubject(f"there is no incident {name!r}; the newest are: {known}")
        return found


def _newest(names: Iterable[str]) -> str:
    """Of names that come newest first."""
    return ", ".join(reversed(list(islice(names, NAMED_MAX)))) or "none"


def action_view(desk: Desk, opened_s: float, step: Step) -> views.ActionView:
    """One decision, and what became of its orders. ``opened_s`` is when its subject began."""
    return views.ActionView(
        entry=step.entry,
        after_s=step.at_s - opened_s,
        stage=step.stage,
        reason=step.reason,
        orders=tuple(_order_view(x) for n in step.orders if (x := desk.history.orders.get(n)) is not None),
    )


def _order_view(order: OrderRecord) -> views.OrderView:
    answered = order.answered_s is not None
    return views.OrderView(
        number=order.number,
        kind=type(order.intent).__name__,
        node=getattr(order.intent, "node", ""),
        answer=(order.failed or type(order.outcome).__name__) if answered else "",
        took_s=order.answered_s - order.decided_s if order.answered_s is not None else None,
    )
