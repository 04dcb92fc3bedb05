"""Reader of event logs as Dell's ``racadm`` prints them: ``getsel``, ``lclog view``. Owns the form; what a text means stands in
``meanings``."""

import re
from collections.abc import Iterator

from keepstep.core.figures import whole
from keepstep.evidence.bmc.sel import Record, observation_of
from keepstep.evidence.bmc.times import read_time
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading

NAME = "racadm"
MAX_FIELD_CHARS = 600
_FIELD = re.compile(r"^\s{0,4}([A-Z][A-Za-z/ ]{1,24}?(?: \d)?)\s{0,24}[:=]\s{0,12}(\S.{0,600})?$")
_STARTS = ("Record", "SeqNumber")
_SEVERITY = {"ok": "OK", "informational": "OK", "normal": "OK", "non-critical": "Warning", "warning": "Warning",
             "critical": "Critical", "non-recoverable": "Critical", "fatal": "Critical"}  # fmt: skip
_NOT_HARDWARE = ("audit", "config", "updates", "worknotes")
"""Categories of the lifecycle log that tell what people and programs did."""


def recognise(document: Document) -> float:
    head = document.head
    if document.is_binary or head.lstrip()[:1] in ("{", "[", "<"):
        return 0.0
    if re.search(r"^Record:\s+\d+$", head, re.M) and re.search(r"^Description:\s+\S", head, re.M):
        return 0.85
    return 0.85 if re.search(r"^SeqNumber\s+= ?\d+$", head, re.M) and "Message ID" in head else 0.0


def read(document: Document) -> Reading:
    reading = Reading(reader=NAME, file=document.path)
    for seq, record in enumerate(_oldest_first(list(_records(document)))):
        reading.records += 1
        seen = observation_of(record, seq)
        if seen is not None:
            reading.observations.append(seen)
    return reading


def _records(document: Document) -> Iterator[Record]:
    fields: dict[str, str] = {}
    began = 0
    for number, line in document.lines():
        found = _FIELD.match(line.rstrip())
        if found is None:
            continue
        name, value = found[1].strip(), (found[2] or "").strip()[:MAX_FIELD_CHARS]
        if name in _STARTS:
            if fields:
                yield _record(fields, began)
            fields, began = {}, number
        fields.setdefault(name, value)
    if fields:
        yield _record(fields, began)


def _record(fields: dict[str, str], line: int) -> Record:
    text = fields.get("Description") or fields.get("Message") or ""
    severity = _SEVERITY.get(fields.get("Severity", "").lower(), "")
    if fields.get("Category", "").lower() in _NOT_HARDWARE:
        severity = "OK"
    at_s, clock = read_time(fields.get("Date/Time") or fields.get("Timestamp") or "")
    return Record(
        number=fields.get("Record") or fields.get("SeqNumber") or "", sensor=fields.get("FQDD", ""), event=text, asserted=None,
        severity=severity, at_s=at_s, clock=clock, line=line, raw=text,
    )  # fmt: skip


def _oldest_first(records: list[Record]) -> list[Record]:
    """The lifecycle log begins with the newest record; what ends a condition must come after it."""
    numbered = [(number, record) for record in records if (number := whole(record.number)) is not None]
    if len(numbered) < len(records):
        return records
    return [record for _, record in sorted(numbered, key=lambda pair: pair[0])]


READER = Reader(name=NAME, text="a Dell server's event log as racadm prints it", recognise=recognise, read=read)
