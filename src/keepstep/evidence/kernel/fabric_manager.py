"""The log of NVIDIA's fabric manager, read into observations: what it says about NVSwitches, their ports and itself.

Most of it is the ordinary set-up and release of multicast teams: only warnings and errors are looked at.
"""

import re

import msgspec

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.kernel import stamps, sxid, xid
from keepstep.evidence.kernel.bursts import Bursts
from keepstep.evidence.kernel.frames import MAX_DETAIL, Record, seen
from keepstep.evidence.reading import Reader, Reading

NAME = "fabric_manager"
HINTS = ("detected NVSwitch", "detected GPU", "detected NVLink", "NVLink training failed", "fabric manager")
PROGRAMS = ("nv-fabricmanager", "nvidia-fabricmanager", "nvidia-fabricmana")

_LINE = re.compile(
    r"\[([A-Z][a-z]{2}) (\d{1,2}) (\d{4}) (\d\d):(\d\d):(\d\d)\] "
    r"\[(DEBUG|INFO|NOTICE|WARNING|ERROR|CRITICAL|FATAL)\] \[tid \d+\] (.*)"
)
_SWITCH = re.compile(
    r"detected NVSwitch (non-fatal|fatal) error (\d{3,6})(?:.{0,60}? fid (\d+))?.{0,60}?pci bus id ([0-9a-fA-F:.]{7,20})"
    r"(?: physical id (\d+))?(?: port (\d+))?",
    re.I,
)
_SWITCH_BARE = re.compile(r"detected NVSwitch (non-fatal|fatal) error (\d{3,6})", re.I)
_GPU = re.compile(
    r"detected (?:GPU|NVLink) (non-fatal|fatal)?.{0,30}?error.{0,80}?pci bus id ([0-9a-fA-F:.]{7,20})", re.I
)
_TRAINING = re.compile(
    r"(?:nvlink|link|trunk).{0,80}?train(?:ing)?.{0,40}?fail|fail\w* .{0,60}?(?:link|nvlink) train", re.I
)
_STOPPED = re.compile(
    r"(?:fabric manager|nv-fabricmanager).{0,80}?(?:fail|abort|exit|terminat)|fail\w* .{0,40}?(?:initiali[sz]e|start) fabric",
    re.I,
)
_SERIOUS = ("ERROR", "CRITICAL", "FATAL")


def match(record: Record) -> list[Observation] | None:
    """The same sentences where the fabric manager writes them to the system's log."""
    if record.program not in PROGRAMS:
        return None
    return observations(record, False)


def observations(record: Record, serious: bool) -> list[Observation]:
    """What one line says. ``serious``: the program itself called it an error."""
    text = record.text
    if found := _SWITCH.search(text):
        severity, code = found[1].lower().replace("-", ""), int(found[2])
        attributes = {"sxid": str(code), "severity": severity, "link": found[6] or "", "physical": found[5] or ""}
        return [seen(record, sxid.signal_of(code, severity), sxid.part_of(found[4]) or "", attributes)]
    if found := _SWITCH_BARE.search(text):
        return [seen(record, sxid.signal_of(int(found[2]), found[1].lower().replace("-", "")), "", {"sxid": found[2]})]
    if found := _GPU.search(text):
        severity = "fatal" if (found[1] or "").lower() == "fatal" else "nonfatal"
        return [seen(record, f"fabric_manager.gpu_{severity}", xid.part_of(found[2]) or "")]
    if _TRAINING.search(text):
        return [seen(record, "fabric_manager.link_training")]
    if serious:
        return [seen(record, "fabric_manager.stopped" if _STOPPED.search(text) else "fabric_manager.error")]
    return []


def recognise(document: Document) -> float:
    lines = [line for line in document.head.splitlines()[:200] if line.strip()]
    ours = sum(_LINE.match(line) is not None for line in lines)
    return 0.9 if ours >= 1 and ours >= 0.3 * len(lines) else 0.0


def read(document: Document) -> Reading:
    reading = Reading(reader=NAME, file=document.path)
    bursts = Bursts()
    for number, text in document.lines():
        found = _LINE.match(text) if text.startswith("[") else None
        if found is None:
            continue
        reading.records += 1
        if found[7] not in (*_SERIOUS, "WARNING") and "detected " not in text:
            continue
        record = Record(
            line=number, text=found[8][:MAX_DETAIL], at_s=_seconds(found), clock="wall", program=NAME, framed=True
        )
        for observation in observations(record, found[7] in _SERIOUS):
            bursts.add(observation)
    reading.observations = [_from(seen_here, document.path) for seen_here in bursts.settled()]
    return reading


def _seconds(found: re.Match[str]) -> float | None:
    start = stamps.midnight_s(int(found[3]), stamps.MONTHS.get(found[1], 0), int(found[2]))
    return None if start is None else start + int(found[4]) * 3600 + int(found[5]) * 60 + float(found[6])


def _from(observation: Observation, path: str) -> Observation:
    return msgspec.structs.replace(observation, file=path, source=NAME)


READER = Reader(name=NAME, text="the fabric manager's log", recognise=recognise, read=read)
