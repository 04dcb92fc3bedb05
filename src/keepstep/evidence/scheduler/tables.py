"""Tables of ``sinfo``, ``squeue`` and ``sacct``: with bars, with blanks, with or without a header, broken lines included.

A cell may hold line breaks (job names do): a line with too few cells goes on in the next one. What stays broken is counted and
skipped.
"""

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading
from keepstep.evidence.scheduler.states import Job, Node, Tally, is_node_state, job_state, tell_job, tell_node

MAX_PIECES = 64
_NODE_COLUMNS = ("nodelist", "hostnames", "nodes", "node", "hostname")
_JOB_COLUMNS = ("jobid", "jobidraw", "job_id", "id")
_KNOWN = frozenset(
    [
        "avail",
        "partition",
        "timelimit",
        "nodes",
        "state",
        "nodelist",
        "reason",
        "user",
        "timestamp",
        "jobid",
        "jobidraw",
        "jobname",
        "name",
        "st",
        "time",
        "cpus",
        "memory",
        "gres",
        "hostnames",
        "account",
        "alloccpus",
        "exitcode",
        "s:c:t",
        "tmp_disk",
        "weight",
        "avail_fe",
        "features",
        "node",
        "statelong",
        "statecompact",
        "nodelist(reason)",
        "elapsed",
        "qos",
        "start",
        "end",
        "submit",
        "ncpus",
        "nnodes",
        "freemem",
        "cpus(a/i/o/t)",
        "gresused",
        "gres_used",
        "allocmem",
        "cluster",
        "group",
        "priority",
        "free_mem",
        "cpu_load",
        "version",
    ]
)
_HOST = re.compile(r"^[A-Za-z][\w.-]{0,80}(?:\[[\d,-]+\])?(?:,|$)")
_CPUS = re.compile(r"(?:^|\s)\d{1,6}/\d{1,6}/\d{1,6}/\d{1,6}(?:\s|$)")
"""Allocated, idle, other, total: nobody else counts processors so."""
_DASHES = re.compile(r"^\s*-{2,}(?:\s+-{2,})+\s*$")


class Layout(Struct, kw_only=True):
    """How lines are cut into cells."""

    bar: str = ""
    """The separator; empty for blanks."""
    spans: tuple[tuple[int, int], ...] = ()
    """Columns of a table that is ruled by dashes."""
    columns: tuple[str, ...] = ()
    """Names, in lower case; empty without a header."""
    header: int = 0
    """Line of the header."""

    def cells(self, line: str) -> list[str]:
        if self.bar:
            return [cell.strip().removeprefix("#") for cell in line.split(self.bar)]
        if self.spans:
            return [line[start:end].strip() for start, end in self.spans]
        return self._blanks(line) if self.columns else line.split()

    def _blanks(self, line: str) -> list[str]:
        """A reason holds blanks: it is what the columns before and after it leave."""
        reason, wanted = self.column("reason"), len(self.columns)
        if reason < 0 or reason == wanted - 1:
            return line.split(None, wanted - 1)
        words = line.split()
        after = wanted - reason - 1
        if len(words) < wanted:
            return words
        return [*words[:reason], " ".join(words[reason : len(words) - after]), *words[len(words) - after :]]

    def column(self, *names: str) -> int:
        """Index of the first of these names that there is; -1 where there is none."""
        return next((self.columns.index(name) for name in names if name in self.columns), -1)


def layout_of(document: Document) -> tuple[Layout, float]:
    """How the document is laid out and how surely it is such a table."""
    lines = [line.rstrip("\r") for line in document.head.split("\n")[:60] if line.strip()]
    for number, line in enumerate(lines[:5]):
        bar = "|" if "|" in line else ""
        names = _names(line, bar)
        known = sum(name in _KNOWN for name in names)
        if known >= 3 and known * 2 >= min(len(names), 12) and _useful(names):
            ruled = number + 1 < len(lines) and _DASHES.match(lines[number + 1])
            spans = tuple(match.span() for match in re.finditer(r"-+", lines[number + 1])) if ruled and not bar else ()
            columns = _names(line, bar) if not spans else tuple(line[a:b].strip().lower() for a, b in spans)
            return Layout(bar=bar, spans=spans, columns=tuple(columns), header=_line_of(document, line)), 0.85
        if names and names[0] == "reason" and len(names) == 4 and names[-1] == "nodelist":
            return Layout(bar=bar, columns=tuple(names), header=_line_of(document, line)), 0.9
    return _headless(lines)


def _names(line: str, bar: str) -> tuple[str, ...]:
    cells = line.split(bar) if bar else line.split()
    return tuple(cell.strip().removeprefix("#").lower() for cell in cells[:400])


def _useful(names: tuple[str, ...]) -> bool:
    return any(name in names for name in ("state", "st", "statelong", "statecompact")) and any(
        name in names for name in (*_NODE_COLUMNS, *_JOB_COLUMNS, "nodelist(reason)")
    )


def _line_of(document: Document, header: str) -> int:
    at = document.head.find(header)
    return document.head.count("\n", 0, at) + 1 if at >= 0 else 0


def _headless(lines: list[str]) -> tuple[Layout, float]:
    """A table without a header: most lines have a cell that is a state."""
    barred = [line for line in lines if line.count("|") >= 3]
    if not barred or len(barred) * 2 < len(lines):
        counted = sum(bool(_CPUS.search(line)) and any(_state_cell(cell) for cell in line.split()) for line in lines)
        return Layout(), 0.55 if counted * 3 >= len(lines) * 2 and counted else 0.0
    layout = Layout(bar="|")
    states = 0
    for line in barred:
        cells = layout.cells(line)
        states += any(_state_cell(cell) for cell in cells)
    return layout, 0.6 if states * 3 >= len(barred) * 2 else 0.0


def _state_cell(cell: str) -> bool:
    """A node's state, or a job's long one; single letters are no proof."""
    return len(cell) > 3 and (is_node_state(cell) or bool(job_state(cell)))


def _recognise(document: Document) -> float:
    if document.is_binary or document.head.lstrip()[:1] in ("{", "["):
        return 0.0
    return layout_of(document)[1]


def _read(document: Document) -> Reading:
    reading, tally = Reading(reader="scheduler_table", file=document.path), Tally()
    layout, _ = layout_of(document)
    tell = _teller(layout)
    for number, cells in _rows(document, layout, reading):
        if not tell(reading, tally, cells, number):
            reading.puzzled(number, " | ".join(cells[:6]))
    return reading


def _rows(document: Document, layout: Layout, reading: Reading) -> Iterator[tuple[int, list[str]]]:
    """(line of its beginning, cells) of each record; lines that are one record are put together again."""
    wanted, held, begun, pieces = len(layout.columns), "", 0, 0
    bars = wanted - 1 if layout.bar else 0
    for number, line in document.lines():
        if number <= layout.header or not line.strip() or _DASHES.match(line[:2000]):
            continue
        if not layout.bar or not wanted:
            yield number, layout.cells(line[:8000])
            continue
        if held and line.count(layout.bar) >= bars:
            reading.puzzled(begun, held)
            held = ""
        if not held:
            begun, pieces = number, 0
        held, pieces = f"{held} {line}" if held else line, pieces + 1
        if held.count(layout.bar) >= bars:
            yield begun, layout.cells(held)
            held = ""
        elif pieces >= MAX_PIECES or len(held) > 65_536:
            reading.puzzled(begun, held)
            held = ""
    if held:
        reading.puzzled(begun, held)


_Tell = Callable[[Reading, Tally, list[str], int], bool]


def _teller(layout: Layout) -> _Tell:
    """What makes a node or a job of a row."""
    columns = layout.columns
    if not columns:
        return _tell_unnamed
    if columns[0] == "reason" and "state" not in columns:
        return _tell_reasons
    job = layout.column(*_JOB_COLUMNS)
    state = _last(columns, "state", "statelong", "st", "statecompact")
    nodes, reason = layout.column(*_NODE_COLUMNS), layout.column("reason")
    # "nodes" may be how many or which; only a name is a name.
    names = [index for index, name in enumerate(columns) if name in (*_NODE_COLUMNS, "nodelist(reason)")]
    exits = layout.column("exitcode")

    def cell(cells: list[str], index: int) -> str:
        return cells[index] if 0 <= index < len(cells) else ""

    def tell(reading: Reading, tally: Tally, cells: list[str], number: int) -> bool:
        where = next((cells[i] for i in names if i < len(cells) and _HOST.match(cells[i])), cell(cells, nodes))
        if job >= 0:
            if not job_state(cell(cells, state)):
                return False
            where = where if _HOST.match(where) else ""
            found = Job(
                number=cell(cells, job), state=cell(cells, state), nodes=where, detail=cell(cells, exits), line=number
            )
            tell_job(reading, tally, found)
            return True
        if not is_node_state(cell(cells, state)) or not where:
            return False
        tell_node(reading, tally, Node(names=where, state=cell(cells, state), reason=cell(cells, reason), line=number))
        return True

    return tell


def _last(columns: tuple[str, ...], *names: str) -> int:
    """Some formats show the state twice, short and long: the last is the long one."""
    for name in names:
        found = [index for index, column in enumerate(columns) if column == name]
        if found:
            return found[-1]
    return -1


def _tell_reasons(reading: Reading, tally: Tally, cells: list[str], number: int) -> bool:
    """``sinfo -R``: the reason may hold blanks, so it is cut from the right."""
    if len(cells) != 4:
        return False
    words = " ".join(cells).rsplit(None, 3)
    if len(words) < 4:
        return False
    reason, by, since, where = words
    node = Node(names=where, state="drained", reason=reason, by=by, since=since, line=number)
    tell_node(reading, tally, node)
    return True


def _tell_unnamed(reading: Reading, tally: Tally, cells: list[str], number: int) -> bool:
    """Without a header: the cell that is a state, and the first cell that looks like a host or a job."""
    jobs = [cell for cell in cells if len(cell) > 3 and job_state(cell) and cell.isupper()]
    if jobs:
        name = next((cell for cell in cells if re.match(r"^\d{2,12}(?:[_+]\S{0,20})?$", cell)), "")
        hosts = next(
            (cell for cell in cells if re.match(r"^[A-Za-z][\w.-]*\d(?:$|,)|^[A-Za-z][\w-]*\[[\d,-]+\]$", cell)), ""
        )
        tell_job(reading, tally, Job(number=name, state=jobs[0], nodes=hosts, line=number))
        return True
    states = [cell for cell in cells if _state_cell(cell)]
    where = next((cell for cell in cells if _HOST.match(cell) and not _state_cell(cell)), "")
    if not states or not where:
        return False
    tell_node(reading, tally, Node(names=where, state=states[-1], line=number))
    return True


READER = Reader(name="scheduler_table", text="sinfo, squeue, sacct: tables", recognise=_recognise, read=_read)
