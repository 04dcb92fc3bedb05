"""Routes of incidents and faults, and of the word that an incident waits for."""

from typing import Annotated

from litestar import get, post
from litestar.params import FromQuery, QueryParameter

from keepstep.core.access import Action
from keepstep.server import fault_views, views
from keepstep.server.journal_views import Entries
from keepstep.server.precision import PrecisionReport
from keepstep.web.api.asking import PAGE, Asked, CursorText, Key, Limit, Name, StateWord, Word, act, ask
from keepstep.wire.requests import Accepted, Decide

Since = Annotated[
    float, QueryParameter(ge=0, description="Ended at or after this time (seconds since the epoch), or open.")
]
Until = Annotated[float | None, QueryParameter(ge=0, description="Ended, or while open began, before this time.")]
Before = Annotated[int | None, QueryParameter(ge=1, le=2**53, description="`next` of the page before.")]


@get("/incidents", operation_id="listIncidents", tags=["incidents"])
async def list_incidents(  # noqa: PLR0913
    request: Asked, job: Word = "", in_state: StateWord = "", cause: Word = "", node: Word = "", q: Word = "",
    is_open: Annotated[bool | None, QueryParameter(name="open", description="Only open ones, or only those over.")] = None,
    starts: Annotated[bool, QueryParameter(description="Also the first start of each job.")] = False,
    since_s: Since = 0.0, until_s: Until = None, cursor: CursorText = "", limit: Limit = PAGE,
) -> views.Incidents:  # fmt: skip
    """Incidents, newest first: open ones, then those that are over by the time of their end."""
    return await ask(
        request, "incidents", views.Incidents, job=job or None, state=in_state, cause=cause, node=node, q=q, open=is_open,
        starts=starts, since_s=since_s, until_s=until_s, cursor=cursor, limit=limit,
    )  # fmt: skip


@get("/incidents/{incident:str}", operation_id="getIncident", tags=["incidents"])
async def get_incident(request: Asked, incident: Name) -> views.IncidentReport:
    """One incident: cause, evidence for and against, what was done and why, what it cost."""
    return await ask(request, "incident", views.IncidentReport, id=incident)


@get(
    "/incidents/{incident:str}/journal", operation_id="getIncidentJournal", tags=["incidents", "journal"],
    opt={"action": Action.READ_JOURNAL},
)  # fmt: skip
async def get_entries(request: Asked, incident: Name, before: Before = None, limit: Limit = PAGE) -> Entries:
    """The journal entries of an incident, with their hashes, newest first."""
    await ask(request, "incident", views.IncidentReport, id=incident)
    return await ask(request, "journal", Entries, about=[incident], before=before, limit=limit)


@get("/approvals", operation_id="listApprovals", tags=["incidents"])
async def list_approvals(request: Asked, cursor: CursorText = "", limit: Limit = PAGE) -> views.Incidents:
    """Incidents that wait for a person, newest first; `waits_for` says for what."""
    return await ask(
        request, "incidents", views.Incidents, state="waiting", open=True, starts=True, cursor=cursor, limit=limit
    )


@post(
    "/incidents/{incident:str}/approve", operation_id="approveIncident", tags=["incidents"], status_code=202,
    opt={"action": Action.APPROVE},
)  # fmt: skip
async def approve(request: Asked, incident: Name, key: Key = None) -> Accepted:
    """Let an incident go on with what it waits for."""
    return await act(request, Decide(subject=incident, granted=True), key)


@post(
    "/incidents/{incident:str}/deny", operation_id="denyIncident", tags=["incidents"], status_code=202,
    opt={"action": Action.APPROVE},
)  # fmt: skip
async def deny(request: Asked, incident: Name, key: Key = None) -> Accepted:
    """Refuse what an incident waits for."""
    return await act(request, Decide(subject=incident, granted=False), key)


@get("/faults", operation_id="listFaults", tags=["faults"])
async def list_faults(
    request: Asked, closed: FromQuery[bool] = False, q: Word = "", cursor: CursorText = "", limit: Limit = PAGE
) -> fault_views.Faults:
    """Root causes on resources, racks, switches and dependencies, with or without a job; newest first."""
    return await ask(request, "faults", fault_views.Faults, closed=closed, q=q, cursor=cursor, limit=limit)


@get("/faults/{fault:str}", operation_id="getFault", tags=["faults"])
async def get_fault(request: Asked, fault: Name) -> fault_views.FaultReport:
    """One fault: its evidence, and what was done about it."""
    return await ask(request, "fault", fault_views.FaultReport, id=fault)


@get("/precision", operation_id="getPrecision", tags=["faults"])
async def get_precision(request: Asked) -> PrecisionReport:
    """How right each rule was, and which preemptions were unnecessary."""
    return await ask(request, "precision", PrecisionReport)


ROUTES = [
    list_incidents, get_incident, get_entries, list_approvals, approve, deny, list_faults, get_fault, get_precision,
]  # fmt: skip
