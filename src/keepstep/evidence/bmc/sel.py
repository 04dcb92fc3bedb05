"""Reader of IPMI event logs as text: ``ipmitool sel list | elist | -v | -c``, ``sel get``, FreeIPMI's ``ipmi-sel``.

Owns the forms of lines; what an event means stands in ``meanings``.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

from keepstep.core.observation import Observation
from keepstep.evidence.bmc.meanings import TALK, meaning_of
from keepstep.evidence.bmc.names import part_of_text, pci_of, subject_of
from keepstep.evidence.bmc.times import BOOT_CLOCK, read_time
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading

NAME = "ipmi_sel"
SOURCE = "ipmi"
_ID = r"\s{0,12}(?P<id>[0-9a-fA-F]{1,6})\s{0,12}"
_LIST = re.compile(
    r"(?:^|: )" + _ID + r"\|\s{0,8}(?:(?P<date>\d{1,2}/\d{1,2}/\d{2,4}|\d{4}-\d{2}-\d{2})\s{0,8}\|\s{0,8}"
    r"(?P<time>\d{1,2}:\d{2}:\d{2}(?:\s?[AP]M)?)(?:\s?[A-Z]{2,5})?|(?P<pre>Pre-Init|Preinit|Unknown|Unspecified)\s{0,8}"
    r"(?:Time-stamp\s{0,4})?\|\s{0,8}(?P<boot>\d{0,12})(?:Unknown|Unspecified)?)\s{0,8}\|\s{0,4}(?P<rest>.{1,600})"
)
_FREE = re.compile(
    r"^"
    + _ID
    + r"\|\s{0,4}(?P<date>[A-Z][a-z]{2}-\d{1,2}-\d{4}|PostInit|Pre-?Init)\s{0,8}\|\s{0,4}(?P<time>\d{1,2}:\d{2}:\d{2}"
    r"|PostInit)\s{0,8}\|\s{0,4}(?P<rest>.{1,600})"
)
_CSV = re.compile(
    r"^(?P<id>[0-9a-fA-F]{1,6}),(?:(?P<date>\d{1,2}/\d{1,2}/\d{2,4}),(?P<time>\d{1,2}:\d{2}:\d{2}(?:\s?[AP]M)?)(?:\s?[A-Z]{2,5})?"
    r"|(?P<pre>Pre-Init),(?P<boot>\d{0,12})),(?P<rest>[^,]{1,120},.{1,400})$"
)
_FREE_CSV = re.compile(
    r"^(?P<id>\d{1,6}),(?P<date>[A-Z][a-z]{2}-\d{1,2}-\d{4}|PostInit|Pre-?Init),(?P<time>\d{1,2}:\d{2}:\d{2}|PostInit),"
    r"(?P<rest>[^,]{1,120},.{1,400})$"
)
_BLOCK = re.compile(r"^\s{0,4}(SEL Record ID|Record Type|Timestamp|Sensor Type|Sensor Number|Event Type|Event Direction|"
                    r"Event Data|Description|Sensor ID|Event Interpretation)[^:\n]{0,30}:\s?(.{0,300})$")  # fmt: skip
_HEADER = re.compile(r"^ID\s{1,12}\|\s{0,8}Date\s{1,12}\|\s{0,8}Time")
_HEADER_CSV = re.compile(r"^ID,Date,Time,Name,Type\b")
_OEM = re.compile(r"^OEM (?:record|\w{0,20}) ?[0-9a-f]{1,2}\b", re.I)
_RAW = re.compile(r"^(?:OEM record [0-9a-f]{2}|Unknown #0x[0-9a-f]{2})\b", re.I)
_DIRECTION = re.compile(r"^\s{0,4}(Asserted|Deasserted|Assertion Event|Deassertion Event)\b", re.I)
_STATE = frozenset({"Nominal", "Warning", "Critical", "N/A", "Unrecognized"})
_STATE_SEVERITY = {"Nominal": "OK", "Warning": "Warning", "Critical": "Critical"}
_EMPTY = re.compile(r"^SEL has no entries|^No SEL entries|^SEL Information|^Version\s{1,12}: \d", re.I)
_SEL_WORDS = re.compile(
    r"Asserted|Deasserted|Assertion Event|OEM record|Event Direction|Critical|Presence detected|#0x"
)
SAMPLE_LINES = 400
MAX_EMPTY_FIELDS = 12


class Record(Struct, frozen=True, kw_only=True):
    """One record of an event log, whatever printed it."""

    number: str
    sensor: str
    event: str
    asserted: bool | None
    severity: str = ""
    at_s: float | None = None
    clock: str = ""
    line: int = 0
    raw: str = ""


def recognise(document: Document) -> float:
    """By the form of its first lines; free text beside it lowers the sureness."""
    if document.is_binary or document.head.lstrip()[:1] in ("{", "[", "<"):
        return 0.0
    hits = others = 0
    for number, line in document.lines():
        if number > SAMPLE_LINES:
            break
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if _EMPTY.match(text):
            return 0.5
        block = text.startswith(("SEL Record ID", "Sensor Type", "Event Direction"))
        if (
            block
            or _HEADER.match(text)
            or _HEADER_CSV.match(text)
            or (
                (form := _form(line)) is not None
                and (form.re is _FREE_CSV or _SEL_WORDS.search(line) or _LIST.search(line))
            )
        ):
            hits += 1
        elif not _BLOCK.match(line):
            others += 1
    if hits == 0:
        return 0.0
    return 0.9 if hits >= 2 * others else 0.6 if hits * 4 >= others else 0.3


def read(document: Document) -> Reading:
    """Each record as an observation where it means something; records of a vendor's own form are kept raw."""
    reading = Reading(reader=NAME, file=document.path)
    records = list(records_of(document, reading))
    reading.records = len(records)
    reading.observations = [
        _filed(seen, document.path)
        for seq, record in enumerate(records)
        if (seen := observation_of(record, seq)) is not None
    ]
    return reading


def _filed(seen: Observation, path: str) -> Observation:
    return Observation(
        signal=seen.signal, part=seen.part, at_s=seen.at_s, clock=seen.clock, detail=seen.detail,
        attributes=seen.attributes, source=seen.source, file=path, line=seen.line,
    )  # fmt: skip


def records_of(document: Document, reading: Reading) -> Iterator[Record]:
    """The records, in the order of the text; lines that look like one and are not understood are counted."""
    block: dict[str, str] = {}
    began = 0
    for number, line in document.lines():
        found = _BLOCK.match(line)
        if found is not None:
            if found[1] == "SEL Record ID":
                if block:
                    yield _of_block(block, began)
                block, began = {}, number
            block.setdefault(found[1], found[2].strip())
            continue
        if block and not line.strip():
            yield _of_block(block, began)
            block = {}
        record = record_of(line, number)
        if record is not None:
            yield record
        elif line.count("|") >= 4 and not _HEADER.match(line.strip()) and not line.lstrip().startswith("#"):
            reading.puzzled(number, line)
    if block:
        yield _of_block(block, began)


def record_of(line: str, number: int = 0) -> Record | None:
    """One line of any of the list forms; None for anything else."""
    found = _form(line)
    if found is None:
        return None
    groups = found.groupdict()
    separator = "," if found.re in (_CSV, _FREE_CSV) else "|"
    rest = groups["rest"].split(" ## ")[0]
    fields = [field.strip() for field in rest.split(separator)][:MAX_EMPTY_FIELDS]
    at_s, clock = read_time(f"{groups.get('date') or ''} {groups.get('time') or ''}")
    if groups.get("pre") and groups.get("boot"):
        at_s, clock = float(groups["boot"]), BOOT_CLOCK
    if found.re in (_FREE, _FREE_CSV):
        return _of_free(groups["id"], fields, (at_s, clock), number, line)
    asserted: bool | None = None
    words: list[str] = []
    for field in fields:
        direction = _DIRECTION.match(field)
        if direction is not None:
            asserted = not direction[1].lower().startswith("de")
        else:
            words.append(field)
    return Record(
        number=groups["id"], sensor=words[0] if words else "", event=" | ".join(words[1:]), asserted=asserted, at_s=at_s,
        clock=clock, line=number, raw=line.strip()[:500],
    )  # fmt: skip


def _form(line: str) -> re.Match[str] | None:
    if "|" not in line:
        text = line.strip()
        return (_CSV.match(text) or _FREE_CSV.match(text)) if line.count(",") >= 4 else None
    return _LIST.search(line[:1000]) or _FREE.match(line[:1000])


def _of_free(number: str, fields: list[str], stamp: tuple[float | None, str], line: int, raw: str) -> Record:
    """FreeIPMI: name, type, perhaps state, perhaps direction, event with its details after semicolons."""
    severity = ""
    asserted: bool | None = None
    words: list[str] = []
    for field in fields:
        direction = _DIRECTION.match(field)
        if field in _STATE:
            severity = _STATE_SEVERITY.get(field, "")
        elif direction is not None:
            asserted = not direction[1].lower().startswith("de")
        else:
            words.append(field)
    sensor = f"{words[1]} {words[0]}" if len(words) > 1 else "".join(words)
    return Record(number=number, sensor=sensor, event=" | ".join(words[2:]), asserted=asserted, severity=severity,
                  at_s=stamp[0], clock=stamp[1], line=line, raw=raw.strip()[:500])  # fmt: skip


def _of_block(block: dict[str, str], line: int) -> Record:
    """``ipmitool sel get`` or ``-v``: one record as a block of names and values."""
    at_s, clock = read_time(block.get("Timestamp", "").replace(" | ", " "))
    direction = block.get("Event Direction", "").lower()
    kind = block.get("Record Type", "02")
    sensor = " ".join(x for x in (block.get("Sensor Type", ""), block.get("Sensor ID", "")) if x)
    if not sensor and kind.lower() not in ("02", "2"):
        sensor = f"OEM record {kind}"
    event = block.get("Description", "") or block.get("Event Interpretation", "")
    number = block.get("Sensor Number", "")
    return Record(
        number=block.get("SEL Record ID", ""), sensor=f"{sensor} #0x{number}" if number else sensor, event=event,
        asserted=None if not direction else not direction.startswith("deassert"), at_s=at_s, clock=clock, line=line,
        raw="; ".join(f"{key}: {value}" for key, value in block.items())[:500],
    )  # fmt: skip


def observation_of(record: Record, seq: int = 0) -> Observation | None:
    """What a record says; None where it is ordinary talk of sensors."""
    text = f"{record.sensor} | {record.event}"
    attributes = {
        "record": "log",
        "log": "sel",
        "entry": record.number,
        "seq": str(seq),
        "subject": subject_of(record.sensor),
    }
    if _RAW.match(record.sensor) or _OEM.match(record.sensor):
        return _made(record, "bmc.oem", "", attributes | {"raw": record.event[:200]})
    if not record.event:
        return None
    meaning = meaning_of(text, _severity(record, text))
    if meaning is None:
        return None
    signal = meaning.key
    if (meaning.ends or record.asserted is False) and signal not in TALK:
        signal, attributes["ends"] = "bmc.cleared", meaning.key
    elif meaning.lasts:
        attributes["lasts"] = "yes"
    pci = pci_of(record.event)
    part = f"pci/{pci[0]}" if pci is not None else part_of_text(f"{record.sensor} {record.event}")
    if pci is not None:
        attributes["function"] = pci[1]
    if not part and signal not in TALK:
        part = _sensor(record.sensor, signal if signal != "bmc.cleared" else attributes["ends"])
    return _made(record, signal, part, attributes)


def _severity(record: Record, text: str) -> str:
    """A log line of ipmitool has no severity; only what says so itself is critical where no rule knows it."""
    if record.severity:
        return record.severity
    low = text.lower()
    if "non-critical" in low or "noncritical" in low:
        return "Warning"
    return (
        "Critical"
        if re.search(r"\bcritical\b|non-recoverable|\bfatal\b", low) and "critical interrupt" not in low
        else ""
    )


_KINDS = (("bmc.drive", "disk"), ("bmc.storage", "disk"), ("bmc.psu", "psu"), ("bmc.fan", "fan"), ("bmc.memory", "dimm"),
          ("bmc.cpu", "cpu"))  # fmt: skip
_NUMBERED = re.compile(r"#(0x[0-9a-fA-F]{1,4})\b")


def _sensor(name: str, signal: str) -> str:
    """A part by its sensor, where the record names the sensor only: ``disk/0x10``; measured quantities by the sensor's name."""
    number = _NUMBERED.search(name)
    kind = next((kind for prefix, kind in _KINDS if signal.startswith(prefix)), "")
    if kind and number is not None:
        return f"{kind}/{number[1]}"
    if re.match(r"(?:temp|voltage|current|fan|power)\w*\b", name, re.I) is None:
        return ""
    return f"sensor/{name.strip()[:60]}"


def _made(record: Record, signal: str, part: str, attributes: dict[str, str]) -> Observation:
    return Observation(
        signal=signal, part=part, at_s=record.at_s, clock=record.clock, detail=record.raw[:500], attributes=attributes,
        source=SOURCE, line=record.line,
    )  # fmt: skip


READER = Reader(
    name=NAME,
    text="IPMI event log as ipmitool or FreeIPMI print it",
    recognise=recognise,
    read=read,
)
