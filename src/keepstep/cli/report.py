"""``keepstep report``: what faults cost; an incident, a span of time or a job as a document. Owns its tables; no arithmetic."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, fail, print_json, seconds

if TYPE_CHECKING:
    from msgspec import Struct
    from rich.table import Table

    from keepstep.review.document import Document, Plot
    from keepstep.server.views import Report

Answer = TypeVar("Answer")

report = typer.Typer(help="What faults cost, as tables or as a document.", invoke_without_command=True)


class Format(enum.StrEnum):
    MD = "md"
    HTML = "html"
    JSON = "json"


FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format", help="Default: as the name of --output ends, else md.", show_default=False, case_sensitive=False
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o",
        help="Write there instead of to the terminal. The plots of a Markdown file are written beside it.",
        show_default=False, dir_okay=False,
    ),
]  # fmt: skip
JournalOption = Annotated[
    Path | None,
    typer.Option(
        "--journal", help="Read this copy of a journal, and ask no server.", show_default=False, metavar="FILE"
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        help="Begin: YYYY-MM-DD, with Thh:mm if wanted (UTC), or so far back: 36h, 7d, 4w.", show_default=False
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(help="End, written in the same way. Default: now, or the journal's end.", show_default=False),
]


@report.callback()
def overview(
    context: typer.Context,
    job: Annotated[str | None, typer.Option(help="Of this job only.", show_default=False)] = None,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Report goodput, lost steps, faults by cause, and recovery times by stage; or a document, see the subcommands."""
    if context.invoked_subcommand is not None:
        return
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show
    from keepstep.server.views import Report

    found = ask(state_dir, "report", Report, job=job)
    if json:
        print_json(found)
        return
    show(_jobs(found), "no job yet")
    show(_stages(found), "no recovery yet")


@report.command("incident")
def of_incident(
    incident: Annotated[
        str, typer.Argument(metavar="ID", help="As `keepstep incidents` lists it.", show_default=False)
    ],
    format: FormatOption = None,
    output: OutputOption = None,
    journal: JournalOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Write the post-incident review of one incident: what happened when, why, what it cost, what to follow up."""
    from keepstep.review.incident_paper import incident_paper
    from keepstep.review.postmortem import Postmortem

    found = _ask(state_dir, journal, "postmortem", Postmortem, id=incident)
    _write(found, lambda: incident_paper(found), format, output)


@report.command("week")
def of_week(
    since: SinceOption = None,
    until: UntilOption = None,
    tenant: Annotated[str, typer.Option(help="Of these tenants only, comma-separated.", show_default=False)] = "",
    format: FormatOption = None,
    output: OutputOption = None,
    journal: JournalOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Write the review of the last seven days, or of another span: where time went, what failed, how recoveries went."""
    from keepstep.review.figures import Review
    from keepstep.review.papers import week_paper

    spans = _spans(since, until)
    found = _ask(state_dir, journal, "review", Review, tenant=tenant, **spans)
    _write(found, lambda: week_paper(found), format, output)


@report.command("job")
def of_job(
    job: Annotated[str, typer.Argument(help="As `keepstep jobs` lists it.", show_default=False)],
    since: SinceOption = None,
    until: UntilOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    journal: JournalOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Write the review of one job, over its whole life if no span is given."""
    from keepstep.review.figures import Review
    from keepstep.review.papers import job_paper

    spans = _spans(since, until)
    found = _ask(state_dir, journal, "review", Review, job=job, **spans)
    _write(found, lambda: job_paper(found, job), format, output)


# ---- asking and writing


def _ask(state_dir: str | None, journal: Path | None, what: str, kind: type[Answer], **args: Any) -> Answer:
    from keepstep.cli.reading import ask, ask_file

    if journal is None:
        return ask(state_dir, what, kind, **args)
    return ask_file(journal, what, kind, **args)


def _spans(since: str | None, until: str | None) -> dict[str, float]:
    from keepstep.cli.moments import moment_s

    found = {}
    for name, text in (("since_s", since), ("until_s", until)):
        if text is not None:
            try:
                found[name] = moment_s(text)
            except ValueError as error:
                fail(str(error), 2)
    return found


def _write(found: "Struct", paper: "Any", format: Format | None, output: Path | None) -> None:
    """As JSON the struct itself, else the document that ``paper`` makes of it."""
    import msgspec

    from keepstep.review.document import render_html, render_md

    kind = format or _by_name(output)
    if kind is Format.JSON:
        text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"
    elif kind is Format.HTML:
        text = render_html(paper())
    else:
        text = _markdown(paper(), output, render_md)
    if output is None:
        typer.echo(text, nl=False)
        return
    _save(output, text)
    typer.echo(f"written to {output}", err=True)


def _by_name(output: Path | None) -> Format:
    ending = output.suffix.lower().lstrip(".") if output is not None else ""
    return {"html": Format.HTML, "htm": Format.HTML, "json": Format.JSON}.get(ending, Format.MD)


def _markdown(document: "Document", output: Path | None, render: "Any") -> str:
    def beside(number: int, plot: "Plot") -> str:
        assert output is not None
        name = f"{output.stem}-{number}.svg"
        _save(output.with_name(name), plot.svg)
        return name

    return str(render(document, beside if output is not None else None))


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}")


# ---- the tables of the overview


def _jobs(found: "Report") -> "Table":
    from keepstep.cli.tables import table

    columns = ("job", "state", "elapsed", "goodput", "down", "lost", "faults", "restored")
    made = table(*columns, flexible=("job", "faults", "restored"))
    for job in found.jobs:
        made.add_row(
            job.job,
            job.state,
            seconds(job.elapsed_s),
            "–" if job.goodput is None else f"{job.goodput:.2%}",
            seconds(job.downtime_s),
            str(job.lost_steps),
            _counts(job.by_cause).replace("_", " ") if job.by_cause else str(job.faults),
            _counts(job.restored_from),
        )
    return made


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "–"


def _stages(found: "Report") -> "Table":
    from keepstep.cli.tables import table

    made = table("recovery stage", "recoveries", "p50", "p95", flexible=())
    for stage in found.stages:
        made.add_row(stage.stage, str(stage.count), seconds(stage.p50_s), seconds(stage.p95_s))
    return made
