"""Which links of which device work: ``nvidia-smi nvlink`` (``-s``, ``-e``), ``dcgmi nvlink -s``."""

import re
from collections import Counter

import msgspec
from msgspec import Struct, field

from keepstep.core.observation import Same
from keepstep.evidence.document import Document
from keepstep.evidence.gpu.card import Card
from keepstep.evidence.gpu.driver_words import trouble
from keepstep.evidence.gpu.judge import LINK_ERRORS_MANY, Found, is_switched, observation
from keepstep.evidence.gpu.nvidia_smi_text import complain
from keepstep.evidence.reading import Fine, Reader, Reading

MAX_CARDS, MAX_LINKS = 512, 64
_DEVICE = re.compile(r"^\s*GPU (\d{1,3}): (.{1,120}?)(?: \(UUID: (GPU-[0-9a-fA-F-]{8,40})\))?\s*$")
_LINK = re.compile(r"^\s*Link (\d{1,2}): (.{1,80}?)\s*$")
_SPEED = re.compile(r"^(\d{1,4}(?:\.\d{1,3})?) GB/s$")
_ERRORS = re.compile(
    r"^(Replay|Recovery|CRC|CRC FLIT|CRC Data|ECC|Data|Flit)[A-Za-z ]{0,20} Errors?: (\d{1,20})$", re.IGNORECASE
)
_LETTERS_OF = re.compile(r"^\s*gpuId (\d{1,3}):\s*$")
_LETTERS = re.compile(r"^\s*([UDX_](?:\s+[UDX_]){0,63})\s*$")
"""Up, down, disabled, not supported: one letter for each link."""
_ALL_INACTIVE = re.compile(r"all links are in-?active", re.IGNORECASE)


class _Ports(Struct, kw_only=True):
    card: Card
    speeds: dict[int, float] = field(default_factory=dict)
    inactive: dict[int, int] = field(default_factory=dict)
    """Link -> line."""
    errors: Counter[str] = field(default_factory=Counter)
    error_line: int = 0
    lines: dict[int, int] = field(default_factory=dict)
    lettered: bool = False

    @property
    def switched(self) -> bool:
        return is_switched(self.card.text("name"))


def read(document: Document) -> Reading:
    reading = Reading(reader="nvlink_status", file=document.path)
    found = _collect(document, reading)
    for ports in found:
        reading.records += 1
        if len(ports.card.names) > 1:
            reading.same.append(Same(parts=ports.card.names))
        before = len(reading.observations)
        _judge(ports, found, reading)
        if len(reading.observations) == before and ports.speeds:
            text = f"{len(ports.speeds)} links up"
            reading.fine.append(Fine(part=ports.card.part, text=text, file=reading.file, line=ports.card.line))
    return reading


def _collect(document: Document, reading: Reading) -> list[_Ports]:
    found: list[_Ports] = []
    for number, text in document.lines():
        device, link = _DEVICE.match(text), _LINK.match(text)
        lettered, letters = _LETTERS_OF.match(text), _LETTERS.match(text)
        if device is not None and len(found) < MAX_CARDS:
            card = Card(index=device[1], uuid=device[3] or "", line=number)
            card.say("name", device[2], number)
            found.append(_Ports(card=card))
        elif lettered is not None and len(found) < MAX_CARDS:
            found.append(_Ports(card=Card(index=lettered[1], line=number), lettered=True))
        elif letters is not None and found and found[-1].lettered:
            _spelled_out(found[-1], letters[1].split(), number)
        elif link is not None and found and int(link[1]) < MAX_LINKS:
            _link(found[-1], int(link[1]), link[2], number, reading)
        elif _ALL_INACTIVE.search(text) and found:
            found[-1].inactive[-1] = number
        elif trouble(text) is not None:
            complain(reading, number, text)
    return found


def _spelled_out(ports: _Ports, letters: list[str], number: int) -> None:
    first = len(ports.speeds) + len(ports.inactive)
    for link, letter in enumerate(letters, first):
        if letter == "U":
            ports.speeds[link] = 1.0
            ports.lines[link] = number
        elif letter == "D":
            # Down, and neither disabled nor unknown to this board: it should be up.
            ports.inactive[link] = number


def _link(ports: _Ports, link: int, text: str, number: int, reading: Reading) -> None:
    speed, errors = _SPEED.match(text), _ERRORS.match(text)
    if speed is not None:
        if float(speed[1]) > 0:
            ports.speeds[link] = float(speed[1])
            ports.lines[link] = number
        else:
            ports.inactive[link] = number
    elif "inactive" in text.lower():
        ports.inactive[link] = number
    elif errors is not None:
        if int(errors[2]) > 0:
            ports.errors[errors[1].lower()] += int(errors[2])
            ports.error_line = ports.error_line or number
    elif ":" not in text and "," not in text and "link" not in text.lower():
        reading.puzzled(number, text)


def _judge(ports: _Ports, all_ports: list[_Ports], reading: Reading) -> None:
    if ports.errors:
        what = ", ".join(f"{count} {name}" for name, count in sorted(ports.errors.items()))
        signal = "gpu.nvlink.errors" if sum(ports.errors.values()) >= LINK_ERRORS_MANY else "gpu.nvlink.errors.some"
        _add(ports, reading, signal, f"link errors: {what}", ports.error_line)
    _speeds(ports, reading)
    if not ports.inactive:
        return
    line = min(ports.inactive.values())
    links = ",".join(str(link) for link in sorted(ports.inactive) if link >= 0) or "all"
    siblings = [
        other for other in all_ports if other.card.text("name") == ports.card.text("name") and other is not ports
    ]
    more = any(len(other.speeds) > len(ports.speeds) for other in siblings)
    if more or ports.lettered or (ports.switched and ports.speeds):
        _add(ports, reading, "gpu.nvlink.down", f"links inactive: {links}", line, links)
    elif ports.switched and (siblings or ports.card.index not in ("", "0")):
        # A board's only card may have been given to a guest without its switches; a card that has a number is not alone.
        _add(ports, reading, "gpu.nvlink.partial", "all links inactive on a board with switches", line, links)
    elif not ports.speeds or any(len(other.speeds) == len(ports.speeds) for other in siblings):
        _add(ports, reading, "gpu.nvlink.unused", f"links inactive, as on its siblings: {links}", line, links)
    else:
        _add(ports, reading, "gpu.nvlink.partial", f"links inactive: {links}", line, links)


def _speeds(ports: _Ports, reading: Reading) -> None:
    fastest = max(ports.speeds.values(), default=0.0)
    slow = [link for link, speed in ports.speeds.items() if speed < 0.9 * fastest]
    if slow:
        links = ",".join(str(link) for link in sorted(slow))
        _add(
            ports,
            reading,
            "gpu.nvlink.slow",
            f"links {links} slower than {fastest:g} GB/s",
            ports.lines[slow[0]],
            links,
        )


def _add(ports: _Ports, reading: Reading, signal: str, detail: str, line: int, links: str = "") -> None:
    one = observation(ports.card, Found(signal, detail, "", {"link": links} if links else {}), reading)
    reading.observations.append(msgspec.structs.replace(one, line=line))


def _recognise(document: Document) -> float:
    lines = document.head.splitlines()[:60]
    devices = any(_DEVICE.match(line) for line in lines)
    links = sum(_LINK.match(line) is not None for line in lines)
    if devices and links >= 2:
        return 0.85
    if "NvLink Link Status" in document.head and any(_LETTERS_OF.match(line) for line in lines):
        return 0.85
    return 0.6 if devices and any(_ALL_INACTIVE.search(line) for line in lines) else 0.0


READER = Reader(
    name="nvlink_status",
    text="links between devices: nvidia-smi nvlink, dcgmi nvlink -s",
    recognise=_recognise,
    read=read,
)
