"""``lspci`` (``-nn``, ``-D``, ``-vv``): which accelerators and switches are on the bus, and which of them do not answer."""

import re

from msgspec import Struct

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.gpu.card import Card, pci_or_empty
from keepstep.evidence.gpu.judge import Found, observation, report
from keepstep.evidence.gpu.peers import compare
from keepstep.evidence.reading import Fine, Reader, Reading

MAX_DEVICES = 4096
_DEVICE = re.compile(
    r"^((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) ([A-Z0-9][^:\[]{2,60}?)(?: \[([0-9a-f]{4})\])?: (.{1,400})$"
)
_STATUS = re.compile(r"^\s+LnkSta:\s*Speed ([0-9.]+)GT/s[^,]{0,20},\s*Width x(\d{1,2})")
_CAPABLE = re.compile(r"^\s+LnkCap:.{0,60}?Speed ([0-9.]+)GT/s,\s*Width x(\d{1,2})")
_DEAD = re.compile(r"\(rev ff\)|Unknown header type 7f", re.IGNORECASE)
_ACCELERATORS = ("3D controller", "VGA compatible controller", "Processing accelerators", "Display controller")
_NVSWITCH = re.compile(r"\[10de:(?:1af1|1ac2|22a3|22a4)\]|NVSwitch", re.IGNORECASE)
_BASEBOARDS = (4, 8, 16)
_WHOLE_BOARDS = (8, 16)
"""Boards that a machine is sold with whole: one device less is one that is gone, with or without switches in the list."""


class _Device(Struct):
    card: Card
    kind: str
    dead_line: int = 0


def read(document: Document) -> Reading:
    reading = Reading(reader="lspci", file=document.path)
    devices = _collect(document, reading)
    accelerators = [device for device in devices if device.kind == "gpu"]
    for device in accelerators:
        if device.dead_line:
            detail = f"its configuration reads as all ones: {device.card.text('name')}"
            one = observation(device.card, Found("gpu.lost", detail), reading)
            reading.observations.append(one)
        elif device.card.number("pcie.width") is not None:
            report(device.card, reading)
        else:
            reading.fine.append(
                Fine(part=device.card.part, text="on the bus", file=reading.file, line=device.card.line)
            )
    compare([device.card for device in accelerators if not device.dead_line], reading)
    _count(devices, accelerators, reading)
    return reading


def _collect(document: Document, reading: Reading) -> list[_Device]:
    devices: list[_Device] = []
    for number, text in document.lines():
        match = _DEVICE.match(text)
        if match is not None:
            reading.records += 1
            if len(devices) < MAX_DEVICES:
                devices.append(_device(match, number))
        elif devices and text[:1] in ("\t", " ", "!"):
            _detail(devices[-1], text, number)
    return devices


def _device(match: re.Match[str], number: int) -> _Device:
    name = match[4]
    kind = ""
    if match[2].startswith(_ACCELERATORS) and ("NVIDIA" in name or "AMD/ATI" in name or "10de:" in name):
        kind = "gpu"
    elif _NVSWITCH.search(name):
        kind = "nvswitch"
    card = Card(pci=pci_or_empty(match[1]), line=number)
    card.say("name", name, number)
    return _Device(card=card, kind=kind, dead_line=number if _DEAD.search(name) else 0)


def _detail(device: _Device, text: str, number: int) -> None:
    if _DEAD.search(text):
        device.dead_line = device.dead_line or number
    elif text.lstrip().startswith("LnkSta:"):
        match = _STATUS.match(text)
        if match is not None:
            device.card.say("pcie.width", match[2], number)
    elif text.lstrip().startswith("LnkCap:"):
        match = _CAPABLE.match(text)
        if match is not None:
            device.card.say("pcie.width.max", match[2], number)


def _count(devices: list[_Device], accelerators: list[_Device], reading: Reading) -> None:
    """A board with switches carries 4, 8 or 16 devices; an odd number says that one is gone."""
    switches = [device for device in devices if device.kind == "nvswitch"]
    if not accelerators or len(accelerators) in _BASEBOARDS or len(accelerators) % 2 == 0:
        return
    soldered = all("SXM" in device.card.text("name") for device in accelerators)
    if not switches and not (soldered and len(accelerators) + 1 in _WHOLE_BOARDS):
        return
    detail = f"{len(accelerators)} accelerators on a board" + (f" with {len(switches)} switches" if switches else "")
    reading.observations.append(
        Observation(
            signal="gpu.count", detail=detail, attributes={"listed": str(len(accelerators))}, source=reading.reader,
            file=reading.file, line=accelerators[-1].card.line,
        )
    )  # fmt: skip


def _recognise(document: Document) -> float:
    lines = [line for line in document.head.splitlines()[:200] if line.strip()]
    devices = sum(_DEVICE.match(line) is not None for line in lines)
    if devices and _DEVICE.match(lines[0]) is not None:
        return 0.8 if devices >= 2 or len(lines) == 1 else 0.6
    return 0.0


READER = Reader(name="lspci", text="devices on the bus: lspci", recognise=_recognise, read=read)
