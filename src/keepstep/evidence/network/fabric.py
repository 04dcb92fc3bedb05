"""What scans of a fabric say: ``ibnetdiscover`` (both forms), ``iblinkinfo`` and ``ibswinfo``. Judges no host.

A switch has unused ports: that one has no link says nothing. Slower links than the neighbours' are ordinary where
generations mix; only a link that runs below what both of its ends can do is told.
"""

import re

from keepstep.core.observation import Same
from keepstep.evidence.document import Document
from keepstep.evidence.network.port import Origin
from keepstep.evidence.reading import Fine, Reader, Reading

MAX_SAME = 20_000
_LINE = re.compile(r"^(CA|SW|RT) +(\d{1,6}) +(\d{1,3}) +(0x[0-9a-fA-F]{16}) +(\d{1,2})x (\S{2,8})\s(.*)$")
_NAMES = re.compile(r"\( '(.{0,120}?)' - '(.{0,120}?)' \)\s*$")
_FAR = re.compile(r"- *(CA|SW|RT) +(\d{1,6}) +(\d{1,3}) +(0x[0-9a-fA-F]{16})")
_BLOCK = re.compile(r"^(Switch|Ca|Rt)\s+(\d{1,4}) \"[SHR]-([0-9a-fA-F]{16})\"\s+# \"(.{0,120}?)\"")
_CABLE = re.compile(
    r"^\[(\d{1,3})\](?:\([0-9a-fA-F]{1,16}\))?\s+\"[SHR]-([0-9a-fA-F]{16})\"\[(\d{1,3})\].*?\s(\d{1,2})x([A-Z]{2,4}\d{0,3})?"
)
_HCA = re.compile(r"^(\S{1,128}) (HCA-\d{1,3}|mlx\d{1,2}_\d{1,3}|ibp\w{1,20})$")
_INFO = re.compile(r"==\(\s*(?:(\d{1,2})X\s+([\d.]{1,12}) Gbps\s+(\w+)|(Down))/\s*(\w+)\)==>(.*)$")
_COULD = re.compile(r"Could be ([\d.]{1,12} Gbps|\d{1,2}X)")


def _recognise_topology(document: Document) -> float:
    if document.is_binary:
        return 0.0
    lines = [line[:600] for line in document.head.split("\n")[:200]]
    if any(_LINE.match(line) or _BLOCK.match(line) for line in lines):
        return 0.9
    return 0.9 if any(_INFO.search(line) for line in lines) else 0.0


def _read_topology(document: Document) -> Reading:
    reading = Reading(reader="fabric_scan", file=document.path)
    origin = Origin(source="fabric_scan", file=document.path)
    here = ""
    for number, line in document.lines():
        line = line[:1000]
        if match := _LINE.match(line):
            _link(reading, origin, match, number)
        elif match := _BLOCK.match(line):
            kind, _, guid, name = match.groups()
            here = f"{'switch' if kind == 'Switch' else 'nic'}/0x{guid.lower()}"
            reading.records += 1
            _name(reading, here, name)
        elif here and (match := _CABLE.match(line)):
            reading.records += 1
            if match.group(4) == "1":
                detail = f"port {match.group(1)} runs on a single lane: {line.strip()}"
                reading.observations.append(
                    origin.seen("link.rate", f"link/{here.partition('/')[2]}/{match.group(1)}", detail, number)
                )
        elif match := _INFO.search(line):
            reading.records += 1
            _info(reading, origin, line, match, number)
    return reading


def _link(reading: Reading, origin: Origin, match: re.Match[str], number: int) -> None:
    kind, _, port, guid, width, speed, rest = match.groups()
    reading.records += 1
    far, names = _FAR.search(rest), _NAMES.search(rest)
    if names:
        _name(reading, f"{'switch' if kind == 'SW' else 'nic'}/{guid.lower()}", names.group(1))
    if far and width == "1":
        detail = f"port {port} of {guid} runs on a single lane ({speed})"
        reading.observations.append(origin.seen("link.rate", f"link/{guid.lower()}/{port}", detail, number))


def _name(reading: Reading, part: str, name: str) -> None:
    """A GUID and the name that its owner gave it; an adapter's name begins with its host."""
    name = name.strip()
    if not name or len(reading.same) >= MAX_SAME:
        return
    host = _HCA.match(name)
    if host:
        reading.same.append(Same(parts=(part, f"nic/{host.group(2)}"), node=host.group(1)))
    elif part.startswith("switch/"):
        reading.same.append(Same(parts=(part, f"switch/{name}")))


def _info(reading: Reading, origin: Origin, line: str, match: re.Match[str], number: int) -> None:
    state, rest = match.group(3), match.group(6)
    could = _COULD.search(rest)
    if state == "Active" and could:
        detail = f"{match.group(1)}X {match.group(2)} Gb/s, could be {could.group(1)}: {line.strip()}"
        reading.observations.append(origin.seen("link.rate", "link/" + _where(line), detail, number))


def _where(line: str) -> str:
    words = line.partition("==(")[0].split()
    return "/".join(word.strip("[]") for word in words[:3])[:60]


_SWITCH_FIELD = re.compile(r"^(\s*)([A-Za-z/#()\d .]{1,30}?)\s*\|\s*(.*?)\s*$")
_PSU = re.compile(r"^PSU ?(\d{1,2}) status$")
_FAN = re.compile(r"^fan ?#(\d{1,3}) \(rpm\)$")
MAX_DEGREES = 105


def _recognise_switch(document: Document) -> float:
    if document.is_binary:
        return 0.0
    head = document.head
    words = ("product name", "firmware version", "GUID", "PSID", "fan#1 (rpm)", "PSU0 status", "uptime (d-h:m:s)")
    found = sum(f"\n{word}" in head and "|" in head for word in words)
    return 0.9 if found >= 4 else 0.0


def _read_switch(document: Document) -> Reading:
    reading = Reading(reader="switch_report", file=document.path)
    origin = Origin(source="switch_report", file=document.path)
    name, psu, told, fans = "unnamed", "", [], 0
    for number, line in document.lines():
        match = _SWITCH_FIELD.match(line[:200])
        if not match:
            continue
        indent, key, value = match.groups()
        reading.records += 1
        if key == "GUID":
            name = value.lower()[:40] or name
        elif found := _PSU.match(key):
            psu = found.group(1)
            told.append(("switch.psu", f"PSU {psu} status", value, number))
        elif indent and psu and key == "DC power":
            told.append(("switch.psu", f"PSU {psu} DC power", value, number))
        elif key == "fan status":
            told.append(("switch.fan", f"fans of PSU {psu}" if indent and psu else "fans", value, number))
        elif found := _FAN.match(key):
            fans += value.isdecimal()
            _figure(reading, told, ("switch.fan", f"fan {found.group(1)}"), value, number)
        elif key in ("temperature (C)", "max temp (C)", "power (W)"):
            _figure(reading, told, ("switch.hot" if "temp" in key else "", key), value, number)
    _tell(reading, origin, name, told)
    return reading


def _figure(
    reading: Reading, told: list[tuple[str, str, str, int]], what: tuple[str, str], value: str, number: int
) -> None:
    """A figure that should be a number. One that is not says that the report is broken, not the switch."""
    signal, key = what
    if not value.isdecimal() or len(value) > 9:
        reading.puzzled(number, f"{key}: {value or 'empty'}")
    elif signal == "switch.fan" and int(value) == 0:
        told.append((signal, key, "0 rpm", number))
    elif signal == "switch.hot" and MAX_DEGREES <= int(value) < 200:
        told.append((signal, key, f"{value} C", number))


def _tell(reading: Reading, origin: Origin, name: str, told: list[tuple[str, str, str, int]]) -> None:
    blamed: dict[str, str] = {}
    for signal, key, value, number in told:
        word = value.strip().upper()
        if word in ("OK", "PRESENT", "GOOD"):
            continue
        if word in ("", "N/A", "NA", "NOT PRESENT", "ABSENT", "UNKNOWN"):
            reading.puzzled(number, f"{key}: {value or 'empty'}")
        elif blamed.setdefault(f"{signal} {key.partition(' status')[0].partition(' DC')[0]}", value) == value:
            signal = "switch.psu" if key.startswith("fans of PSU") else signal
            detail = f"switch {name}: {key} {value}"
            reading.observations.append(origin.seen(signal, f"switch/{name}", detail, number, value=value))
    if not blamed:
        reading.fine.append(Fine(part=f"switch/{name}", text="power supplies and fans are well", file=origin.file))


TOPOLOGY = Reader(
    name="fabric_scan", text="ibnetdiscover, iblinkinfo: who is cabled to whom, and how fast",
    recognise=_recognise_topology, read=_read_topology,
)  # fmt: skip
SWITCH = Reader(
    name="switch_report", text="ibswinfo: power supplies, fans and temperature of a switch",
    recognise=_recognise_switch, read=_read_switch,
)  # fmt: skip
