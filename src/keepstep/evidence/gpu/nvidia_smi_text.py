"""``nvidia-smi -q`` as text, whole or parts of it (``-d``). Levels are told by their indentation."""

import re

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.gpu.card import Card, Said, pci_or_empty
from keepstep.evidence.gpu.driver_words import device_in, trouble
from keepstep.evidence.gpu.smi import MAX_CARDS, Query, conclude, spelled, tell
from keepstep.evidence.reading import Reader, Reading

MAX_LEVELS = 12
_DEVICE = re.compile(r"^\s*GPU\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*(?::\s*(\S.*))?$")


class _Outline:
    """Where in the outline a line stands."""

    def __init__(self) -> None:
        self._levels: list[tuple[int, str]] = []

    def path(self, indent: int, label: str) -> str:
        while self._levels and self._levels[-1][0] >= indent:
            self._levels.pop()
        if len(self._levels) < MAX_LEVELS:
            self._levels.append((indent, label))
        return "/".join(name for _, name in self._levels)

    def clear(self) -> None:
        self._levels.clear()


class _Pass:
    def __init__(self, reading: Reading) -> None:
        self.query = Query()
        self._reading = reading
        self._card: Card | None = None
        self._slice: Card | None = None
        self._slice_indent = 0
        self._outline = _Outline()

    def line(self, number: int, text: str) -> None:
        device = _DEVICE.match(text)
        if device is not None:
            self._begin(number, device[1], device[2] or "")
        elif " : " in text or text.rstrip().endswith(" :"):
            self._value(number, text)
        elif text.strip():
            self._section(number, text)

    def _begin(self, number: int, address: str, answer: str) -> None:
        self._outline.clear()
        self._slice = None
        self._card = Card(pci=pci_or_empty(address), line=number)
        if len(self.query.cards) < MAX_CARDS:
            self.query.cards.append(self._card)
        if answer and trouble(answer) is not None:
            self._card.trouble = answer[:200]

    def _value(self, number: int, text: str) -> None:
        label, _, value = text.partition(" : ")
        indent, value = len(label) - len(label.lstrip()), value.strip()
        name = spelled(label)
        if self._card is None:
            if name == "attached_gpus" and value.isdecimal():
                self.query.attached, self.query.attached_line = int(value[:6]), number
            return
        self._leave_slice(indent)
        path = self._outline.path(indent, name)
        if self._slice is not None:
            self._slice_value(path, value, number)
        else:
            tell(self._card, path, value, number)

    def _slice_value(self, path: str, value: str, number: int) -> None:
        assert self._slice is not None
        path = path.partition("/")[2]
        if path == "gpu_instance_id":
            self._slice.facts["slice"] = Said(value, number)
        else:
            tell(self._slice, path, value, number)

    def _section(self, number: int, text: str) -> None:
        complaint = trouble(text)
        if complaint is not None:
            _complain(self._reading, number, text)
            return
        indent = len(text) - len(text.lstrip())
        if self._card is None:
            return
        self._leave_slice(indent)
        path = self._outline.path(indent, spelled(text))
        if path == "mig_device":
            self._slice, self._slice_indent = Card(line=number, parent=self._card.part), indent
            self.query.slices.append(self._slice)

    def _leave_slice(self, indent: int) -> None:
        if self._slice is not None and indent <= self._slice_indent:
            self._slice = None

    def end(self) -> None:
        for piece in self.query.slices:
            said = piece.facts.pop("slice", None)
            if not piece.uuid:
                piece.uuid = f"{piece.parent.partition('/')[2]}/mig{said.text if said is not None else ''}"


def _complain(reading: Reading, number: int, text: str) -> None:
    """A line of complaint in place of a device or of everything."""
    complaint = trouble(text)
    if complaint is None:
        return
    part = "" if complaint.whole_node else device_in(text)
    reading.observations.append(
        Observation(
            signal=complaint.signal, node=reading.node, part=part, detail=text.strip()[:500], source=reading.reader,
            file=reading.file, line=number,
        )
    )  # fmt: skip


complain = _complain


def read(document: Document) -> Reading:
    reading = Reading(reader="nvidia_smi_text", file=document.path)
    walk = _Pass(reading)
    for number, text in document.lines():
        walk.line(number, text)
    walk.end()
    conclude(walk.query, reading)
    return reading


def _recognise(document: Document) -> float:
    head = document.head
    if "NVSMI LOG==" in head:
        return 0.9
    lines = head.splitlines()[:40]
    return 0.8 if any(_DEVICE.match(line) for line in lines) and "Attached GPUs" in head else 0.0


READER = Reader(name="nvidia_smi_text", text="state of the devices: nvidia-smi -q", recognise=_recognise, read=read)
