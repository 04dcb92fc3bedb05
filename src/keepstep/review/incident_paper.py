"""What stands in the report of one incident. Pure; owns the choice of tables and plots."""

import math
from collections.abc import Sequence

from keepstep.review import plots
from keepstep.review.document import Block, Document, Pairs, Plot, Section, Table, Text
from keepstep.review.drawing import Kind
from keepstep.review.papers import MADE_OF
from keepstep.review.postmortem import Evidence, Postmortem
from keepstep.review.wording import duration, moment

GAP_S = 15.0
"""Points lie a second apart, or a few where a long time was thinned."""


def incident_paper(told: Postmortem) -> Document:
    record = told.record
    return Document(
        title=f"Incident {record.id}",
        subtitle=f"{record.job} · opened {moment(record.opened_s)} · {record.state}",
        sections=(
            *_drill(told),
            Section("In short", (Pairs(told.answers),)),
            _timeline(told),
            *_curve(told),
            Section("Evidence for", (_evidence(told.evidence_for),)),
            Section("Evidence against", (_evidence(told.evidence_against),)),
            _decisions(told),
            *_root(told),
            Section(
                "To follow up",
                (Table(("what", "why"), tuple((x.what, x.why) for x in told.follow_up), 0, "nothing stands out"),),
            ),
        ),
        made_of=MADE_OF,
    )


def _drill(told: Postmortem) -> Sequence[Section]:
    if not told.record.drill:
        return ()
    drill = told.drill
    if drill is None:
        return (
            Section(
                "A drill",
                (Text(f"Nothing failed by itself: it was {told.record.drill}, whose marks are in the journal."),),
            ),
        )
    said = f"Nothing failed by itself: it was {drill.id} ({drill.kind} against {drill.target}, asked for by {drill.by})"
    marks = tuple((x.question, "good" if x.good else "bad", x.text) for x in drill.marks)
    return (
        Section(
            "A drill", (Text(f"{said}, {drill.state}."), Table(("question", "mark", "what"), marks, 0, "no marks yet"))
        ),
    )


def _timeline(told: Postmortem) -> Section:
    spans, at = [], 0.0
    for stage, spent_s in told.record.stage_s.items():
        spans.append(plots.Span(stage, at, at + spent_s))
        at += spent_s
    rows = tuple(
        (x.what, duration(x.after_s) if x.after_s is not None else "–", x.how if x.after_s is not None else "", x.text)
        for x in told.moments
    )
    again: tuple[Block, ...] = ()
    if told.record.attempts > 1:
        said = f"{told.record.attempts} generations were started: from the diagnosis on, the moments are those of the last."
        again = (Text(said),)
    return Section(
        "What happened when",
        (
            *again,
            Table(("moment", "after it was opened", "", "what was said"), rows),
            Plot(
                plots.waterfall("Time in each stage", f"{told.record.id}, in all {duration(at)}", spans),
                "Time in each stage; a stage that came twice is summed",
            ),
        ),
    )


def _curve(told: Postmortem) -> Sequence[Section]:
    points = (*told.before, *told.after)
    if not points:
        return ()
    marks = [plots.Mark(0.0, "opened")]
    marks += [
        plots.Mark(x.after_s, x.what)
        for x in told.moments
        if x.what in ("first step", "caught up") and x.after_s is not None and x.after_s <= points[-1].after_s
    ]
    times = _with_gaps([(x.after_s, x.step_time_s) for x in points if x.step_time_s > 0])  # 0: none was measured yet
    steps = _with_gaps([(x.after_s, float(x.step)) for x in points])
    blocks: list[Block] = [
        _plot("Step", steps, marks, "number", told),
        _plot("Step time", times, marks, "seconds", told),
    ]
    losses = _with_gaps([(x.after_s, x.loss) for x in points if x.loss is not None])
    if losses:
        blocks.insert(0, _plot("Loss", losses, marks, "number", told))
    return (Section("The job around it", tuple(blocks)),)


def _with_gaps(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Where nothing was seen for a while no line is drawn."""
    told: list[tuple[float, float]] = []
    for point in points:
        if told and point[0] - told[-1][0] > GAP_S:
            told.append((point[0], math.nan))
        told.append(point)
    return tuple(told)


def _plot(
    what: str, points: tuple[tuple[float, float], ...], marks: list[plots.Mark], kind: Kind, told: Postmortem
) -> Plot:  # fmt: skip
    axes = plots.Axes(x="after it was opened", y=what.lower(), x_kind="time", y_kind=kind, from_zero=kind == "seconds")
    svg = plots.line(f"{what} around {told.record.id}", "", [plots.Series(what, points)], axes=axes, marks=marks)
    return Plot(svg, f"{what} as the server saw it, about a second apart")


def _evidence(found: Sequence[Evidence]) -> Table:
    return Table(
        ("entry", "source", "what it says"), tuple((str(x.entry), x.source, x.text) for x in found), 0, "none was found"
    )  # fmt: skip


def _decisions(told: Postmortem) -> Section:
    rows = tuple(
        (
            str(x.entry),
            duration(x.after_s),
            x.stage,
            x.reason,
            "; ".join(
                f"#{o.number} {o.kind} {o.node}: {o.answer or 'no answer'} {duration(o.took_s)}" for o in x.orders[:8]
            )
            + (f"; and {len(x.orders) - 8} more" if len(x.orders) > 8 else ""),
        )
        for x in told.decisions
    )
    return Section("Decisions", (Table(("entry", "after", "stage", "reason", "orders and answers"), rows),))


def _root(told: Postmortem) -> Sequence[Section]:
    root = told.root
    if root is None:
        return ()
    facts = (
        ("Fault", f"{root.id}: {root.failure_class}, {root.verdict}"),
        ("Where", ", ".join(x for x in (root.resource, root.rack) if x)),
        ("Serial", root.serial or "not told"),
        ("Signals", str(root.count)),
        ("Isolated", ", ".join(root.isolated) or "nothing"),
        ("Outcome", root.outcome or "open"),
    )
    return (Section("The root cause", (Pairs(facts),)),)
