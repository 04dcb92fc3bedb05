"""SMART reports as JSON: of ``smartctl -j``, one or several merged, and of ``nvme smart-log -o json``. Must not judge."""

import re
from typing import Any

from keepstep.core.observation import Same
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading
from keepstep.evidence.storage import drive as drives_of
from keepstep.evidence.storage.drive import Drive

MAX_DRIVES = 4096
_DEVICE = re.compile(r"(nvme\d+|[sh]d[a-z]{1,3}|disk\d+|bus/\d+)")
_ASKS = re.compile(r"^(?:-[a-zA-Z]*[axHA][a-zA-Z]*|--all|--xall|--health|--attributes)$")
"""Options that ask for health: a report that was only asked what drive it is may be silent about it."""
_PLACEHOLDERS = ("", "unknown", "none", "n/a")
_ATA = {5: "reallocated", 197: "pending", 198: "pending"}


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def is_report(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("smartctl"), dict) and "devices" not in found


def is_nvme_log(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and "critical_warning" in found
        and ("avail_spare" in found or "available_spare" in found)
    )


def of_report(found: dict[str, Any], called: str = "") -> Drive:
    """The drive of one report of smartctl."""
    device, tool = _map(found.get("device")), _map(found.get("smartctl"))
    path = str(device.get("name") or device.get("info_name") or called)
    match = _DEVICE.search(path) or _DEVICE.search(called)
    drive = Drive(name=match.group(1) if match else (path.rpartition("/")[2] or "unnamed")[:64])
    drive.serial, drive.model = str(found.get("serial_number", ""))[:64], str(found.get("model_name", ""))[:64]
    status = _map(found.get("smart_status"))
    drive.passed = status.get("passed") if isinstance(status.get("passed"), bool) else None
    log = _map(found.get("nvme_smart_health_information_log"))
    _nvme(drive, log)
    _ata(drive, _map(found.get("ata_smart_attributes")))
    _scsi(drive, found)
    drive.temperature = _number(_map(found.get("temperature")).get("current"))
    if _map(found.get("smart_support")).get("available") is False:
        drive.notes["support"] = "none"
    has_attributes = bool(log or found.get("ata_smart_attributes") or found.get("scsi_error_counter_log"))
    drive.answered = drive.passed is not None or has_attributes
    _exit(drive, tool)
    return drive


def _nvme(drive: Drive, log: dict[str, Any]) -> None:
    warning = log.get("critical_warning")
    drive.critical = _number(warning if not isinstance(warning, dict) else warning.get("value"))
    drive.spare = _number(log.get("available_spare", log.get("avail_spare")))
    drive.spare_limit = _number(log.get("available_spare_threshold", log.get("spare_thresh")))
    drive.used = _number(log.get("percentage_used", log.get("percent_used")))
    drive.media_errors = _number(log.get("media_errors"))
    drive.log_entries = _number(log.get("num_err_log_entries"))


def _ata(drive: Drive, attributes: dict[str, Any]) -> None:
    table = attributes.get("table")
    failing = []
    for entry in table[:256] if isinstance(table, list) else ():
        if not isinstance(entry, dict):
            continue
        raw = _number(_map(entry.get("raw")).get("value")) or 0
        kind = _ATA.get(_number(entry.get("id")) or 0)
        if kind == "reallocated":
            drive.reallocated = raw & 0xFFFFFFFF
        elif kind == "pending":
            drive.pending = max(drive.pending, raw & 0xFFFFFFFF)
        if entry.get("when_failed") in ("now", "FAILING_NOW"):
            failing.append(str(entry.get("name", "?"))[:40])
    drive.failing_attributes = tuple(failing[:16])


def _scsi(drive: Drive, found: dict[str, Any]) -> None:
    lost = 0
    for direction in _map(found.get("scsi_error_counter_log")).values():
        lost += _number(_map(direction).get("total_uncorrected_errors")) or 0
    if lost and drive.media_errors is None:
        drive.media_errors = lost


def _exit(drive: Drive, tool: dict[str, Any]) -> None:
    """Exit status: bit 0 command line, 1 could not open, 2 a command failed, 3 failing, 4 attributes below their limits."""
    status = _number(tool.get("exit_status")) or 0
    messages = tool.get("messages")
    texts = (
        [str(x.get("string", ""))[:200] for x in messages[:8] if isinstance(x, dict)]
        if isinstance(messages, list)
        else []
    )
    text = "; ".join(texts) or f"exit status {status}"
    argv = tool.get("argv")
    asked = isinstance(argv, list) and any(_ASKS.match(str(word)) for word in argv[1:20])
    if status & 0b11 or drive.notes.get("support") == "none":
        drive.unopened = text
    elif not drive.answered and (status & 0b100 or texts or asked):
        drive.refused = text if status & 0b100 or texts else "no health information in the report"
    if status & 0b1000 and drive.passed is None:
        drive.passed, drive.answered = False, True


def _reports(document: Document) -> list[tuple[str, dict[str, Any]]]:
    found = document.json
    if is_report(found):
        return [("", found)]
    if isinstance(found, dict):
        return [(str(name), x) for name, x in list(found.items())[:MAX_DRIVES] if is_report(x)]
    if isinstance(found, list):
        return [("", x) for x in found[:MAX_DRIVES] if is_report(x)]
    return []


def _logs(document: Document) -> list[tuple[str, dict[str, Any]]]:
    found = document.json
    if is_nvme_log(found):
        return [("nvme", found)]
    if isinstance(found, dict):
        return [(str(name), x) for name, x in list(found.items())[:MAX_DRIVES] if is_nvme_log(x)]
    return []


def _recognise(document: Document) -> float:
    head = document.head.lstrip("\ufeff \t\r\n")
    if head[:1] not in ("{", "[") or not ('"smartctl"' in head or "critical_warning" in head):
        return 0.0
    return 0.95 if _reports(document) else 0.85 if _logs(document) else 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="smart_json", file=document.path)
    drives = []
    for called, found in _reports(document):
        drives.append(of_report(found, called))
        at = document.data.find(f'"{called}"'.encode()) if called and len(drives) <= 64 else -1
        drives[-1].line = document.data.count(b"\n", 0, at) + 1 if at >= 0 else 0
    for called, found in _logs(document) if not drives else ():
        match = _DEVICE.search(called)
        drive = Drive(name=match.group(1) if match else "nvme", answered=True)
        _nvme(drive, found)
        kelvin = _number(found.get("temperature"))
        drive.temperature = kelvin - 273 if kelvin and kelvin > 200 else kelvin
        drives.append(drive)
    told = drives_of.judge(drives, "", "smart_json", document.path)
    reading.records, reading.observations, reading.fine = len(drives), told.observations, told.fine
    reading.same = serials(drives)
    return reading


def serials(drives: list[Drive]) -> list[Same]:
    """Serials are names too, unless several drives claim the same one: then it is a placeholder."""
    claimed: dict[str, int] = {}
    for drive in drives:
        claimed[drive.serial] = claimed.get(drive.serial, 0) + 1
    return [
        Same(parts=(drive.part, f"disk/{drive.serial}"))
        for drive in drives
        if drive.serial.strip().lower() not in _PLACEHOLDERS and claimed[drive.serial] == 1
    ]


READER = Reader(
    name="smart_json", text="smartctl -j, nvme smart-log -o json: health of drives", recognise=_recognise, read=_read
)
