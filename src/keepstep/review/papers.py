"""What stands in each report: of a span (``week_paper``) and of one job. Pure; owns the choice of tables and plots.

Of one incident: incident_paper.py.
"""

from collections.abc import Sequence

from keepstep.review import plots
from keepstep.review.document import Block, Document, Pairs, Plot, Section, Table, Text
from keepstep.review.drawing import label
from keepstep.review.estimates import Share, Spread
from keepstep.review.figures import Loss, Rate, Review
from keepstep.review.questions import answers
from keepstep.review.wording import count, day, duration, hours, moment, number, percent, size

MADE_OF = "Computed by Keepstep from its journal alone. docs/reference/review.md defines each figure."
_ROWS = 12


def week_paper(review: Review) -> Document:
    return Document(
        title=f"Review {day(review.since_s)} to {day(review.until_s)}",
        subtitle=_span(review),
        sections=(
            Section("In short", (Pairs(tuple((x.question, x.sentence) for x in answers(review))),)),
            _time(review),
            _cost(review),
            _failures(review),
            _recoveries(review),
            *_drills(review),
            _saves(review),
            _trust(review),
            _offenders(review),
        ),
        made_of=MADE_OF,
    )


def job_paper(review: Review, job: str) -> Document:
    """``review``: of this job's records only, see ``compute.of_job``."""
    time = next((x for x in review.time.jobs if x.job == job), None)
    facts: tuple[tuple[str, str], ...] = ()
    if time is not None:
        facts = (
            ("State", time.state),
            ("Size", count(time.ranks, "GPU")),
            ("ETTR", percent(time.ettr)),
            ("Goodput", percent(time.goodput)),
            ("Faults", str(time.faults)),
            ("Model", time.model or "no label `model`"),
        )
    asked = [
        x for x in answers(review) if x.key in ("productive", "cost", "lost", "first_restart", "recovery", "writes")
    ]
    return Document(
        title=f"Job {job}",
        subtitle=_span(review),
        sections=(
            Section("In short", (Pairs((*facts, *((x.question, x.sentence) for x in asked))),)),
            _time(review),
            _cost(review),
            _recoveries(review),
            *_drills(review),
            _saves(review),
        ),
        made_of=MADE_OF,
    )


def _span(review: Review) -> str:
    of = f" · tenant {review.tenant}" if review.tenant else ""
    return f"{moment(review.since_s)} to {moment(review.until_s)}{of}"


# ---- where time went


def _time(review: Review) -> Section:
    time = review.time
    parts = [(f"{x.category}{' by ' + x.cause if x.cause else ''}", x.gpu_h, x.share) for x in time.badput]
    every = [("productive", time.productive_gpu_h, time.ettr), *parts]
    kinds = dict.fromkeys(x.category for x in time.badput)
    nowhere = [(kind, {x.cause or kind: x.gpu_h for x in time.badput if x.category == kind}) for kind in kinds]
    blocks: list[Block] = [
        Table(("GPU time", "GPU-hours", "share"), tuple((a, number(b), percent(c)) for a, b, c in every), 2),
    ]
    if nowhere:
        svg = plots.stacked("GPU time that led nowhere", f"{percent(time.ettr)} was productive", nowhere, unit="GPU-h")
        blocks.append(Plot(svg, "GPU-hours that led nowhere, by what they went into and why"))
    blocks.append(
        Table(
            ("job", "state", "GPUs", "time", "queue", "start-up", "recovery", "done again", "ETTR", "goodput"),
            tuple(
                (x.job, x.state, str(x.ranks), duration(x.total_s), duration(x.queue_s), duration(x.startup_s),
                 duration(x.recovery_s), duration(x.wasted_s), percent(x.ettr), percent(x.goodput))
                for x in time.jobs[:_ROWS]
            ),
            8,
            "no job had GPUs",
        )
    )  # fmt: skip
    return Section("Where time went", tuple(blocks))


def _cost(review: Review) -> Section:
    cost = review.cost
    if not cost.n:
        return Section("What faults cost", (Text("No fault incident ended in this time."),))
    rows = [(x.name, {"recovery": x.recovery_gpu_h, "work done again": x.wasted_gpu_h}) for x in cost.by_class[:_ROWS]]
    days = [(day(x.start_s), x.lost_gpu_h) for x in cost.by_day]
    blocks: list[Block] = [
        Text(f"{hours(cost.gpu_h)} over {count(cost.n, 'incident')}."),
        _losses("cause", cost.by_cause),
        _losses("failure class", cost.by_class),
        Plot(
            plots.stacked("Lost GPU-hours by class", hours(cost.gpu_h), rows, unit="GPU-h"), "Lost GPU-hours by class"
        ),
        _losses("model", cost.by_model),
    ]
    if len(days) > 1:
        blocks.append(Plot(plots.columns("Lost GPU-hours by day", "", days, unit="GPU-h"), "Lost GPU-hours by day"))
    return Section("What faults cost", tuple(blocks))


def _losses(what: str, losses: Sequence[Loss]) -> Table:
    return Table(
        (what, "incidents", "GPU-hours", "in recovery", "done again", "share"),
        tuple(
            (
                x.name,
                str(x.incidents),
                number(x.gpu_h),
                number(x.recovery_gpu_h),
                number(x.wasted_gpu_h),
                percent(x.share),
            )
            for x in losses[:_ROWS]
        ),
        5,
    )


# ---- what fails


def _failures(review: Review) -> Section:
    found = review.failures
    weeks = [(day(x.start_s), float(x.failures)) for x in found.weeks]
    blocks: list[Block] = [
        _rates("device model", "GPU-hours", found.by_device_model),
        _rates("job size", "job-hours", found.by_size),
        _rates("model", "GPU-hours", found.by_label),
        _rates("rack", "GPU-hours", found.by_domain),
        Table(
            ("rack", "nodes", "root causes", "expected", "p", "verdict"),
            tuple(
                (
                    x.rack,
                    str(x.nodes),
                    str(x.failures),
                    number(x.expected),
                    "–" if x.p is None else f"{x.p:.2g}",
                    x.verdict,
                )
                for x in found.racks[:_ROWS]
            ),
            5,
            "no rack is known",
        ),
        Text(f"Week by week, per GPU-hour: {found.trend}."),
        Table(
            ("week of", "faults", "GPU-hours", "MTBF, GPU-hours"),
            tuple(
                (day(x.start_s), str(x.failures), number(x.exposure_gpu_h), number(x.mtbf_gpu_h))
                for x in found.weeks[-26:]
            ),
            3,
            "no week",
        ),
    ]
    if len(weeks) > 1:
        blocks.append(
            Plot(plots.columns("Faults by week", count(found.n, "fault"), weeks[-52:]), "Fault incidents by week")
        )
    return Section("What fails", tuple(blocks))


def _rates(what: str, unit: str, rates: Sequence[Rate]) -> Table:
    return Table(
        (what, f"{unit} running", "faults", f"MTTF, {unit}", "95 % interval"),
        tuple(
            (x.name, number(x.exposure_h), str(x.failures), number(x.mttf_h) if x.mttf_h is not None else x.note,
             f"{number(x.low_h)} to {number(x.high_h)}" if x.low_h is not None else "–")
            for x in rates[:_ROWS]
        ),
        4,
        f"no {what} was running",
    )  # fmt: skip


# ---- recovery


def _recoveries(review: Review) -> Section:
    found = review.recoveries
    if not found.recovered.n:
        return Section("How recoveries went", (Text("No recovery ended in this time."),))
    spans, at = [], 0.0
    for stage in found.stages:
        if stage.stage != "all" and stage.every.p50 is not None:
            spans.append(plots.Span(stage.stage, at, at + stage.every.p50, f"n = {stage.every.n}"))
            at += stage.every.p50
    blocks: list[Block] = [
        Pairs(
            (
                ("Recovered", _share(found.recovered)),
                ("By the first restart", _share(found.first_restart)),
                ("Without a person", _share(found.alone)),
                ("Restored from", ", ".join(f"{n} {name}" for name, n in found.restored_from.items()) or "–"),
                ("Work done again", _spread(found.lost_s)),
                ("Age of the newest checkpoint at the fault", _spread(found.checkpoint_age_s)),
            )
        ),
        Table(
            ("stage", "n", "p50", "p95", "longest", "p50 alone", "p50 with a person"),
            tuple(
                (x.stage, str(x.every.n), duration(x.every.p50), duration(x.every.p95), duration(x.every.max),
                 duration(x.alone.p50), duration(x.helped.p50))
                for x in found.stages
            ),
            6,
            "nothing was recovered in this time",
        ),
    ]  # fmt: skip
    if spans:
        blocks.append(Plot(plots.waterfall("Recovery, stage by stage", "medians", spans), "Medians, stage by stage"))
    if found.lost_s.n:
        bins = [(f"≤ {label(edge, 'seconds')}" if edge > 0 else "more", n) for edge, n in found.lost_histogram]
        blocks.append(Plot(plots.histogram("Work done again, per recovery", "", bins), "Recoveries by work done again"))
    return Section("How recoveries went", tuple(blocks))


def _drills(review: Review) -> Sequence[Section]:
    found = review.drills
    if not found.latest:
        return ()
    blocks = (
        Pairs(
            (
                ("Passed", _share(found.passed)),
                ("Noticed after", _spread(found.detection_s)),
                ("Recovered from in", _spread(found.recovery_s)),
                ("Called off", str(found.called_off)),
                ("Cost", hours(found.gpu_h)),
            )
        ),
        Table(
            ("drill", "job", "kind", "against", "ended", "result", "incident", "what"),
            tuple(
                (
                    x.id,
                    x.job,
                    x.kind,
                    x.target,
                    moment(x.ended_s),
                    x.state.replace("_", " "),
                    x.incident or "–",
                    "" if x.state == "passed" else x.reason,
                )
                for x in found.latest[:_ROWS]
            ),
        ),
    )
    return (Section("How drills went", blocks),)


def _share(share: Share) -> str:
    if share.value is None:
        return f"{share.hits} of {share.n}; {share.note}"
    return f"{percent(share.value)} ({share.hits} of {share.n}; {percent(share.low)} to {percent(share.high)})"


def _spread(spread: Spread) -> str:
    if not spread.n:
        return "–"
    return f"p50 {duration(spread.p50)}, p95 {duration(spread.p95)}, at most {duration(spread.max)}, n = {spread.n}"


def _saves(review: Review) -> Section:
    found = review.saves
    trend = found.trend
    word = f"{trend.verdict}, n = {trend.n}"
    if trend.per_day is not None:
        word = (
            f"{trend.verdict}: {percent(trend.per_day, signed=True)} a day "
            f"({percent(trend.low, signed=True)} to {percent(trend.high, signed=True)}), n = {trend.n}"
        )
    days = tuple((start, value) for start, value, _ in found.by_day)
    blocks: list[Block] = [
        Pairs((("Write time", _spread(found.duration_s)), ("Trend", word))),
        Table(
            ("job", "saves", "p50", "p95", "rate", "trend", "a day"),
            tuple(
                (x.job, str(x.duration_s.n), duration(x.duration_s.p50), duration(x.duration_s.p95),
                 f"{size(x.bytes_per_s)}/s" if x.bytes_per_s is not None else "–", x.trend.verdict,
                 percent(x.trend.per_day, signed=True))
                for x in found.jobs[:_ROWS]
            ),
            6,
            "no checkpoint with a write time was committed",
        ),
    ]  # fmt: skip
    if len(days) > 1:
        axes = plots.Axes(y="median write time", x_kind="day", y_kind="seconds")
        svg = plots.line("Checkpoint write time", word, [plots.Series("median of the day", days)], axes=axes)
        blocks.append(Plot(svg, "Median write time by day"))
    return Section("Checkpoints", tuple(blocks))


# ---- trust and repair


def _trust(review: Review) -> Section:
    trust = review.trust
    return Section(
        "Whether the rules were right",
        (
            Text(
                f"Isolations that proved right: {_share(trust.isolations_right)}. Preemptions: {trust.preemptions}, "
                f"unnecessary {_share(trust.preemptions_unnecessary)}, {trust.pending} not judged yet."
            ),
            Table(
                ("rule", "class", "isolated", "right", "unnecessary", "open", "jobs moved", "unnecessary"),
                tuple(
                    (x.rule, x.failure_class, str(x.isolations), str(x.confirmed), str(x.unnecessary), str(x.pending),
                     str(x.preemptions), str(x.preemptions_unnecessary))
                    for x in trust.rules[:_ROWS]
                ),
                6,
                "no rule has isolated anything",
            ),
        ),
    )  # fmt: skip


def _offenders(review: Review) -> Section:
    repairs = review.repairs
    return Section(
        "What fails again, and what is repaired",
        (
            Table(
                ("what", "name", "node", "rack", "root causes", "incidents", "GPU-hours", "p by chance"),
                tuple(
                    (x.kind, x.name, x.node, x.rack, str(x.failures), str(x.incidents), number(x.lost_gpu_h),
                     "–" if x.p is None else f"{x.p:.2g}")
                    for x in review.lemons[:_ROWS]
                ),
                4,
                "nothing failed twice",
            ),
            Table(
                ("repair order for", "serial", "opened", "left repair", "became", "works again", "why"),
                tuple(
                    (x.resource, x.serial, moment(x.opened_s), moment(x.closed_s), x.became, moment(x.in_service_s), x.reason)
                    for x in repairs.orders[:_ROWS]
                ),
                0,
                "no repair order was open",
            ),
            Text(f"Time in repair: {_spread(repairs.turnaround_s)}. Back in service: {_share(repairs.returned)}."),
        ),
    )  # fmt: skip
