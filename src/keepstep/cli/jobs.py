"""``keepstep jobs``, ``ranks``, ``resources`` and ``holds``: what there is. Owns their tables."""

from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.present import LIMIT, LimitOption, WatchOption, cut, noted, present, rows_or
from keepstep.cli.terminal import JsonOption, StateDirOption, fail, moment, step

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keepstep.server.views import Holds, Jobs, Resources, ResourceView
    from keepstep.server.whereabouts import Whereabouts


def jobs(
    state: Annotated[
        str, typer.Option(help="In this state only: running, recovering, failed, …", show_default=False)
    ] = "",
    find: Annotated[str, typer.Option(help="With this in the name.", metavar="TEXT", show_default=False)] = "",
    live: Annotated[bool, typer.Option("--live", help="Only those that are not over.")] = False,
    limit: LimitOption = LIMIT,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
    watch: WatchOption = None,
) -> None:
    """List jobs: state, size, step, checkpoint, incidents (drills too). The newest stand last."""
    from keepstep.cli.reading import ask_list
    from keepstep.core.job import JobState
    from keepstep.server.views import Jobs

    known = [one.value for one in JobState]
    if state and state not in known:
        fail(f"there is no state {state!r}; there are {', '.join(known)}", 2)
    empty = "no job fits" if state or find or live else "no job yet"
    present(
        lambda: ask_list(state_dir, "jobs", Jobs, "jobs", limit, state=state, q=find, live=True if live else None),
        lambda found: _jobs(found, empty),
        json=json, watch=watch,
    )  # fmt: skip


def _jobs(found: "Jobs", empty: str = "no job yet") -> list["RenderableType"]:
    from keepstep.cli.tables import table

    columns = ("job", "state", "ranks", "gen", "step", "saved", "incidents", "since")
    made = table(*columns, flexible=("job",))
    for job in reversed(found.jobs):
        state = f"{job.state} ({job.exit_code})" if job.exit_code is not None else job.state
        made.add_row(
            job.id,
            state,
            f"{job.ranks} on {job.nodes}" if job.ranks else "–",
            str(job.generation),
            step(job.step),
            step(job.checkpoint_step),
            str(job.incidents),
            moment(job.submitted_s)[5:16],
        )
    slower = [f"{job.id} is slower: {job.slower}" for job in reversed(found.jobs) if job.slower]
    return [rows_or(made, empty), *cut(found.total, len(found.jobs)), *slower, *noted(found.note)]


def resources(
    node: Annotated[str, typer.Option(help="Of this node only.", show_default=False)] = "",
    state: Annotated[str, typer.Option(help="In this state only: in_service, quarantined, …", show_default=False)] = "",
    find: Annotated[
        str, typer.Option(help="With this in the id or the serial number.", metavar="TEXT", show_default=False)
    ] = "",
    limit: LimitOption = LIMIT,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
    watch: WatchOption = None,
) -> None:
    """List nodes and devices: state, holds and whose they are."""
    from keepstep.cli.reading import ask_list
    from keepstep.server.views import Resources

    empty = "no node or device fits" if node or state or find else "no node has joined yet"
    present(
        lambda: ask_list(state_dir, "resources", Resources, "resources", limit, node=node, state=state, q=find),
        lambda found: _resources(found, empty),
        json=json, watch=watch,
    )  # fmt: skip


def _resources(found: "Resources", empty: str) -> list["RenderableType"]:
    from keepstep.cli.tables import table

    made = table("resource", "state", "takes work", "failures", "held by", "incident", flexible=("resource", "held by"))
    for item in found.resources:
        made.add_row(
            item.id,
            item.state,
            "yes" if item.allocatable else "no",
            str(item.failures),
            _held_by(item),
            item.incident or "–",
        )
    return [rows_or(made, empty), *cut(found.total, len(found.resources))]


def _held_by(item: "ResourceView") -> str:
    if item.holds:
        return "\n".join(f"{hold.source}: {hold.reason}" for hold in item.holds)
    # It is sound and nobody holds it: what is left is its node, which has a row of its own.
    return "its node" if not item.allocatable and item.state == "in_service" else "–"


def holds(
    source: Annotated[
        str, typer.Option(help="Only of those whose name begins so: person:, keepstep:, gate.", show_default=False)
    ] = "",
    limit: LimitOption = LIMIT,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
    watch: WatchOption = None,
) -> None:
    """List holds: what keeps work off which part, whose it is, and why. Its owner alone can lift it."""
    from keepstep.cli.reading import ask_list
    from keepstep.server.views import Holds

    present(lambda: ask_list(state_dir, "holds", Holds, "holds", limit, source=source), _holds, json=json, watch=watch)


def _holds(found: "Holds") -> list["RenderableType"]:
    from keepstep.cli.tables import table

    made = table("resource", "state", "held by", "since", "why", flexible=("resource", "held by", "why"))
    for line in found.holds:
        made.add_row(line.resource, line.state, line.source, moment(line.since_s)[5:16], line.reason or "–")
    return [rows_or(made, "nothing is held"), *cut(found.total, len(found.holds))]


def ranks(
    job: Annotated[str, typer.Argument(metavar="JOB", help="As `keepstep jobs` lists it.", show_default=False)],
    state_dir: StateDirOption = None,
    json: JsonOption = False,
    watch: WatchOption = None,
) -> None:
    """List the ranks of a job: process, node, card by every name, rack and switch, open faults there."""
    from keepstep.cli.reading import ask
    from keepstep.server.whereabouts import Whereabouts

    present(lambda: ask(state_dir, "ranks", Whereabouts, job=job), _ranks, json=json, watch=watch)


def _ranks(found: "Whereabouts") -> list["RenderableType"]:
    from keepstep.cli.tables import table

    made = table(
        "rank", "pid", "device", "serial", "also called", "shares", "faults", flexible=("also called", "shares")
    )
    for one in found.ranks:
        shares = ", ".join(f"{kind} {name}" for kind, name in one.domains.items())
        names, faults = ", ".join(one.names), ", ".join(one.faults)
        made.add_row(
            str(one.rank), str(one.pid or "–"), one.device, one.serial, names or "–", shares or "–", faults or "–"
        )
    return [rows_or(made, "no rank of it is placed now")]
