"""What the API can be asked, as plain values: path, parameters, body, and the type of the answer. Does no I/O.

Both clients send these; a new route needs one function here and one method in each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote

from msgspec import Struct

from keepstep.core.drill import DrillKind
from keepstep.review.figures import Review
from keepstep.review.postmortem import Postmortem
from keepstep.server import access_views, drill_views, fault_views, health_views, http_views, journal_views, views
from keepstep.server.precision import PrecisionReport
from keepstep.server.whereabouts import Whereabouts
from keepstep.wire.requests import Accepted

API = "/api/v1"
Answer = TypeVar("Answer")
Page = TypeVar("Page")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Call(Generic[Answer]):
    method: str
    path: str
    kind: type[Answer]
    params: dict[str, Any] = field(default_factory=dict)
    body: Struct | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Listing(Generic[Page, Item]):
    """A call that is answered page by page."""

    first: Call[Page]
    items: Callable[[Page], Sequence[Item]]
    following: Callable[[Page], dict[str, Any] | None]
    """Parameters of the next page; None after the last one."""


def get(path: str, kind: type[Answer], **params: Any) -> Call[Answer]:
    """Parameters that are None or empty are left out."""
    return Call(
        "GET", API + path, kind, {name: _text(value) for name, value in params.items() if value not in (None, "")}
    )


def post(path: str, body: Struct | None = None) -> Call[Accepted]:
    return Call("POST", API + path, Accepted, body=body)


def name(text: str) -> str:
    """As one part of a path."""
    return quote(text, safe="")


def resource_path(resource: str) -> str:
    """Of ``node/NODE`` or ``device/NODE/SLOT``. Raises ValueError for anything else."""
    kind, *rest = resource.split("/")
    if (kind, len(rest)) not in (("node", 1), ("device", 2)):
        raise ValueError(f"{resource!r} is no resource; it is node/NODE or device/NODE/SLOT")
    return "/resources/" + "/".join([kind, *map(name, rest)])


def _text(value: Any) -> Any:
    return ("true" if value else "false") if isinstance(value, bool) else value


def _cursor(page: Any) -> dict[str, Any] | None:
    return {"cursor": page.next} if page.next else None


def _before(page: journal_views.Entries) -> dict[str, Any] | None:
    return {"before": page.next} if page.next is not None else None


# ---- lists


def jobs(state: str, q: str, live: bool | None, limit: int) -> Listing[views.Jobs, views.JobView]:
    call = get("/jobs", views.Jobs, state=state, q=q, live=live, limit=limit)
    return Listing(call, lambda page: page.jobs, _cursor)


class IncidentQuery(TypedDict, total=False):
    """All that is said must fit."""

    job: str
    state: str
    cause: str
    node: str
    q: str
    """A word of its id, job, summary or resources."""
    open: bool
    """Only open ones, or only those that are over."""
    starts: bool
    """Also the first start of each job."""
    since_s: float
    until_s: float
    """Ended in that span, or open and opened before its end."""


def incidents(filters: IncidentQuery, limit: int) -> Listing[views.Incidents, views.IncidentLine]:
    return Listing(get("/incidents", views.Incidents, **filters, limit=limit), lambda page: page.incidents, _cursor)


def approvals(limit: int) -> Listing[views.Incidents, views.IncidentLine]:
    return Listing(get("/approvals", views.Incidents, limit=limit), lambda page: page.incidents, _cursor)


def faults(closed: bool, q: str, limit: int) -> Listing[fault_views.Faults, fault_views.FaultView]:
    call = get("/faults", fault_views.Faults, closed=closed, q=q, limit=limit)
    return Listing(call, lambda page: page.faults, _cursor)


def drills(job: str, state: str, limit: int) -> Listing[drill_views.Drills, drill_views.DrillView]:
    call = get("/drills", drill_views.Drills, job=job, state=state, limit=limit)
    return Listing(call, lambda page: page.drills, _cursor)


def nodes(q: str, limit: int) -> Listing[fault_views.Nodes, fault_views.NodeView]:
    return Listing(get("/nodes", fault_views.Nodes, q=q, limit=limit), lambda page: page.nodes, _cursor)


def resources(node: str, state: str, q: str, limit: int) -> Listing[views.Resources, views.ResourceView]:
    call = get("/resources", views.Resources, node=node, state=state, q=q, limit=limit)
    return Listing(call, lambda page: page.resources, _cursor)


def holds(source: str, limit: int) -> Listing[views.Holds, views.HoldLine]:
    return Listing(get("/holds", views.Holds, source=source, limit=limit), lambda page: page.holds, _cursor)


def journal(path: str, subject: str, limit: int) -> Listing[journal_views.Entries, journal_views.EntryView]:
    """``path``: of what it is about; empty for the whole journal, or for a ``subject``."""
    call = get(path + "/journal", journal_views.Entries, subject=subject, limit=limit)
    return Listing(call, lambda page: page.entries, _before)


def tokens(limit: int) -> Listing[access_views.Tokens, access_views.TokenView]:
    return Listing(get("/tokens", access_views.Tokens, limit=limit), lambda page: page.tokens, _cursor)


def certificates(limit: int) -> Listing[access_views.Certificates, access_views.CertificateView]:
    call = get("/certificates", access_views.Certificates, limit=limit)
    return Listing(call, lambda page: page.certificates, _cursor)


# ---- one thing


def job(id: str) -> Call[views.JobView]:
    return get(f"/jobs/{name(id)}", views.JobView)


def live(id: str) -> Call[views.Live]:
    return get(f"/jobs/{name(id)}/live", views.Live)


def ranks(id: str) -> Call[Whereabouts]:
    return get(f"/jobs/{name(id)}/ranks", Whereabouts)


def launchers(id: str) -> Call[views.Launchers]:
    return get(f"/jobs/{name(id)}/launchers", views.Launchers)


def checkpoints(id: str) -> Call[views.Checkpoints]:
    return get(f"/jobs/{name(id)}/checkpoints", views.Checkpoints)


def report(id: str) -> Call[views.Report]:
    """Of all jobs where none is named."""
    return get(f"/jobs/{name(id)}/report" if id else "/report", views.Report)


def incident(id: str) -> Call[views.IncidentReport]:
    return get(f"/incidents/{name(id)}", views.IncidentReport)


def postmortem(id: str) -> Call[Postmortem]:
    return get(f"/incidents/{name(id)}/postmortem", Postmortem)


def review(since_s: float | None, until_s: float | None, tenant: str, job: str) -> Call[Review]:
    return get("/review", Review, since_s=since_s, until_s=until_s, tenant=tenant, job=job)


def fault(id: str) -> Call[fault_views.FaultReport]:
    return get(f"/faults/{name(id)}", fault_views.FaultReport)


def drill(id: str) -> Call[drill_views.DrillReport]:
    return get(f"/drills/{name(id)}", drill_views.DrillReport)


def node(id: str) -> Call[fault_views.NodeView]:
    return get(f"/nodes/{name(id)}", fault_views.NodeView)


def resource(id: str) -> Call[views.ResourceView]:
    return get(resource_path(id), views.ResourceView)


def health(node: str) -> Call[health_views.Health]:
    return get("/health", health_views.Health, node=node)


def precision() -> Call[PrecisionReport]:
    return get("/precision", PrecisionReport)


def policy() -> Call[access_views.PolicyView]:
    return get("/policy", access_views.PolicyView)


def server() -> Call[http_views.ServerView]:
    return get("/server", http_views.ServerView)


# ---- requests


def stop(job: str, reason: str) -> Call[Accepted]:
    return post(f"/jobs/{name(job)}/stop", http_views.Reason(reason=reason))


def hold(resource: str, reason: str) -> Call[Accepted]:
    return post(resource_path(resource) + "/hold", http_views.Reason(reason=reason))


def unhold(resource: str) -> Call[Accepted]:
    return post(resource_path(resource) + "/unhold")


def decide(incident: str, granted: bool) -> Call[Accepted]:
    return post(f"/incidents/{name(incident)}/{'approve' if granted else 'deny'}")


def begin_drill(job: str, kind: DrillKind, rank: int | None) -> Call[Accepted]:
    return post("/drills", http_views.NewDrill(job=job, kind=kind, rank=rank))


def set_policy(overrides: str, tag: str) -> Call[Accepted]:
    body = http_views.PolicyText(overrides=overrides)
    return Call("PUT", API + "/policy", Accepted, body=body, headers={"If-Match": tag})


def create_token(wanted: http_views.NewToken) -> Call[http_views.TokenMade]:
    return Call("POST", API + "/tokens", http_views.TokenMade, body=wanted)


def revoke_token(id: str) -> Call[Accepted]:
    return post(f"/tokens/{name(id)}/revoke")


def revoke_certificate(serial: str, reason: str) -> Call[Accepted]:
    return post(f"/certificates/{name(serial)}/revoke", http_views.Reason(reason=reason))
