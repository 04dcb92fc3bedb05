"""What ``keepstep diagnose`` prints for a person. Owns words and order only."""

from typing import TYPE_CHECKING

from keepstep.core.catalog.row import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keepstep.core.root_cause import RootCause
    from keepstep.core.signal import Signal
    from keepstep.evidence.diagnosis import Diagnosed

MAX_EVIDENCE = 12
MAX_UNREAD = 8
HEADING_COLUMNS = 12


def render(found: "Diagnosed", *, all_signals: bool) -> "list[RenderableType]":
    """One incident, then what else was found, then what was not understood."""
    from rich.text import Text

    parts: list[RenderableType] = [Text(_read_line(found), style="dim")]
    if not found.readings:
        parts.append(Text("nothing here is evidence in a form that is known; see `keepstep diagnose --help`"))
    elif not found.incidents:
        parts.append(Text("no fault found in what was read", style="bold"))
    for number, cause in enumerate(found.incidents):
        parts += _incident(cause, found, first=number == 0)
    parts += _rest(found, all_signals=all_signals)
    return parts


def _read_line(found: "Diagnosed") -> str:
    records = sum(reading.records for reading in found.readings)
    forms = sorted({reading.reader for reading in found.readings})
    return f"{_counted(len(found.readings), 'file')} read ({_counted(records, 'record')}) as {', '.join(forms) or 'nothing'}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _incident(cause: "RootCause", found: "Diagnosed", *, first: bool) -> "list[RenderableType]":
    from rich.text import Text

    row = cause.row
    head = "incident" if first else "also"
    lines = [
        f"cause       {row.cause.value} ({row.failure_class}), {cause.confidence:.0%} sure",
        f"scope       {row.scope.value}: {cause.resource}",
        f"resource    {cause.resource_action}",
        f"job         {cause.job_action}",
    ]
    lines += [f"for         {_told(signal)}" for signal in cause.signals[:MAX_EVIDENCE]]
    if len(cause.signals) > MAX_EVIDENCE:
        lines.append(f"            … and {len(cause.signals) - MAX_EVIDENCE} more")
    lines += [f"explains    {_told(signal)}" for signal in cause.explained[:MAX_EVIDENCE]]
    lines += [f"against     {x.text} ({x.file})" for x in found.against.get(cause.resource, [])[:MAX_EVIDENCE]]
    if row.corroborate:
        lines.append(f"look at     {row.corroborate}")
    return [Text(f"\n{head}: {cause.summary}", style="bold"), *(_hanging(x) for x in lines)]


def _hanging(line: str) -> "RenderableType":
    """A line whose continuation stands below its text, not below its heading."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=0)
    grid.add_column(width=HEADING_COLUMNS, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(line[:HEADING_COLUMNS]), Text(line[HEADING_COLUMNS:]))
    return Padding(grid, (0, 0, 0, 2))


def _told(signal: "Signal") -> str:
    seen = signal.seen
    where = f"{seen.file}:{seen.line}" if seen.line else seen.file
    many = f" x{seen.count}" if seen.count > 1 else ""
    why = f" [{signal.because[-1]}]" if signal.because else ""
    return f"{seen.signal}{many}: {seen.detail}{why} ({where})"


def _rest(found: "Diagnosed", *, all_signals: bool) -> "list[RenderableType]":
    from rich.text import Text

    told = {id(signal) for cause in found.incidents for signal in (*cause.signals, *cause.explained)}
    others = [s for s in found.signals if id(s) not in told and (all_signals or s.row.verdict is Verdict.WATCH)]
    parts: list[RenderableType] = []
    if others:
        parts.append(Text("\nseen, and no fault by itself", style="bold"))
        parts += [Text(f"  {s.row.verdict.value:7} {_told(s)}") for s in others[:50]]
        if len(others) > 50:
            parts.append(Text(f"  … and {len(others) - 50} more; --json has all"))
    puzzled = [(r.file, line, text) for r in found.readings for line, text in r.not_understood]
    if puzzled:
        count = sum(reading.not_understood_count for reading in found.readings)
        parts.append(Text(f"\nnot understood: {count} records", style="bold"))
        parts += [Text(f"  {file}:{line}: {text}") for file, line, text in puzzled[:MAX_UNREAD]]
    if found.unread:
        parts.append(Text(f"\nnot read: {_counted(len(found.unread), 'file')} in no form that is known", style="bold"))
        parts += [Text(f"  {name}") for name in found.unread[:MAX_UNREAD]]
    if found.missing and (found.incidents or not found.readings):
        parts.append(Text("\nwhat would help", style="bold"))
        parts += [Text(f"  {text}") for text in found.missing]
    return parts
