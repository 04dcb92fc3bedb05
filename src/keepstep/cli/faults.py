"""``keepstep faults``, ``keepstep fault show`` and ``keepstep nodes``. Owns their tables; all content is the read side's."""

from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.present import LIMIT, LimitOption, WatchOption, cut, noted, present, rows_or
from keepstep.cli.terminal import JsonOption, StateDirOption, moment, print_json, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keepstep.server.fault_views import FaultReport, Faults, Nodes

fault = typer.Typer(help="One fault: a root cause on a resource or a domain.", no_args_is_help=True)


def faults(
    closed: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    find: Annotated[
        str, typer.Option(help="With this in the id or the resource.", metavar="TEXT", show_default=False)
    ] = "",
    limit: LimitOption = LIMIT,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
    watch: WatchOption = None,
) -> None:
    """List faults: root causes on resources, racks, switches and dependencies, with or without a job."""
    from keepstep.cli.reading import ask_list
    from keepstep.server.fault_views import Faults

    empty = "no fault fits" if find else "no fault" if closed else "no open fault"
    present(
        lambda: ask_list(state_dir, "faults", Faults, "faults", limit, closed=closed, q=find),
        lambda found: _faults(found, empty),
        json=json, watch=watch,
    )  # fmt: skip


def _faults(found: "Faults", empty: str) -> list["RenderableType"]:
    from keepstep.cli.tables import table

    made = table("fault", "resource", "class", "sure", "what", "acts", flexible=("resource", "class", "what", "acts"))
    for item in reversed(found.faults):
        state = "" if item.state == "open" else f" ({item.state})"
        acts = f"{item.resource_action}; job: {item.job_action}"
        what = f"{item.text} (seen {item.count}x)"
        made.add_row(item.id + state, item.resource, item.failure_class, f"{item.confidence:.0%}", what, acts)
    return [rows_or(made, empty), *cut(found.total, len(found.faults)), *noted(found.note)]


@fault.command("show")
def show_fault(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `keepstep faults` lists it.", show_default=False)],
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Show one fault: cause, evidence, what was held, which jobs it hit."""
    from keepstep.cli.reading import ask
    from keepstep.server.fault_views import FaultReport

    found = ask(state_dir, "fault", FaultReport, id=id)
    if json:
        print_json(found)
        return
    for line in _lines(found):
        typer.echo(line)


def _lines(found: "FaultReport") -> list[str]:
    item = found.fault
    lines = [
        f"{item.id} · {item.resource} · {item.state} · {item.text}",
        f"  cause      {item.cause} ({item.failure_class}), scope {item.scope}, {item.confidence:.0%} sure: {item.verdict}",
        f"  resource   {item.resource_action}; held: {', '.join(item.held) or 'nothing'}",
        f"  job        {item.job_action}; incidents: {', '.join(item.incidents) or 'none'}",
        f"  opened     {moment(item.opened_s)}, last seen {moment(item.last_s)}, closed {moment(item.closed_s)}",
        f"  evidence   {item.count} signals ({', '.join(item.signals)}), entries {', '.join(map(str, found.entries[:12]))}",
    ]
    if item.group or item.members:
        lines.append(
            f"  together   {'explained by ' + item.group if item.group else 'explains ' + ', '.join(item.members)}"
        )
    if item.outcome:
        lines.append(f"  outcome    {item.outcome}")
    lines += [f"  +{seconds(action.after_s):>9}  {action.stage}: {action.reason}" for action in found.actions]
    return lines


def nodes(
    find: Annotated[str, typer.Option(help="With this in the name.", metavar="TEXT", show_default=False)] = "",
    limit: LimitOption = LIMIT,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
    watch: WatchOption = None,
) -> None:
    """List nodes: who hears them and what that means, what their agents can see, open faults."""
    from keepstep.cli.reading import ask_list
    from keepstep.server.fault_views import Nodes

    empty = "no node fits" if find else "no node has joined yet"
    present(
        lambda: ask_list(state_dir, "nodes", Nodes, "nodes", limit, q=find),
        lambda found: _nodes(found, empty),
        json=json, watch=watch,
    )  # fmt: skip


def _nodes(found: "Nodes", empty: str) -> list["RenderableType"]:
    from keepstep.cli.tables import table

    made = table("node", "means", "agent", "power", "sees", "does not see", "faults", flexible=("sees", "does not see"))
    for item in found.nodes:
        sees = [x.source for x in item.coverage if x.state == "seen"]
        blind = [f"{x.source} ({x.state})" for x in item.coverage if x.state != "seen"]
        made.add_row(
            item.node,
            item.means,
            item.agent,
            item.power or "–",
            ", ".join(sees) or "–",
            ", ".join(blind) or "–",
            ", ".join(item.faults) or "–",
        )
    return [rows_or(made, empty), *cut(found.total, len(found.nodes))]
