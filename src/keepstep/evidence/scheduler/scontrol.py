"""What ``scontrol show node|job|partition|reservation|config`` and ``scontrol ping`` print, on one line or on several.

Values may hold blanks, brackets and any script: a record is cut at the keys that are known to begin a field.
"""

import re

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading
from keepstep.evidence.scheduler.states import Job, Node, Tally, tell_job, tell_node

_BEGIN = re.compile(r"^\s*(NodeName|JobId|PartitionName|ReservationName)=(\S+)")
_STATE = re.compile(r"(?:^|\s)State=(\S+)")
_JOB_STATE = re.compile(r"(?:^|\s)JobState=(\S+)")
_NODES = re.compile(r"(?:^|\s)NodeList=(\S*)")
_REASON = re.compile(
    r"(?:^|\s)Reason=(.*?)(?=\s{1,4}(?:Comment|Extra|InstanceId|InstanceType|ReservationName|ResvName|Dependency)=|$)"
)
_EXIT = re.compile(r"(?:^|\s)ExitCode=(\S+)")
_CONFIG = re.compile(r"^Configuration data as of \S+|^sdiag output at ")
_PING = re.compile(r"^Slurmctld\((\w+)\) at (\S+) is (UP|DOWN)")


def _recognise(document: Document) -> float:
    if document.is_binary:
        return 0.0
    head = document.head
    for line in head.split("\n")[:200]:
        if (match := _BEGIN.match(line[:400])) or _CONFIG.match(line) or _PING.match(line):
            kind = match.group(1) if match else ""
            if kind == "NodeName" and "State=" not in head:
                return 0.0
            return 0.9
    return 0.0


class _Record:
    def __init__(self, kind: str, name: str, line: int) -> None:
        self.kind, self.name, self.line = kind, name, line
        self.state = self.reason = self.nodes = self.detail = ""
        self.told_at = line


def _read(document: Document) -> Reading:
    reading, tally = Reading(reader="scontrol", file=document.path), Tally()
    record: _Record | None = None
    for number, line in document.lines():
        if match := _BEGIN.match(line):
            _close(reading, tally, record)
            record = _Record(match.group(1), match.group(2)[:200], number)
        elif match := _PING.match(line):
            reading.records += 1
            if match.group(3) == "DOWN":
                _controller(reading, match, number)
        elif _CONFIG.match(line):
            reading.records += 1
        if record is not None:
            _fields(record, line, number)
    _close(reading, tally, record)
    return reading


def _fields(record: _Record, line: str, number: int) -> None:
    pattern = _JOB_STATE if record.kind == "JobId" else _STATE
    if not record.state and (match := pattern.search(line)):
        record.state, record.told_at = match.group(1), number
    if not record.reason and (match := _REASON.search(line)):
        record.reason = match.group(1)
        record.told_at = number if record.kind == "NodeName" else record.told_at
    if not record.nodes and (match := _NODES.search(line)):
        record.nodes = match.group(1)
    if not record.detail and (match := _EXIT.search(line)):
        record.detail = match.group(1)


def _close(reading: Reading, tally: Tally, record: _Record | None) -> None:
    if record is None:
        return
    if record.kind == "NodeName":
        tell_node(
            reading, tally, Node(names=record.name, state=record.state, reason=record.reason, line=record.told_at)
        )
    elif record.kind == "JobId":
        job = Job(number=record.name, state=record.state, nodes=record.nodes, detail=record.detail, line=record.told_at)
        tell_job(reading, tally, job)
    else:
        reading.records += 1


def _controller(reading: Reading, match: re.Match[str], number: int) -> None:
    detail = f"the {match.group(1)} controller at {match.group(2)} does not answer"
    reading.observations.append(
        Observation(
            signal="scheduler.unreachable", part=f"dependency/slurmctld:{match.group(2)[:100]}", detail=detail,
            source="scontrol", file=reading.file, line=number,
        )
    )  # fmt: skip


READER = Reader(
    name="scontrol", text="scontrol show node, job, partition, reservation, config", recognise=_recognise, read=_read
)
