"""``keepstep drill``: begin one, wait for it, read its marks. Owns the words and tables; all content is the read side's.

Nothing is injected from here: the server judges, and orders a launcher to do it.
"""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.present import LIMIT, LimitOption, WatchOption, cut, present, rows_or
from keepstep.cli.terminal import JsonOption, StateDirOption, fail, moment, print_json, seconds
from keepstep.core.drill import KINDS, DrillKind

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keepstep.server.drill_views import DrillReport, Drills, DrillView
    from keepstep.server.views import Live

drill = typer.Typer(help="Drills: real faults on purpose, and how well each was recovered from.", no_args_is_help=True)

CODES = {"passed": 0, "failed": 1, "called_off": 75}
"""State in which a drill ends -> exit code of ``--wait``."""
LOOK_S = 0.5
GOOD, BAD = "✓", "✗"


@drill.command("run")
def run(
    job: Annotated[str, typer.Argument(help="As `keepstep jobs` lists it.", show_default=False)],
    kind: Annotated[
        DrillKind, typer.Option(help="; ".join(f"{name}: {does}" for name, does in KINDS.items()), show_default=False)
    ],
    rank: Annotated[
        int | None,
        typer.Option(
            help="Whom to hit; of lose-node, a rank on the node. The server picks where it is left out.", min=0,
            max=2**31, show_default=False,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until it is over: exit code 0 passed, 1 failed, 75 called off.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Inject a fault into a running job, to see it recovered from. It is real: the job stops and starts again."""
    from keepstep.cli.reading import act, ask
    from keepstep.server.views import Live
    from keepstep.wire.requests import BeginDrill

    if not yes:
        _ask(job, kind, rank, ask(state_dir, "live", Live, job=job))
    accepted = act(state_dir, BeginDrill(job=job, kind=kind, rank=rank))
    if wait:
        raise typer.Exit(_wait(accepted.subject, state_dir, json))
    if json:
        print_json(accepted)
    else:
        typer.echo(f"{accepted.subject} begins; see how it goes: keepstep drill show {accepted.subject}")


def _ask(job: str, kind: DrillKind, rank: int | None, live: "Live") -> None:
    """Ends the program where nobody agrees."""
    for line in _consequences(job, kind, rank, live):
        typer.echo(line, err=True)
    if not sys.stdin.isatty():
        fail("nothing was begun: nobody is there to agree to it; say --yes where that is what you want", 2)
    if not typer.confirm("Begin?", err=True):
        fail("nothing was begun")


def _consequences(job: str, kind: DrillKind, rank: int | None, live: "Live") -> list[str]:
    if rank is None:
        whom = "a node that the server picks" if kind == "lose-node" else "a rank that the server picks"
    else:
        node = next((x.node for x in live.ranks if x.rank == rank), "")
        on = f" on {node}" if node else ""
        whom = f"the node of rank {rank}{f' ({node})' if node else ''}" if kind == "lose-node" else f"rank {rank}{on}"
    return [
        f"{kind} against {whom} of job {job}: {KINDS[kind]}.",
        f"It is a real fault: all {len(live.ranks)} ranks stop, and start again from the newest state that is whole.",
        _cost(live),
    ]


def _cost(live: "Live") -> str:
    if live.checkpoint_step < 0:
        return "No checkpoint is known: what is not in the memory of the nodes is done again from step 0."
    age = f", {seconds(live.checkpoint_age_s)} old" if live.checkpoint_age_s is not None else ""
    lost = max(0, live.step - live.checkpoint_step)
    return f"Its newest checkpoint is step {live.checkpoint_step}{age}: at most about {lost} steps are done again."


def _wait(id: str, state_dir: str | None, json: bool) -> int:
    """Tells each move until it is over; the exit code."""
    from keepstep.cli.reading import ask
    from keepstep.server.drill_views import DrillReport

    last = ""
    try:
        while True:
            found = ask(state_dir, "drill", DrillReport, id=id)
            state = found.drill.state
            if state in CODES:
                break
            if state != last:
                typer.echo(f"{id} {_now(found.drill)}", err=True)
            last = state
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        fail(f"{id} goes on without you; see keepstep drill show {id}", 130)
    _shown(found, json)
    return CODES[state]


def _now(item: "DrillView") -> str:
    match item.state:
        case "waiting":
            return f"waits for job {item.job} to be steady"
        case "injected":
            return f"was injected: {item.kind} against {_target(item)}"
        case _:
            return f"is being recovered from: {item.incident}"


@drill.command("list")
def list_drills(
    job: Annotated[str, typer.Option(help="Of this job only.", show_default=False)] = "",
    limit: LimitOption = LIMIT,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
    watch: WatchOption = None,
) -> None:
    """List drills: what is under way, and how the last ones ended."""
    from keepstep.cli.reading import ask_list
    from keepstep.server.drill_views import Drills

    present(lambda: ask_list(state_dir, "drills", Drills, "drills", limit, job=job), _drills, json=json, watch=watch)


def _drills(found: "Drills") -> list["RenderableType"]:
    from keepstep.cli.tables import table

    made = table(
        "drill", "job", "kind", "against", "state", "asked", "marks", "what", flexible=("job", "against", "what")
    )
    for item in reversed(found.drills):
        made.add_row(
            item.id,
            item.job,
            item.kind,
            _target(item),
            item.state.replace("_", " "),
            moment(item.asked_s)[5:16],
            "".join(GOOD if mark.good else BAD for mark in item.marks) or "–",
            item.incident if item.state == "passed" else item.reason or item.incident or "–",
        )
    empty = "no drill yet; `keepstep drill run JOB --kind kill-rank` begins one"
    return [rows_or(made, empty), *cut(found.total, len(found.drills))]


@drill.command("show")
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `keepstep drill list` has it.", show_default=False)],
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Show one drill: what was done, its marks beside the limits of the policy, its incident."""
    from keepstep.cli.reading import ask
    from keepstep.server.drill_views import DrillReport

    _shown(ask(state_dir, "drill", DrillReport, id=id), json)


def _shown(found: "DrillReport", json: bool) -> None:
    if json:
        print_json(found)
        return
    for line in _lines(found):
        typer.echo(line)


def _lines(found: "DrillReport") -> list[str]:
    item = found.drill
    limits = {"detected": found.limits.detect_s, "recovered": found.limits.recover_s}
    lines = [
        f"{item.id} · {item.kind} of job {item.job} · {item.state.replace('_', ' ')}",
        f"  does       {found.does}",
        f"  against    {_target(item)}, asked for by {item.by}",
        f"  asked      {moment(item.asked_s)}, injected {moment(item.injected_s)}, over {moment(item.ended_s)}",
        f"  took       noticed after {seconds(found.times.detected_after_s)}, {seconds(found.times.downtime_s)} without "
        f"progress",
    ]
    if item.incident:
        lines.append(f"  incident   {item.incident} (keepstep incident show {item.incident})")
    for mark in item.marks:
        limit = f" (limit {seconds(limits[mark.question])})" if mark.question in limits else ""
        lines.append(f"  {GOOD if mark.good else BAD} {mark.question:<10}{mark.text}{limit}")
    if item.reason and not item.marks:
        lines.append(f"  why        {item.reason}")
    told = found.actions[:-1] if item.marks else found.actions  # the marks say what the last one says
    lines += [f"  +{seconds(action.after_s):>9}  {action.reason}" for action in told]
    return lines


def _target(item: "DrillView") -> str:
    if item.rank is None:
        return item.node or "–"
    return f"rank {item.rank} on {item.node}" if item.node else f"rank {item.rank}"
