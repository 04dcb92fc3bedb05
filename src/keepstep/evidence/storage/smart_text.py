"""SMART reports as text: of ``smartctl`` and of ``nvme smart-log``. Must not judge."""

import re

from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading
from keepstep.evidence.storage import drive as drives_of
from keepstep.evidence.storage import smart_json
from keepstep.evidence.storage.drive import Drive

MAX_DRIVES = 1024
_HEAD = re.compile(r"^smartctl \d+\.\d+ ")
_NVME = re.compile(r"^Smart Log for NVME device:\s*([\w/.-]{1,40})", re.IGNORECASE)
_COMMAND = re.compile(r"^[#$>] ?(?:sudo )?(?:smartctl|nvme) .*?(?:/dev/)?(nvme\d+|[sh]d[a-z]{1,3})")
_FIELD = re.compile(r"^([A-Za-z][\w \[\]/().#-]{1,60}?)\s*:\s*(.*?)\s*$")
_ATTRIBUTE = re.compile(
    r"^\s*(\d{1,3}) ([\w-]{2,40})\s+0x[0-9a-fA-F]{4}\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4}|---)\s+(.*)$"
)
_RAW = re.compile(r"(-|FAILING_NOW|In_the_past)\s+(\d{1,20})")
_FIGURE = re.compile(r"^(?:0x([0-9a-fA-F]{1,8})|([\d,]{1,26}))")
_REFUSED = re.compile(
    r"(?:Read NVMe SMART/Health Information failed|NVMe Status:|SMART command failed|Input/output error)[^\n]{0,120}"
)
_UNOPENED = re.compile(
    r"(?:SMART support is: +Unavailable|Smartctl open device|"
    r"Unable to detect device type|Permission denied|No such device)[^\n]{0,160}"
)
_DEVICE = re.compile(r"/dev/(nvme\d+|[sh]d[a-z]{1,3})")


def _figure(text: str) -> int | None:
    match = _FIGURE.match(text)
    if match is None:
        return None
    return int(match.group(1), 16) if match.group(1) else int(match.group(2).replace(",", "") or 0)


def _recognise(document: Document) -> float:
    if document.is_binary:
        return 0.0
    lines = document.head.split("\n")[:200]
    return 0.9 if any(_HEAD.match(line) or _NVME.match(line) for line in lines) else 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="smart_text", file=document.path)
    drives: list[Drive] = []
    drive: Drive | None = None
    named = ""
    for number, line in document.lines():
        line = line[:500]
        if match := _COMMAND.match(line):
            named = match.group(1)
        elif _HEAD.match(line) or (match := _NVME.match(line)):
            found = _DEVICE.search(line) or re.search(r"(nvme\d+)", line if not _HEAD.match(line) else "")
            drive = Drive(name=found.group(1) if found else named or f"drive{len(drives)}", line=number)
            named = ""
            if len(drives) < MAX_DRIVES:
                drives.append(drive)
        elif drive is not None:
            _line(drive, line)
    told = drives_of.judge(drives, "", "smart_text", document.path)
    reading.records, reading.observations, reading.fine = len(drives), told.observations, told.fine
    reading.same = smart_json.serials(drives)
    return reading


def _line(drive: Drive, line: str) -> None:
    if match := _ATTRIBUTE.match(line):
        _attribute(drive, match)
    elif match := _UNOPENED.search(line):
        drive.unopened = match.group()
        if found := _DEVICE.search(line):
            drive.name = found.group(1)
    elif match := _REFUSED.search(line):
        drive.refused = match.group()
    elif match := _FIELD.match(line):
        _field(drive, match.group(1).strip().lower(), match.group(2))


def _attribute(drive: Drive, match: re.Match[str]) -> None:
    number, name, rest = int(match.group(1)), match.group(2), match.group(6)
    drive.answered = True
    raw = _RAW.search(rest)
    if raw is None:
        return
    value = int(raw.group(2))
    if raw.group(1) == "FAILING_NOW":
        drive.failing_attributes = (*drive.failing_attributes[:15], name)
    if number == 5:
        drive.reallocated = value
    elif number in (197, 198):
        drive.pending = max(drive.pending, value)


def _field(drive: Drive, key: str, value: str) -> None:
    if key in ("smart overall-health self-assessment test result", "smart health status"):
        drive.passed, drive.answered = value.upper().startswith(("PASSED", "OK")), True
        return
    if key == "serial number":
        drive.serial = value[:64]
        return
    figure = _figure(value)
    fields = {
        "critical warning": "critical", "critical_warning": "critical", "available spare": "spare",
        "available_spare": "spare", "available spare threshold": "spare_limit", "available_spare_threshold": "spare_limit",
        "percentage used": "used", "percentage_used": "used", "media and data integrity errors": "media_errors",
        "media_errors": "media_errors", "error information log entries": "log_entries", "num_err_log_entries": "log_entries",
        "temperature": "temperature",
    }  # fmt: skip
    if key in fields and figure is not None:
        setattr(drive, fields[key], figure)
        drive.answered = drive.answered or key != "temperature"


READER = Reader(name="smart_text", text="smartctl, nvme smart-log: health of drives", recognise=_recognise, read=_read)
