"""What ``mlxlink`` prints of one link: its state, what it was trained to, and the firmware's own opinion."""

import re

from keepstep.evidence.document import Document
from keepstep.evidence.network import port as ports_of
from keepstep.evidence.network.port import Origin
from keepstep.evidence.reading import Fine, Reader, Reading

_FIELD = re.compile(
    r"^(?:\x1b\[[\d;]{0,8}m)?([A-Z][\w ./()\[\]-]{2,48}?)\s*:\s*(?:\x1b\[[\d;]{0,8}m)?(.*?)(?:\x1b\[[\d;]{0,8}m)?\s*$"
)
_HEADS = ("Operational Info", "Troubleshooting Info", "Supported Info")
_WELL = re.compile(r"no issue|n/a|^$", re.IGNORECASE)


def _recognise(document: Document) -> float:
    head = document.head
    return 0.85 if not document.is_binary and sum(f"{name}\n---" in head for name in _HEADS) >= 2 else 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="mlxlink", file=document.path)
    origin = Origin(source="mlxlink", file=document.path)
    state, physical, advice, at = "", "", "", 0
    for number, line in document.lines():
        match = _FIELD.match(line[:400])
        if match is None:
            continue
        key, value = match.groups()
        reading.records += 1
        if key == "State" and not state:
            state, at = value, number
        elif key == "Physical state":
            physical = value
        elif key == "Recommendation":
            advice = value
    active = (
        ports_of.state_of(state) == "active" or "up" in state.lower() or "linkup" in physical.lower().replace(" ", "")
    )
    doubt = advice if advice and not _WELL.search(advice) else ""
    if state and not active:
        disabled = "disable" in f"{state} {physical}".lower() or "disabled" in advice.lower()
        signal = "port.disabled" if disabled else "port.down.alone"
        reading.observations.append(origin.seen(signal, "nic/port", f"state {state}, {physical}; {advice}", at))
    elif state:
        text = f"link is up{'; ' + doubt if doubt else ''}"
        reading.fine.append(Fine(part="nic/port", text=text[:300], file=document.path, line=at))
    return reading


READER = Reader(name="mlxlink", text="mlxlink: state and opinion of one link", recognise=_recognise, read=_read)
