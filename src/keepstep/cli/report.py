"""``keepstep report``: what faults cost and how long recovery took. Owns its tables; no arithmetic."""

from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, print_json, seconds

if TYPE_CHECKING:
    from rich.table import Table

    from keepstep.server.views import Report


def report(
    job: Annotated[str | None, typer.Option(help="Of this job only.", show_default=False)] = None,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Report goodput, lost steps, faults by cause, and recovery times by stage."""
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show
    from keepstep.server.views import Report

    found = ask(state_dir, "report", Report, job=job)
    if json:
        print_json(found)
        return
    show(_jobs(found), "no job yet")
    show(_stages(found), "no recovery yet")


def _jobs(found: "Report") -> "Table":
    from keepstep.cli.tables import table

    columns = ("job", "state", "elapsed", "goodput", "down", "lost", "faults", "causes", "restored")
    made = table(*columns, flexible=("job", "causes", "restored"))
    for job in found.jobs:
        made.add_row(
            job.job,
            job.state,
            seconds(job.elapsed_s),
            "–" if job.goodput is None else f"{job.goodput:.2%}",
            seconds(job.downtime_s),
            str(job.lost_steps),
            str(job.faults),
            _counts(job.by_cause),
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
