"""Reads evidence of controllers and judges it, for the tests beside this file; where the labelled captures are."""

import json
from pathlib import Path

import pytest

from keepstep.core.combine import judge
from keepstep.core.parts import joined
from keepstep.core.signal import Context, Signal
from keepstep.evidence.bmc import READERS
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading

CAPTURES = Path(__file__).parents[3].parent / "shared" / "data"


def capture(name: str) -> Document:
    path = CAPTURES / name
    if not path.exists():
        pytest.skip(f"the labelled capture {name} is not here")
    return Document(name, path.read_bytes())


def document(value: object, name: str = "evidence") -> Document:
    text = value if isinstance(value, str) else json.dumps(value)
    return Document(name, text.encode())


def reader_of(evidence: Document) -> Reader:
    return max(READERS, key=lambda reader: reader.recognise(evidence))


def read(evidence: Document) -> Reading:
    return reader_of(evidence).read(evidence)


def signals_of(*evidence: Document) -> list[Signal]:
    readings = [read(one) for one in evidence]
    context = Context(parts=joined([same for reading in readings for same in reading.same]))
    return judge([seen for reading in readings for seen in reading.observations], context)


def bad(signals: list[Signal]) -> dict[tuple[str, str], str]:
    """(key, part) -> verdict, of what is suspect or worse."""
    found = {}
    for signal in signals:
        if signal.row.verdict.value in ("suspect", "faulty"):
            found[(signal.key, signal.seen.part)] = signal.row.verdict.value
    return found


def log_entry(number: int, message: str, severity: str = "Critical", **more: object) -> dict[str, object]:
    log = "/redfish/v1/Systems/1/LogServices/EventLog/Entries"
    return {
        "@odata.id": f"{log}/{number}", "@odata.type": "#LogEntry.v1_9_0.LogEntry", "Id": str(number), "Message": message,
        "Severity": severity, "Created": "2024-05-01T10:00:00+00:00", **more,
    }  # fmt: skip


def collection(*entries: dict[str, object]) -> dict[str, object]:
    return {
        "@odata.id": "/redfish/v1/Systems/1/LogServices/EventLog/Entries",
        "@odata.type": "#LogEntryCollection.LogEntryCollection", "Members": list(entries),
    }  # fmt: skip
