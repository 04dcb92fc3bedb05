"""One incident: the way from the fault to where the job had been, why it was believed, what was done, what it cost."""

from collections.abc import Callable, Iterator, Sequence

from litestar import Response, get
from litestar.params import FromPath
from msgspec import Struct

from keepstep.core.access import Action, refusal
from keepstep.core.ids import IncidentId
from keepstep.review import plots
from keepstep.review.drawing import NARROW, WIDTH
from keepstep.review.postmortem import Moment, Point, Postmortem
from keepstep.server import views
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.drill_queries import drill_of
from keepstep.server.drill_views import DrillView
from keepstep.server.queries import incident, postmortem
from keepstep.server.traces import trace_id
from keepstep.web.pages.asking import Asked, Look, respond
from keepstep.web.pages.entries import EntryLine, entry_line
from keepstep.web.pages.now import OpenIncident, open_incident
from keepstep.web.pages.pictures import Picture

ENTRIES = 200
TOLD_MAX = 60
"""Letters of a moment's text beside its bar; the whole of it stands in the list."""


class IncidentPage(Struct, frozen=True, kw_only=True):
    after: Postmortem
    line: views.IncidentLine
    attempts: tuple[views.AttemptView, ...]
    open: OpenIncident | None
    """None once it is over."""
    way: Picture
    """Of nothing before there are two moments."""
    curves: tuple[Picture, ...]
    curve_note: str
    entries: tuple[EntryLine, ...]
    entries_refused: str
    entries_whole: bool
    trace: str
    drill: DrillView | None
    """That led to it; None where ``line.drill`` is not known any more, too."""


def incident_page(desk: Desk, name: str) -> IncidentPage:
    """Raises UnknownSubject, also for another tenant's."""
    report = incident(desk, name)
    after = postmortem(desk, name)
    known = desk.world.incidents.get(IncidentId(name))
    why = refusal(desk.principal, Action.READ_JOURNAL) if desk.principal is not None else ""
    readable = desk.journal is not None and not why
    entries = desk.journal.mentioning([name], limit=ENTRIES) if desk.journal is not None and readable else []
    curves = tuple(_curves(after))
    return IncidentPage(
        after=after,
        line=report.incident,
        attempts=report.attempts,
        open=open_incident(desk, known) if known is not None and known.open else None,
        way=_way(after.moments),
        curves=curves,
        curve_note="" if curves else _no_curve(known is not None and known.open),
        entries=tuple(entry_line(entry) for entry in reversed(entries)),
        entries_refused=why,
        entries_whole=len(entries) < ENTRIES,
        trace=trace_id(name, report.incident.opened_s),
        drill=drill_of(desk, name),
    )


def _no_curve(is_open: bool) -> str:
    if is_open:
        return "The curve is kept when the incident is closed."
    return "The server saw no steps around it: the script reports none, or it had just started itself."


def _way(moments: Sequence[Moment]) -> Picture:
    """Each bar reaches from the moment before it to its own."""
    known = [(m, m.after_s) for m in moments if m.after_s is not None]
    spans, before = [], None
    for moment, at_s in known:
        start = at_s if before is None else min(before, at_s)
        told = moment.text if len(moment.text) <= TOLD_MAX else moment.text[: TOLD_MAX - 1] + "…"
        spans.append(plots.Span(name=moment.what, start=start, end=at_s, note=told))
        before = at_s
    title, desc = "The way of this incident", "From the fault to where the job had been, in seconds"
    if len(spans) < 2:
        return Picture(title=title)
    wide, narrow = (plots.waterfall(title, desc, spans, width=width) for width in (WIDTH, NARROW))
    return Picture(title=title, svg=wide, narrow=narrow)


def _curves(after: Postmortem) -> Iterator[Picture]:
    points = (*after.before, *after.after)
    marks = [plots.Mark(m.after_s, m.what) for m in after.moments if m.after_s is not None and m.what in _MARKED]
    if len(points) > 1:
        axes = plots.Axes(x="since it was opened", x_kind="seconds", y_kind="seconds")
        series = _series("step time", after, lambda point: point.step_time_s if point.step_time_s > 0 else None)
        yield _curve("Step time", series, axes, marks)
    if any(point.loss is not None for point in points):
        axes = plots.Axes(x="since it was opened", x_kind="seconds", from_zero=False)
        series = _series("loss", after, lambda point: point.loss)
        yield _curve("Loss", series, axes, marks)


def _curve(title: str, series: Sequence[plots.Series], axes: plots.Axes, marks: Sequence[plots.Mark]) -> Picture:
    wide, narrow = (
        plots.line(title, "Around the incident", series, axes=axes, marks=marks, width=width)
        for width in (WIDTH, NARROW)
    )
    return Picture(title=title, svg=wide, narrow=narrow)


_MARKED = ("detected", "first step", "caught up")


def _series(name: str, after: Postmortem, value: Callable[[Point], float | None]) -> list[plots.Series]:
    def of(points: Sequence[Point]) -> tuple[tuple[float, float], ...]:
        return tuple((p.after_s, v) for p in points if (v := value(p)) is not None)

    parts = ((f"{name} before", of(after.before)), (f"{name} after", of(after.after)))
    return [plots.Series(label, points) for label, points in parts if points]


@get("/incidents/{name:str}", include_in_schema=False)
async def show_incident(request: Asked, name: FromPath[str]) -> Response[str]:
    look = Look(request)
    try:
        shown = await look.at(lambda desk: incident_page(desk, name))
    except UnknownSubject as error:
        return look.not_found(str(error), "/incidents")
    return respond(request, "incident.html", look.frame(f"Incident {name}", "/incidents"), {"page": shown})
