"""The list of incidents: open ones, then what is over, page by page. Owns its filters."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime

from litestar import Response, get
from msgspec import Struct

from keepstep.core.ids import node_of
from keepstep.core.incident import Cause, Diagnosis, Incident, IncidentState
from keepstep.ports import Page
from keepstep.review.records import IncidentRecord
from keepstep.server.desk import Desk
from keepstep.server.records import led_by_drill
from keepstep.web.pages.asking import PER_PAGE, Asked, Look, param, respond, tenant_filter

FILTERS = ("q", "state", "cause", "job", "node", "since", "until")
OPEN_MAX = 200
OPEN = "open"
"""Of ``state``: whatever is not over."""


class Line(Struct, frozen=True, kw_only=True):
    id: str
    job: str
    state: str
    is_open: bool
    waits: bool
    cause: str
    confidence: float | None
    summary: str
    resources: tuple[str, ...]
    nodes: tuple[str, ...]
    opened_s: float
    downtime_s: float | None
    lost_steps: int | None
    drill: str = ""


class Listing(Struct, frozen=True, kw_only=True):
    open: tuple[Line, ...]
    closed: tuple[Line, ...]
    next: str
    total: int
    """Closed ones that match, on all pages."""
    filters: dict[str, str]
    states: tuple[str, ...]
    causes: tuple[str, ...]
    is_first: bool
    mistake: str = ""


def listing(desk: Desk, filters: dict[str, str], cursor: str = "") -> Listing:
    """``filters``: FILTERS, each may be empty. What is wrong with them is said in ``mistake``, and nothing is listed."""
    try:
        page = _closed(desk, filters, cursor)
        mistake = ""
    except ValueError as error:
        page, mistake = None, str(error)
    closed = page.records if page is not None else ()
    return Listing(
        open=tuple(_open(desk, filters)) if not cursor and not mistake else (),
        closed=tuple(_closed_line(record) for record in closed if isinstance(record, IncidentRecord)),
        next=page.next if page is not None else "",
        total=page.total if page is not None else 0,
        filters=filters,
        states=(OPEN, *(state.value for state in (IncidentState.RECOVERED, IncidentState.ESCALATED, IncidentState.NO_FAULT))),
        causes=(*(cause.value for cause in Cause), "undiagnosed"),
        is_first=not cursor,
        mistake=mistake,
    )  # fmt: skip


def _closed(desk: Desk, filters: dict[str, str], cursor: str) -> Page | None:
    if filters.get("state") == OPEN:
        return None
    where = {name: filters[name] for name in ("q", "state", "cause", "job", "node") if filters.get(name)}
    return desk.archive.list(
        "incident", {"kind": "fault", **where, **tenant_filter(desk)}, cursor=cursor, limit=PER_PAGE,
        since_s=day_s(filters.get("since", "")) or 0.0, until_s=day_s(filters.get("until", ""), after=1),
    )  # fmt: skip


def day_s(text: str, after: int = 0) -> float | None:
    """Midnight (UTC) of a day, or of so many days after it; None where no day is given. Raises ValueError for none such."""
    if not text:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp() + after * 86_400.0
    except ValueError:
        raise ValueError(f"{text!r} is no day; write it as 2026-01-31") from None


def _open(desk: Desk, filters: dict[str, str]) -> Iterator[Line]:
    """Newest first. They are few: recoveries take minutes."""
    world, found = desk.world, 0
    if filters.get("state") not in ("", None, OPEN):
        return
    for id in reversed(world.open_incidents):
        incident = world.incidents[id]
        if incident.kind == "fault" and desk.sees(incident.job) and found < OPEN_MAX:
            line = _open_line(incident, desk.now_s)
            if _fits(line, filters):
                found += 1
                yield line


def _fits(line: Line, filters: dict[str, str]) -> bool:
    """As the archive judges those that are over; of the days counts when it began."""
    told = " ".join((line.id, line.job, line.summary, *line.resources)).lower()
    exact = all(not filters.get(name) or getattr(line, name) == filters[name] for name in ("cause", "job"))
    node, until_s = filters.get("node"), day_s(filters.get("until", ""), after=1)
    return (
        exact
        and (not node or node in line.nodes)
        and (day_s(filters.get("since", "")) or 0.0) <= line.opened_s < (until_s if until_s is not None else math.inf)
        and filters.get("q", "").lower() in told
    )


def _open_line(incident: Incident, now_s: float) -> Line:
    diagnosis = incident.diagnosis
    return Line(
        id=incident.id, job=incident.job, state=incident.state.value, is_open=True,
        waits=incident.state is IncidentState.WAITING, cause=diagnosis.cause.value if diagnosis is not None else "",
        confidence=diagnosis.confidence if diagnosis is not None else None,
        summary=diagnosis.summary if diagnosis is not None else "not diagnosed yet",
        resources=diagnosis.resources if diagnosis is not None else (), nodes=_nodes(diagnosis), opened_s=incident.opened_s,
        downtime_s=now_s - incident.opened_s, lost_steps=None, drill=led_by_drill(incident),
    )  # fmt: skip


def _nodes(diagnosis: Diagnosis | None) -> tuple[str, ...]:
    if diagnosis is None:
        return ()
    return tuple(dict.fromkeys((*(node_of(resource) for resource in diagnosis.resources), *diagnosis.lost_nodes)))


def _closed_line(record: IncidentRecord) -> Line:
    return Line(
        id=record.id, job=record.job, state=record.state, is_open=False, waits=False, cause=record.cause,
        confidence=record.confidence or None, summary=record.summary, resources=record.resources, nodes=record.nodes,
        opened_s=record.opened_s, downtime_s=record.downtime_s, lost_steps=record.lost_steps,
        drill=record.drill,
    )  # fmt: skip


@get("/incidents", include_in_schema=False)
async def show_incidents(request: Asked) -> Response[str]:
    filters, cursor = {name: param(request, name) for name in FILTERS}, param(request, "cursor")
    look = Look(request)
    found = await look.at(lambda desk: listing(desk, filters, cursor))
    around = look.frame("Incidents", "/incidents")
    return respond(request, "incidents.html", around, {"list": found}, 400 if found.mistake else 200)
