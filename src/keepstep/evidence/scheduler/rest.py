"""JSON of slurmrestd and of ``--json`` (every data parser so far), and one JSON object a line as exporters write it."""

import json
from collections.abc import Iterator
from typing import Any

from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading
from keepstep.evidence.scheduler.states import Job, Node, Tally, is_node_state, job_state, tell_job, tell_node

MAX_ENTRIES = 200_000


def _words(value: Any) -> str:
    """A state is a word, or a list of words."""
    if isinstance(value, list):
        return "+".join(str(x) for x in value[:16])
    if isinstance(value, dict):
        return _words(value.get("current", value.get("state", "")))
    return str(value) if isinstance(value, str) else ""


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return _text(value.get("description", value.get("number", value.get("name", ""))))
    return str(value) if isinstance(value, str | int) else ""


def _entries(found: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = found.get(key)
    return [x for x in value[:MAX_ENTRIES] if isinstance(x, dict)] if isinstance(value, list) else []


def _is_slurm(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    meta = found.get("meta")
    if isinstance(meta, dict) and any(str(key).lower() == "slurm" for key in meta):
        return True
    nodes, jobs = _entries(found, "nodes")[:3], _entries(found, "jobs")[:3]
    return any("state" in x and ("slurmd_version" in x or "partitions" in x) for x in nodes) or any(
        "job_state" in x for x in jobs
    )


def _recognise(document: Document) -> float:
    head = document.head.lstrip("\ufeff \t\r\n")
    if head[:1] != "{":
        return 0.0
    if _is_slurm(document.json):
        return 0.95
    lines = [line for line in head.split("\n")[:40] if line.strip()]
    matched = sum(_of_line(line) is not None for line in lines)
    return 0.6 if document.json is None and matched and matched * 2 > len(lines) else 0.0


def _of_line(line: str) -> dict[str, Any] | None:
    """A line's object, where it is a node or a job in the short form that exporters ask ``sinfo`` and ``squeue`` for."""
    if not line.startswith("{") or len(line) > 8000:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    state = found.get("s", found.get("state"))
    known = isinstance(state, str) and (is_node_state(state) or job_state(state))
    return found if known and any(key in found for key in ("n", "node", "id", "job_id")) else None


def _read(document: Document) -> Reading:
    reading, tally = Reading(reader="scheduler_json", file=document.path), Tally()
    found = document.json
    if isinstance(found, dict) and _is_slurm(found):
        for node in _nodes(found):
            tell_node(reading, tally, node)
        for job in _jobs(found):
            tell_job(reading, tally, job)
        for error in _entries(found, "errors"):
            reading.puzzled(0, _text(error) or str(error)[:200])
        reading.records = reading.records or 1
        return reading
    for number, line in document.lines():
        one = _of_line(line)
        if one is None:
            if line.strip() and not line.lstrip().startswith("#"):
                reading.puzzled(number, line)
        elif "n" in one or "node" in one:
            state = str(one.get("s", one.get("state")))
            tell_node(reading, tally, Node(names=str(one.get("n", one.get("node"))), state=state, line=number))
        else:
            job = Job(
                number=str(one.get("id", one.get("job_id"))), state=str(one.get("state", one.get("s"))), line=number
            )
            tell_job(reading, tally, job)
    return reading


def _nodes(found: dict[str, Any]) -> Iterator[Node]:
    for entry in _entries(found, "nodes"):
        flags = _words(entry.get("state_flags"))
        state = "+".join(x for x in (_words(entry.get("state")), flags) if x)
        name = _text(entry.get("name")) or _text(entry.get("hostname"))
        yield Node(
            names=name, state=state, reason=_text(entry.get("reason")), by=_text(entry.get("reason_set_by_user")),
            since=_text(entry.get("reason_changed_at")),
        )  # fmt: skip
    for entry in _entries(found, "sinfo"):
        node, nodes, reason = entry.get("node"), entry.get("nodes"), entry.get("reason")
        names = nodes.get("nodes") if isinstance(nodes, dict) else None
        if isinstance(node, dict) and isinstance(names, list):
            state = _words(node.get("state"))
            yield Node(names=",".join(str(x) for x in names[:64]), state=state, reason=_text(reason))


def _jobs(found: dict[str, Any]) -> Iterator[Job]:
    for entry in _entries(found, "jobs"):
        state = entry.get("job_state", entry.get("state"))
        words = _words(state).split("+")
        named = next((word for word in words if job_state(word)), "")
        yield Job(number=_text(entry.get("job_id")), state=named, nodes=_text(entry.get("nodes")))


READER = Reader(
    name="scheduler_json", text="slurmrestd and --json output: nodes, jobs", recognise=_recognise, read=_read
)
