"""What a question of the read side may look at, and what every answer needs. Must not change anything."""

from keepstep.core.ids import IncidentId, JobId
from keepstep.core.incident import Incident
from keepstep.core.job import Job
from keepstep.core.vitals import Vitals
from keepstep.ports import Journal
from keepstep.server import views
from keepstep.server.history import Books, OrderRecord, Step


class UnknownSubject(LookupError):
    """The question names a job, an incident or a resource that does not exist."""


class Desk:
    """Everything that a question may look at."""

    def __init__(self, books: Books, vitals: Vitals | None, now_s: float, journal: Journal | None = None) -> None:
        self.world = books.world
        self.history = books.history
        self.archive = books.archive
        self.registry = books.registry
        self.vitals = vitals
        self.now_s = now_s
        self.journal = journal
        """None where the answer is wanted from the books alone."""

    def job(self, name: str) -> Job:
        try:
            return self.world.jobs[JobId(name)]
        except KeyError:
            known = ", ".join(list(self.world.jobs)[-5:]) or "none"
            raise UnknownSubject(f"there is no job {name!r}; the newest are: {known}") from None

    def incident(self, name: str) -> Incident:
        try:
            return self.world.incidents[IncidentId(name)]
        except KeyError:
            known = ", ".join(list(self.world.incidents)[-5:]) or "none"
            raise UnknownSubject(f"there is no incident {name!r}; the newest are: {known}") from None


def action_view(desk: Desk, opened_s: float, step: Step) -> views.ActionView:
    """One decision, and what became of its orders. ``opened_s`` is when its subject began."""
    return views.ActionView(
        entry=step.entry,
        after_s=step.at_s - opened_s,
        stage=step.stage,
        reason=step.reason,
        orders=tuple(_order_view(desk.history.orders[number]) for number in step.orders),
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
