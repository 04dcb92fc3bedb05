"""Counters of one or more ports as ``perfquery`` and ``ibqueryerrors`` print them. Must not guess what a port is named."""

import re

from keepstep.core.observation import kind_of
from keepstep.evidence.document import Document
from keepstep.evidence.network import counters
from keepstep.evidence.network.port import Origin
from keepstep.evidence.reading import Fine, Reader, Reading

MAX_PORTS = 65_536
_HEAD = re.compile(
    r"^# ([\w ]{1,40} counters): *(?:Lid|DR path slid) +(\S{1,40})[^\n]{0,80}?port (\d{1,3})"
)  # fmt: skip
_COUNTER = re.compile(r"^([A-Z][A-Za-z0-9]{2,40}):\.{2,60}(0x[0-9a-fA-F]{1,20}|\d{1,30})\s*$")
_LOOSE = re.compile(r"^([A-Z][A-Za-z0-9]{2,40}):\.{2,60}(.*)$")
_ERRORS = re.compile(r"^\s*GUID (0x[0-9a-fA-F]{1,16}) port (\d{1,3}|ALL):(.*)$")
_BRACKET = re.compile(r"\[(\w{3,40}) == (\d{1,20})")
_NOT_COUNTERS = ("portselect", "counterselect", "counterselect2", "lid")
_DETAILS = ("PortLocalPhysicalErrors", "PortBufferOverrunErrors", "PortMalformedPktErrors")


def _recognise(document: Document) -> float:
    if document.is_binary:
        return 0.0
    lines = document.head.split("\n")[:100]
    if any(_HEAD.match(line[:400]) or _ERRORS.match(line[:400]) for line in lines):
        return 0.9
    return 0.6 if sum(bool(_COUNTER.match(line.rstrip("\r")[:200])) for line in lines) >= 5 else 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="perfquery", file=document.path)
    origin = Origin(source="perfquery", file=document.path)
    part, begun, kind, values = "link/port", 0, "", {}  # type: ignore[var-annotated]
    for number, line in document.lines():
        if match := _HEAD.match(line[:400]):
            _close(reading, origin, part, begun, kind, values)
            kind, lid, port = match.groups()
            part, begun, values = f"link/lid{lid}/{port}", number, {}
            reading.records += 1
        elif match := _COUNTER.match(line):
            name, text = match.groups()
            values[name] = int(text, 16) if text.startswith("0x") else int(text)
            reading.records += not begun
            begun = begun or number
            kind = kind or "Port counters"
        elif match := _ERRORS.match(line[:2000]):
            guid, port, rest = match.groups()
            named = {name: int(value) for name, value in _BRACKET.findall(rest)}
            _close(reading, origin, f"link/{guid.lower()}/{port}", number, "Port counters", named)
            reading.records += 1
        elif line.strip() and _LOOSE.match(line[:200]):
            reading.puzzled(number, line)
    _close(reading, origin, part, begun, kind, values)
    return reading


def _close(reading: Reading, origin: Origin, part: str, begun: int, kind: str, values: dict[str, int]) -> None:
    if not values or reading.records > MAX_PORTS:
        return
    if "Details" in kind:
        damaged = sum(values.get(name, 0) for name in _DETAILS)
        if damaged > 1000:
            reading.observations.append(origin.seen("port.receive_errors", part, f"{damaged} packets damaged", begun))
        return
    known = {}
    for name, value in values.items():
        spelled = counters.NAMES.get(name.lower())
        if spelled and name.lower() not in _NOT_COUNTERS:
            known[spelled] = value
    told = counters.judge_levels(part, known, begun, origin)
    downs = known.get("link_downed", 0)
    if downs > 20 and not counters.saturated("link_downed", downs):
        told.append(
            origin.seen(
                "port.flaps", part, f"link went down {downs} times since an unknown time", begun, value=str(downs)
            )
        )
    reading.observations += told
    if all(seen.signal in counters.BENIGN for seen in told) and kind_of(part) == "link":
        reading.fine.append(Fine(part=part, text="counters show no fault", file=origin.file, line=begun))


READER = Reader(name="perfquery", text="perfquery, ibqueryerrors: counters of ports", recognise=_recognise, read=_read)
