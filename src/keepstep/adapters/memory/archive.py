"""What is over, in memory: for tests, the simulator, and a journal file that is read on its own. Meets ports.Archive."""

import bisect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from keepstep.ports import Page
from keepstep.review.records import FaultRecord, IncidentRecord, JobRecord

Record = IncidentRecord | JobRecord | FaultRecord
Kind = Literal["incident", "job", "fault"]

KINDS: dict[type, Kind] = {IncidentRecord: "incident", JobRecord: "job", FaultRecord: "fault"}
FILTERS = ("id", "job", "tenant", "state", "cause", "kind", "node", "q")


def end_of(record: Record) -> float:
    """When it ended, by the server's clock."""
    ended = record.finished_s if isinstance(record, JobRecord) else record.closed_s
    return ended if ended is not None else 0.0


def words_of(record: Record) -> str:
    """What ``q`` looks in, in lower case."""
    job = getattr(record, "job", "")
    resources = record.resources if isinstance(record, IncidentRecord) else (getattr(record, "resource", ""),)
    return " ".join((record.id, job, getattr(record, "summary", ""), *resources)).lower()


def nodes_of(record: Record) -> tuple[str, ...]:
    if isinstance(record, IncidentRecord):
        return record.nodes
    return (record.node,) if isinstance(record, FaultRecord) and record.node else ()


def cursor_of(ended_s: float, id: str) -> str:
    """Where a page ends: the next one has what comes after."""
    return json.dumps([ended_s, id])


def read_cursor(text: str) -> tuple[float, str] | None:
    """None for the beginning. Raises ValueError where it is none of ours."""
    if not text:
        return None
    try:
        ended_s, id = json.loads(text)
        return float(ended_s), str(id)
    except (ValueError, TypeError):
        raise ValueError(f"{text!r} is no cursor; take the one of the page before") from None


def check_filters(where: Mapping[str, str]) -> None:
    """Raises ValueError for one that there is not."""
    unknown = next((name for name in where if name not in FILTERS), None)
    if unknown is not None:
        raise ValueError(f"there is no filter {unknown!r}; there are {', '.join(FILTERS)}")


class MemoryArchive:
    def __init__(self) -> None:
        self._records: dict[Kind, dict[str, Record]] = {"incident": {}, "job": {}, "fault": {}}
        self._reports: dict[tuple[Kind, str], bytes] = {}
        self._order: dict[Kind, list[tuple[float, str]]] = {"incident": [], "job": [], "fault": []}
        self._seq = 0

    def put(self, seq: int, finished: Sequence[tuple[Record, bytes]]) -> None:
        for record, report in finished:
            kind = KINDS[type(record)]
            known = self._records[kind].get(record.id)
            if known is not None:
                self._order[kind].remove((end_of(known), known.id))
            self._records[kind][record.id] = record
            self._reports[kind, record.id] = report
            bisect.insort(self._order[kind], (end_of(record), record.id))
        self._seq = max(self._seq, seq)

    def complete_to(self) -> int:
        return self._seq

    def list(
        self, kind: Kind, where: Mapping[str, str] = {}, *, cursor: str = "", limit: int = 100,
        since_s: float = 0.0, until_s: float | None = None,
    ) -> Page:  # fmt: skip
        check_filters(where)
        start = read_cursor(cursor)
        until = until_s if until_s is not None else float("inf")
        fitting = [
            key
            for key in reversed(self._order[kind])
            if since_s <= key[0] < until and _fits(self._records[kind][key[1]], where)
        ]
        rest = [key for key in fitting if start is None or key < start]
        page = rest[:limit]
        more = cursor_of(*page[-1]) if len(rest) > limit else ""
        return Page(records=tuple(self._records[kind][id] for _, id in page), next=more, total=len(fitting))

    def get(self, kind: Kind, id: str) -> bytes | None:
        return self._reports.get((kind, id))

    def records(self, kind: Kind, since_s: float = 0.0, until_s: float | None = None) -> Iterator[Record]:
        for ended_s, id in self._order[kind]:
            if since_s <= ended_s and (until_s is None or ended_s < until_s):
                yield self._records[kind][id]


def _fits(record: Record, where: Mapping[str, str]) -> bool:
    for name, wanted in where.items():
        if name == "q":
            fits = wanted.lower() in words_of(record)
        elif name == "node":
            fits = wanted in nodes_of(record)
        elif name == "tenant":
            fits = getattr(record, "tenant", None) in wanted.split(",")
        elif name == "job" and isinstance(record, JobRecord):
            fits = record.id == wanted
        else:
            fits = getattr(record, name, None) == wanted
        if not fits:
            return False
    return True
