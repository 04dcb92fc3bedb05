"""``nvidia-smi -q -x``: XML of every generation (document types v4 to v13). Refuses entities; never fetches anything."""

from typing import Any
from xml.parsers import expat

from keepstep.evidence.document import Document
from keepstep.evidence.gpu.card import Card, Said, pci_or_empty
from keepstep.evidence.gpu.smi import MAX_CARDS, Query, conclude, tell
from keepstep.evidence.reading import Reader, Reading

MAX_DEPTH = 24
MAX_VALUES = 200_000
MAX_BYTES = 64 * 1024 * 1024
_END = b"</nvidia_smi_log>"
_SKIPPED = frozenset(
    ("supported_clocks", "processes", "accounted_processes", "vgpu_device_capability", "supported_vgpus")
)


class _Refused(Exception):
    """The document does what no such report does."""


class _Walk:
    """Collects values by their path. ``_root`` is the depth of the device's own element."""

    def __init__(self, parser: Any, query: Query, first_line: int) -> None:
        self._parser, self._query = parser, query
        self._first_line = first_line
        self.skipped_lines = 0
        self._path: list[str] = []
        self._text: list[str] = []
        self._card: Card | None = None
        self._slice: Card | None = None
        self._skip = 0
        self._values = 0

    @property
    def _line(self) -> int:
        return int(self._parser.CurrentLineNumber) + self._first_line + self.skipped_lines

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._path) >= MAX_DEPTH or self._values > MAX_VALUES:
            raise _Refused("nested too deeply or too long")
        self._path.append(name)
        self._text.clear()
        if self._skip or name in _SKIPPED:
            self._skip += 1
        elif name == "gpu" and self._card is None and len(self._query.cards) < MAX_CARDS:
            self._card = Card(pci=pci_or_empty(attributes.get("id", "")), line=self._line)
            self._query.cards.append(self._card)
        elif name == "mig_device" and self._card is not None:
            self._slice = Card(line=self._line)
            self._query.slices.append(self._slice)

    def data(self, text: str) -> None:
        if sum(map(len, self._text)) < 400:
            self._text.append(text[:400])

    def end(self, name: str) -> None:
        text = "".join(self._text).strip()
        self._text.clear()
        if self._skip:
            self._skip -= 1
        elif text:
            self._values += 1
            self._value(text)
        if name == "mig_device" and self._slice is not None:
            self._end_slice()
        elif name == "gpu" and len(self._path) == 2:
            self._card = None
        self._path.pop()

    def _value(self, text: str) -> None:
        line = self._line
        if self._slice is not None:
            path = self._path[self._path.index("mig_device") + 1 :]
            if path in (["gpu_instance_id"], ["index"]):
                self._slice.facts.setdefault(f"slice.{path[0]}", Said(text, line))
            else:
                tell(self._slice, "/".join(path), text, line)
        elif self._card is not None and len(self._path) > 2:
            tell(self._card, "/".join(self._path[2:]), text, line)
        elif self._path[1:] == ["attached_gpus"] and text.isdecimal():
            self._query.attached, self._query.attached_line = int(text[:6]), line

    def _end_slice(self) -> None:
        whole, piece = self._card, self._slice
        self._slice = None
        if whole is None or piece is None:
            return
        piece.parent = whole.part
        if not piece.uuid:
            # Known only by its place within the device: "gpu/0000:01:00/mig3" is this project's own name for it.
            number = piece.facts.get("slice.gpu_instance_id") or piece.facts.get("slice.index")
            name = whole.part.partition("/")[2]
            piece.uuid = f"{name}/mig{number.text if number is not None else len(self._query.slices)}"
        piece.facts = {key: said for key, said in piece.facts.items() if not key.startswith("slice.")}


def read(document: Document) -> Reading:
    reading = Reading(reader="nvidia_smi_xml", file=document.path)
    conclude(query_of(document.data, reading), reading)
    return reading


def query_of(data: bytes, reading: Reading) -> Query:
    """The devices that the tool describes; what was not understood goes into the reading."""
    query = Query()
    first_line = 0
    for text in _reports(data):
        problem = _parse(text, query, first_line)
        if problem:
            reading.puzzled(first_line + 1, problem)
        first_line += text.count(b"\n")
    return query


def _parse(text: bytes, query: Query, first_line: int) -> str:
    """What is wrong with it; a report cut off in the middle has said what it said so far."""
    parser = expat.ParserCreate()
    walk = _Walk(parser, query, first_line)
    parser.StartElementHandler, parser.EndElementHandler = walk.start, walk.end
    parser.CharacterDataHandler = walk.data
    parser.EntityDeclHandler = _no_entities
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    start = text.find(b"<")
    walk.skipped_lines = text.count(b"\n", 0, max(start, 0))
    try:
        parser.Parse(text[max(start, 0) :], True)
    except (expat.ExpatError, _Refused, ValueError, LookupError) as error:
        return f"XML: {error}"
    return ""


def _reports(data: bytes) -> list[bytes]:
    """The tool repeats itself with ``-l``: each report is a document. The last ones say how it is now."""
    parts = data[:MAX_BYTES].split(_END)
    whole = [part + _END for part in parts[:-1]]
    if parts[-1].strip(b" \t\r\n\0"):
        whole.append(parts[-1])
    return whole


def _no_entities(*_: object) -> None:
    raise _Refused("declares entities")


def _recognise(document: Document) -> float:
    head = document.head
    if "<nvidia_smi_log" in head:
        return 0.95 if head.lstrip("\ufeff \t\r\n").startswith("<") else 0.7
    return 0.0


READER = Reader(
    name="nvidia_smi_xml", text="state of the devices: nvidia-smi -q -x", recognise=_recognise, read=read
)  # fmt: skip
