"""``keepstep incidents``, ``approvals`` and ``incident show``. Owns their tables; all content comes from the read side."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from keepstep.cli.present import LIMIT, LimitOption, WatchOption, cut, noted, present, rows_or
from keepstep.cli.terminal import JsonOption, StateDirOption, fail, moment, seconds, step

if TYPE_CHECKING:
    import enum

    from rich.console import RenderableType

    from keepstep.server.views import ActionView, AttemptView, IncidentLine, IncidentReport, Incidents, OrderView

incident = typer.Typer(help="One incident, from evidence to verdict.", no_args_is_help=True)


def incidents(
    job: Annotated[str | None, typer.Option(help="Of this job only.", show_default=False)] = None,
    node: Annotated[str, typer.Option(help="Of this node only: a suspect in it, or lost.", show_default=False)] = "",
    state: Annotated[
        str, typer.Option(help="In this state only: waiting, recovered, escalated, …", show_default=False)
    ] = "",
    cause: Annotated[str, typer.Option(help="Of this cause only: device, network, …", show_default=False)] = "",
    find: Annotated[
        str, typer.Option(help="With this in id, job, summary or resources.", metavar="TEXT", show_default=False)
    ] = "",
    since: Annotated[
        str | None,
        typer.Option(
            help="Open, or ended since then: YYYY-MM-DD, with Thh:mm if wanted (UTC), or so far back: 36h, 7d, 4w.",
            show_default=False,
        ),
    ] = None,
    open: Annotated[bool, typer.Option("--open", help="Only those that are open.")] = False,
    starts: Annotated[bool, typer.Option("--starts", help="Also the first start of each job.")] = False,
    limit: LimitOption = LIMIT,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
    watch: WatchOption = None,
) -> None:
    """List incidents: cause, what was restored, what it cost. The newest stand last."""
    from keepstep.cli.reading import ask_list
    from keepstep.core.incident import Cause, IncidentState
    from keepstep.server.views import Incidents

    _check("state", state, IncidentState)
    _check("cause", cause, Cause)
    asked: dict[str, Any] = {"job": job, "node": node, "state": state, "cause": cause, "q": find, "starts": starts}
    asked |= {"open": True} if open else {}
    asked |= {"since_s": _begin(since)} if since is not None else {}
    narrow = bool(job or node or state or cause or find or since is not None or open)
    present(
        lambda: ask_list(state_dir, "incidents", Incidents, "incidents", limit, **asked),
        lambda found: _incidents(found, "no incident fits" if narrow else "no incident"),
        json=json, watch=watch,
    )  # fmt: skip


def _check(what: str, value: str, known: "type[enum.Enum]") -> None:
    names = [one.value for one in known]
    if value and value not in names:
        fail(f"there is no {what} {value!r}; there are {', '.join(names)}", 2)


def _begin(since: str) -> float:
    from keepstep.cli.moments import moment_s

    try:
        return moment_s(since)
    except ValueError as error:
        fail(str(error), 2)


def _incidents(found: "Incidents", empty: str = "no incident") -> list["RenderableType"]:
    from keepstep.cli.tables import table

    columns = ("incident", "job", "state", "cause", "what", "lost", "took")
    made = table(*columns, flexible=("job", "what"))
    for line in reversed(found.incidents):
        made.add_row(
            line.id,
            line.job,
            line.state,
            line.cause or "–",
            _what(line) or ("first start" if line.kind == "start" else "–"),
            step(line.lost_steps),
            seconds(line.downtime_s),
        )
    return [rows_or(made, empty), *cut(found.total, len(found.incidents)), *noted(found.note)]


def _what(line: "IncidentLine") -> str:
    summary = line.summary.partition(" (")[0]
    return f"drill: {summary}" if line.drill else summary


def approvals(state_dir: StateDirOption = None, json: JsonOption = False, watch: WatchOption = None) -> None:
    """List what waits for a person: `keepstep approve ID` lets it go on, `keepstep deny ID` refuses."""
    from keepstep.cli.reading import ask_list
    from keepstep.server.views import Incidents

    present(
        lambda: ask_list(
            state_dir, "incidents", Incidents, "incidents", 0, state="waiting", open=True, starts=True
        ),
        _approvals, json=json, watch=watch,
    )  # fmt: skip


def _approvals(found: "Incidents") -> list["RenderableType"]:
    from keepstep.cli.tables import table

    made = table("incident", "job", "waits for", "what", "since", flexible=("job", "waits for", "what"))
    for line in reversed(found.incidents):
        made.add_row(line.id, line.job, line.waits_for, line.summary or "–", moment(line.opened_s)[5:16])
    return [rows_or(made, "nothing waits for a person")]


@incident.command("show")
def show_incident(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `keepstep incidents` lists it.", show_default=False)],
    state_dir: StateDirOption = None,
    json: JsonOption = False,
    watch: WatchOption = None,
) -> None:
    """Show one incident: cause, evidence, what was done and why, what it cost."""
    from keepstep.cli.reading import ask
    from keepstep.server.views import IncidentReport

    present(lambda: ask(state_dir, "incident", IncidentReport, id=id), render, json=json, watch=watch)


def render(report: "IncidentReport") -> list["RenderableType"]:
    """The whole report of an incident, for a console."""
    parts = _head(report)
    for number, attempt in enumerate(report.attempts, start=1):
        if attempt.cause or attempt.new_generation:
            parts += _attempt(number, len(report.attempts), attempt)
    return parts + _actions(report) + _stages(report)


def _head(report: "IncidentReport") -> list["RenderableType"]:
    from rich.text import Text

    line = report.incident
    what = "start of" if line.kind == "start" else "fault in"
    took = f" · {seconds(line.downtime_s)} down · {line.lost_steps} steps lost" if line.closed_s is not None else ""
    parts: list[RenderableType] = [
        Text(f"{line.id} · {what} job {line.job} · {line.state}{took}", style="bold"),
        Text(
            f"opened {moment(line.opened_s)}, closed {moment(line.closed_s)}, job was at step {step(line.step_before)}"
        ),
    ]
    if line.drill:
        parts.append(Text(f"a drill: nothing failed by itself; keepstep drill show {line.drill}"))
    if line.verdict:
        verified = f" (verified at step {step(report.verified_step)})" if line.state == "recovered" else ""
        parts.append(Text(f"verdict: {line.verdict}{verified}"))
    if line.waits_for:
        parts.append(Text(f"waits for: {line.waits_for}"))
    if line.state == "waiting":
        parts.append(Text(f"answer: keepstep approve {line.id}, or keepstep deny {line.id}"))
    return parts


def _attempt(number: int, of: int, attempt: "AttemptView") -> list["RenderableType"]:
    from rich.padding import Padding
    from rich.text import Text

    title = f"attempt {number} of {of}" if of > 1 else "diagnosis"
    lines: list[str] = []
    if attempt.cause:
        lines.append(f"cause: {attempt.cause} ({attempt.confidence:.0%} sure): {attempt.summary}")
    if attempt.fault:
        lines.append(f"fault: {attempt.fault} (keepstep fault show {attempt.fault})")
    if attempt.resources:
        lines.append(f"resource: {', '.join(attempt.resources)}")
    if attempt.lost_nodes:
        lines.append(f"lost: {', '.join(attempt.lost_nodes)}")
    if attempt.culprits:
        lines.append(f"ranks at fault: {', '.join(map(str, attempt.culprits))}")
    for supports, heading in ((True, "evidence for"), (False, "evidence against")):
        lines += [
            f"{heading}: {e.text} ({e.source}, entry {e.entry})" for e in attempt.evidence if e.supports is supports
        ]
    if attempt.fenced:
        lines.append("fenced: " + ", ".join(f"{node} ({proof})" for node, proof in attempt.fenced.items()))
    lines += [f"passed over: {key}, did not verify" for key in attempt.rejected]
    if attempt.new_generation:
        lines.append(_restored(attempt))
    return [Text(f"\n{title}", style="bold"), *(Padding(Text(text), (0, 0, 0, 2)) for text in lines)]


def _restored(attempt: "AttemptView") -> str:
    source = f"step {attempt.restore_step} from {attempt.restore_tier}" if attempt.restore_tier else "nothing (step 0)"
    key = f" ({attempt.restore_key})" if attempt.restore_key else ""
    how = f"{attempt.warm_nodes} warm" + (f", {attempt.cold_nodes} cold" if attempt.cold_nodes else "")
    return f"generation {attempt.new_generation} started from {source}{key}; nodes: {how}"


def _actions(report: "IncidentReport") -> list["RenderableType"]:
    from rich.text import Text

    from keepstep.cli.tables import table

    made = table("after", "stage", "why", "orders", flexible=("why", "orders"))
    for action in report.actions:
        made.add_row(seconds(action.after_s), action.stage, action.reason, _orders(action))
    return [Text("\nwhat was done, and why", style="bold"), made]


def _orders(action: "ActionView") -> str:
    return "\n".join(_order(order) for order in action.orders)


def _order(order: "OrderView") -> str:
    answer = f"{order.answer}, {seconds(order.took_s)}" if order.answer else "open"
    where = f" {order.node}" if order.node else ""
    return f"#{order.number} {order.kind}{where}: {answer}"


def _stages(report: "IncidentReport") -> list["RenderableType"]:
    from rich.text import Text

    spent = " · ".join(f"{stage.stage} {seconds(stage.seconds)}" for stage in report.stages)
    return [Text("time per stage", style="bold"), Text(f"  {spent or '–'}")]
