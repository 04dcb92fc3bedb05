"""Log entries, events and conditions of a controller, as observations. Owns their order and joining; judges none."""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

from keepstep.core.observation import Observation, kind_of
from keepstep.evidence.bmc.driver_events import driver_event
from keepstep.evidence.bmc.meanings import TALK, Meaning, meaning_of, words_of
from keepstep.evidence.bmc.names import part_of_path, part_of_text, pci_of, subject_of
from keepstep.evidence.bmc.times import CLOCK, read_time

_SEVERITIES = {"ok": "OK", "informational": "OK", "info": "OK", "normal": "OK", "warning": "Warning", "caution": "Warning",
               "critical": "Critical", "fatal": "Critical", "error": "Critical", "repaired": "OK"}  # fmt: skip
_DELL = re.compile(r"IDRAC\.[\d.]+\.([A-Z]{2,4})\d+")
_DELL_HARDWARE = re.compile(
    "ASR|BAT|CPU|CTL|CBL|ENC|FAN|HWC|LNK|MEM|NIC|OSE|PCI|PDR|PFM|PS|PST|PSU|PWR|RDU|RFL|RFM|SEC|SSD|TMP|VDR|VLT|VRM|AMP|COOL"
)
_TAGGED = re.compile(r"Sensor_Type : (?P<type>[^,]*),|Event_Type : (?P<event>[^,]*),|Event_Dir : (?P<dir>[^,]*),")
_TARGET = re.compile(r"\b(?:health|state) of (?:the )?(?:resource|sensor)? ?[`'\"]?(\S{1,200}?)[`'\"]? has", re.I)
_NOT_HARDWARE = re.compile(r"/(?:Journal|HostLogger|SOL|PostCodes?|Dump|BMCDump|Crashdump|FaultLog|CommandLog)\b", re.I)
"""Logs of a controller's own operating system, of consoles and of collected files."""
_OF_GPU = {
    "bmc.memory.uncorrectable": "bmc.gpu.memory.uncorrectable", "bmc.memory.corrected": "bmc.gpu.warning",
    "bmc.pcie.fatal": "bmc.gpu.pcie", "bmc.pcie.nonfatal": "bmc.gpu.pcie.nonfatal",
    "bmc.pcie.corrected": "bmc.gpu.pcie.nonfatal",
}  # fmt: skip
_LINK = re.compile(r"\bnv ?link", re.I)
_NUMBER = re.compile(r"(\d+)$")


class Entry(Struct, frozen=True, kw_only=True):
    """One record, in its log."""

    log: str
    number: str
    text: str
    message: str
    severity: str
    at_s: float | None
    clock: str
    arguments: tuple[str, ...]
    """Of the message: some carry more than the message shows."""
    ended: bool
    """The record itself says that the condition is over: a deassertion, ``Resolved``, ``Repaired``."""
    origin: str
    subject: str
    latched: bool
    line: int
    oem: bool = False


def entry_of(path: str, body: dict[str, Any], line: int, latched: bool = False) -> Entry | None:
    """The record in a body; None where it says nothing that a person could read."""
    message = _text(body, "Message") or _text(body, "Name")
    tagged = {
        key: value for found in _TAGGED.finditer(message[:1000]) for key, value in found.groupdict().items() if value
    }
    if tagged:
        message = f"{tagged.get('type', '')} | {tagged.get('event', '')} | {tagged.get('dir', '')}"
    if not message:
        return None
    message_id = _text(body, "MessageId")
    sensor = _text(body, "SensorType")
    arguments = [one for one in body.get("MessageArgs") or [] if isinstance(one, str)][:8] if isinstance(
        body.get("MessageArgs"), list) else []  # fmt: skip
    vendor = body.get("Oem")
    hpe = vendor.get("Hpe") if isinstance(vendor, dict) else None
    code = _text(body, "EntryCode").lower() + " " + tagged.get("dir", "").lower()
    ended = (
        "deassert" in code or body.get("Resolved") is True or (isinstance(hpe, dict) and hpe.get("Repaired") is True)
    )
    created = next((stamp for stamp in map(read_time, (body.get("Created"), body.get("EventTimestamp"),
                    body.get("Timestamp"))) if stamp[0] is not None), (None, ""))  # fmt: skip
    log, _, number = path.rstrip("/").rpartition("/")
    if _NOT_HARDWARE.search(log):
        return None
    words = words_of(message_id) if re.search(r"[A-Za-z]{4}", message_id) else ""
    severity = _severity(body)
    if severity == "OK" and (sensor or _text(body, "EntryType") == "SEL"):
        severity = ""  # records of sensors are often all called OK: their words count
    if _not_hardware(message_id):
        severity = "OK"
    return Entry(
        log=log, number=_text(body, "Id") or number, text=" | ".join(x for x in (sensor, words, message) if x)[:900],
        message=message, severity=severity, at_s=created[0], clock=created[1],
        arguments=tuple(arguments), ended=ended, origin=_origin(body),
        subject=subject_of(" ".join(sorted(arguments)) if arguments else _text(body, "SensorNumber") or sensor or message),
        latched=latched, line=line, oem=_text(body, "EntryType").lower() == "oem" and not message_id,
    )  # fmt: skip


def conditions_of(body: dict[str, Any], line: int) -> Iterable[Entry]:
    """The conditions that a service or a resource holds on to: latched, whatever the present state."""
    held = body.get("Conditions")
    for condition in held if isinstance(held, list) else []:
        if not isinstance(condition, dict):
            continue
        link = condition.get("LogEntry")
        path = link.get("@odata.id") if isinstance(link, dict) else None
        found = entry_of(path if isinstance(path, str) else "conditions/", condition, line, latched=True)
        if found is not None:
            yield found


def observations_of(entries: list[Entry], node: str) -> list[Observation]:
    """What the records say, in the order of each log; records of one event joined, one record told twice counted once."""
    told: set[tuple[str, str, str]] = set()
    found: list[Observation] = []
    joined: dict[tuple[str, str, str], int] = {}
    for seq, entry in enumerate(_in_order(entries)):
        if entry.number and entry.log:
            key = (entry.log, entry.number, entry.message[:200])
            if key in told:
                continue
            told.add(key)
        seen = _observed(entry, node, seq)
        if seen is None:
            continue
        event = seen.attributes.get("stamp")
        if event:
            base = seen.attributes.get("code", "")
            at = joined.get((seen.part, event, base))
            if at is not None:
                found[at] = _with(found[at], seen)
                continue
            joined[(seen.part, event, base)] = len(found)
        found.append(seen)
    return found


def _in_order(entries: list[Entry]) -> list[Entry]:
    """By number within each log, where all have one; logs stay where they first came. Conditions after entries."""
    logs: dict[tuple[bool, str], list[Entry]] = {}
    for entry in entries:
        logs.setdefault((entry.latched, entry.log), []).append(entry)
    ordered: list[Entry] = []
    for (latched, _), log in sorted(logs.items(), key=lambda item: item[0][0]):
        numbers = [_NUMBER.search(entry.number) for entry in log]
        if not latched and all(numbers):
            log = [
                e
                for _, e in sorted(
                    zip(numbers, log, strict=True), key=lambda pair: int(pair[0][1][-18:]) if pair[0] else 0
                )
            ]
            log = log[::-1] if _newest_first(log) else log
        ordered.extend(log)
    return ordered


def _newest_first(log: list[Entry]) -> bool:
    """Whether the numbers count backwards: some controllers give the newest record the first number."""
    times = [entry.at_s for entry in log if entry.at_s is not None and entry.clock == CLOCK]
    return len(times) == len(log) > 1 and times[0] > times[-1] and all(a >= b for a, b in pairwise(times))


def _observed(entry: Entry, node: str, seq: int) -> Observation | None:
    driver = driver_event(" ".join((entry.message, ", ".join(entry.arguments))))
    part = _part(entry)
    attributes = {"record": "log", "log": entry.log, "entry": entry.number, "seq": str(seq), "subject": entry.subject}
    if entry.latched:
        attributes["latched"] = "yes"
    if driver is not None:
        signal = driver.signal
        attributes |= driver.attributes
        if driver.stamp and signal != "bmc.nvswitch.online":
            attributes["stamp"] = driver.stamp
        if driver.host_s is not None:
            attributes["host_s"] = str(int(driver.host_s))
    else:
        meaning = _meaning(entry)
        if meaning is None:
            return None
        signal = "bmc.cleared" if meaning.ends else meaning.key
        if meaning.ends:
            attributes["ends"] = meaning.key
        if meaning.lasts and not meaning.ends:
            attributes["lasts"] = "yes"
        pci = pci_of(entry.message)
        if pci is not None:
            part, attributes["function"] = part or f"pci/{pci[0]}", pci[1]
        signal = _of_part(signal, part, entry.text)
        if "ends" in attributes:
            attributes["ends"] = _of_part(attributes["ends"], part, entry.text)
    return Observation(
        signal=signal, node=node, part=part, at_s=entry.at_s, clock=entry.clock, detail=entry.message[:500],
        attributes=attributes, source="redfish", line=entry.line,
    )  # fmt: skip


def _of_part(signal: str, part: str, text: str) -> str:
    """The words of memory and of the bus mean the host's own, unless an accelerator is named; a switch's links are its own."""
    kind = kind_of(part)
    of_a_link = signal == "bmc.event.critical" and _LINK.search(text) is not None
    if kind == "gpu":
        return "bmc.gpu.nvlink" if of_a_link else _OF_GPU.get(signal, signal)
    return "bmc.nvswitch.link" if kind == "nvswitch" and of_a_link else signal


def _meaning(entry: Entry) -> Meaning | None:
    meaning = meaning_of(entry.text, entry.severity)
    if meaning is None:
        return None
    if entry.ended and not meaning.ends and meaning.key not in TALK:
        return Meaning(key=meaning.key, ends=True, lasts=meaning.lasts)
    return meaning


def _part(entry: Entry) -> str:
    named = _TARGET.search(entry.message)
    if named is not None and "/" in named[1]:
        return part_of_path(named[1])
    by_text = part_of_text(entry.subject.replace("|", " ")) or part_of_text(entry.message)
    by_path = part_of_path(entry.origin)
    if by_text and not by_path.startswith(("disk/", "dimm/", "psu/", "nic/")):
        return by_text
    return by_path or by_text


def _with(first: Observation, more: Observation) -> Observation:
    """A further record of the same event: its attributes complete those of the first."""
    attributes = {**more.attributes, **first.attributes}
    if more.attributes.get("severity") == "fatal":
        attributes["severity"] = "fatal"
    signal = more.signal if more.attributes.get("repaired") == "yes" else first.signal
    return msgspec.structs.replace(first, signal=signal, attributes=attributes, count=first.count + 1)


def _severity(body: dict[str, Any]) -> str:
    for name in ("MessageSeverity", "Severity", "severity"):
        value = body.get(name)
        if isinstance(value, str) and value:
            return _SEVERITIES.get(value.lower(), "")
    return ""


def _not_hardware(message_id: str) -> bool:
    """A message of a family that never speaks of hardware: log-ins, jobs, licences, exports."""
    found = _DELL.search(message_id)
    return found is not None and _DELL_HARDWARE.fullmatch(found[1]) is None


def _origin(body: dict[str, Any]) -> str:
    links = body.get("Links")
    for holder in (links if isinstance(links, dict) else {}, body):
        origin = holder.get("OriginOfCondition")
        value = origin.get("@odata.id") if isinstance(origin, dict) else origin
        if isinstance(value, str):
            return value
    return ""


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value[:2000] if isinstance(value, str) else ""
