"""``keepstep jobs``, ``ranks`` and ``resources``: what there is. Owns their tables."""

from typing import Annotated

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, moment, print_json, step


def jobs(state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """List jobs: state, size, step, checkpoint, faults."""
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show, table
    from keepstep.server.views import Jobs

    found = ask(state_dir, "jobs", Jobs)
    if json:
        print_json(found)
        return
    columns = ("job", "state", "ranks", "gen", "step", "saved", "faults", "submitted", "script")
    made = table(*columns, flexible=("job", "submitted", "script"))
    for job in found.jobs:
        state = f"{job.state} ({job.exit_code})" if job.exit_code is not None else job.state
        made.add_row(
            job.id,
            state,
            f"{job.ranks} on {job.nodes}" if job.ranks else "–",
            str(job.generation),
            step(job.step),
            step(job.checkpoint_step),
            str(job.incidents),
            moment(job.submitted_s),
            " ".join(job.argv),
        )
    show(made, "no job yet")
    for job in found.jobs:
        if job.slower:
            typer.echo(f"{job.id} is slower: {job.slower}")


def resources(state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """List nodes and devices: state, holds and whose they are."""
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show, table
    from keepstep.server.views import Resources

    found = ask(state_dir, "resources", Resources)
    if json:
        print_json(found)
        return
    made = table("resource", "state", "takes work", "failures", "held by", "incident", flexible=("resource", "held by"))
    for item in found.resources:
        made.add_row(
            item.id,
            item.state,
            "yes" if item.allocatable else "no",
            str(item.failures),
            "\n".join(f"{hold.source}: {hold.reason}" for hold in item.holds) or "–",
            item.incident or "–",
        )
    show(made, "no node has joined yet")


def ranks(
    job: Annotated[str, typer.Argument(metavar="JOB", help="As `keepstep jobs` lists it.", show_default=False)],
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """List the ranks of a job: process, node, card by every name, rack and switch, open faults there."""
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show, table
    from keepstep.server.whereabouts import Whereabouts

    found = ask(state_dir, "ranks", Whereabouts, job=job)
    if json:
        print_json(found)
        return
    made = table(
        "rank", "pid", "device", "serial", "also called", "shares", "faults", flexible=("also called", "shares")
    )
    for one in found.ranks:
        shares = ", ".join(f"{kind} {name}" for kind, name in one.domains.items())
        names, faults = ", ".join(one.names), ", ".join(one.faults)
        made.add_row(
            str(one.rank), str(one.pid or "–"), one.device, one.serial, names or "–", shares or "–", faults or "–"
        )
    show(made, f"no rank of {job} is placed now")
