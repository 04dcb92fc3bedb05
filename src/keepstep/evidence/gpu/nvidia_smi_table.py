"""``nvidia-smi`` without ``-q``: the table, the listing (``-L``), CSV of chosen columns, and bare complaints of the driver."""

import csv
import re
from collections.abc import Iterator, Sequence

from keepstep.evidence.document import Document
from keepstep.evidence.gpu.card import Card, Said, is_absent, pci_or_empty
from keepstep.evidence.gpu.driver_words import trouble
from keepstep.evidence.gpu.nvidia_smi_text import complain
from keepstep.evidence.gpu.smi import MAX_CARDS, Query, conclude
from keepstep.evidence.gpu.smi_names import COLUMNS, THROTTLE
from keepstep.evidence.reading import Reader, Reading

_LISTED = re.compile(r"^\s*GPU (\d{1,3}): (.{1,120}?) \(UUID: (GPU-[0-9a-fA-F-]{8,40})\)\s*$")
_SLICE = re.compile(r"^\s+MIG (\S{1,20})\s+Device\s+(\d{1,3}): \(UUID: (MIG-[0-9A-Za-z/-]{4,80})\)\s*$")
_TABLE = re.compile(r"\|\s*NVIDIA-SMI\s+[0-9.]+")
_ID_COLUMNS = {"index": "index", "uuid": "uuid", "gpu_uuid": "uuid", "pci.bus_id": "pci", "gpu_bus_id": "pci"}
_REASON = re.compile(r"^clocks_(?:throttle|event)_reasons\.([a-z_]+)$")
_TEMPERATURE = re.compile(r"(?<![\w.])(\d{1,3})C\b")
_PSTATE = re.compile(r"\b(P\d{1,2})\b")
_PERCENT = re.compile(r"(\d{1,3})%")
_POWER = re.compile(r"(\d{1,5})W\s*/\s*(\d{1,5})W")


class _Table:
    """Two or three lines a device; the first has its number, name and address."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._card: Card | None = None
        self._processes = False

    def line(self, number: int, text: str) -> None:
        if "Processes" in text:
            self._processes, self._card = True, None
        elif _TABLE.search(text):
            self._processes = False
        cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
        if self._processes or len(cells) != 3 or len(self._query.cards) >= MAX_CARDS:
            return
        words, place = cells[0].split(), cells[1].split()
        address = pci_or_empty(place[0]) if place and ":" in place[0] else ""
        if address and words and words[0].isdecimal():
            self._card = Card(pci=address, index=words[0], line=number)
            self._query.cards.append(self._card)
            self._first(number, words, cells)
        elif self._card is not None and "/" in cells[1]:
            self._second(number, cells)
            self._card = None

    def _first(self, number: int, words: Sequence[str], cells: Sequence[str]) -> None:
        assert self._card is not None
        name = " ".join(words[1:-1] if words[-1] in ("On", "Off", "N/A", "ERR!") else words[1:])
        if "ERR!" in cells[0] or "ERR!" in cells[2] or trouble(name) is not None:
            self._card.trouble = name if trouble(name) is not None else "ERR!"
        self._card.say("name", name, number)
        if cells[2].split():
            self._card.say("ecc.volatile", cells[2].split()[0].replace("Off", "N/A"), number)

    def _second(self, number: int, cells: Sequence[str]) -> None:
        assert self._card is not None
        # A fan that reads ERR! is how a card that waits for its reset shows on some boards.
        if not self._card.trouble and any(trouble(cell) is not None for cell in cells):
            self._card.trouble, self._card.line = "ERR!", number
        for name, pattern, where in (
            ("temperature", _TEMPERATURE, cells[0]), ("pstate", _PSTATE, cells[0]), ("power", _POWER, cells[0]),
            ("utilisation", _PERCENT, cells[2]),
        ):  # fmt: skip
            match = pattern.search(where)
            if match is not None:
                self._card.say(name, match[1], number)


def _read_lines(document: Document, reading: Reading, query: Query) -> None:
    table = _Table(query)
    whole: Card | None = None
    for number, text in document.lines():
        listed, piece = _LISTED.match(text), _SLICE.match(text)
        if listed is not None and len(query.cards) < MAX_CARDS:
            whole = Card(index=listed[1], uuid=listed[3], line=number)
            whole.say("name", listed[2], number)
            query.cards.append(whole)
        elif piece is not None and whole is not None:
            query.slices.append(Card(uuid=piece[3], parent=whole.part, line=number))
        elif text.lstrip().startswith("|"):
            table.line(number, text)
        elif trouble(text) is not None:
            complain(reading, number, text)


def _read_csv(document: Document, reading: Reading, query: Query) -> None:
    header: list[str] = []
    newest: dict[str, Card] = {}
    for number, row in _rows(document):
        if not header:
            header = [name.partition(" [")[0].strip().lower() for name in row]
            continue
        if len(row) != len(header):
            complain(reading, number, ",".join(row))
            continue
        card = _from_row(header, row, number)
        reading.records += 1
        if "retired_pages.cause" in header:
            card = _page(newest.get(card.part, card), row[header.index("retired_pages.cause")], number)
        newest[card.part or str(number)] = card
        if len(newest) >= MAX_CARDS:
            break
    # The tool repeats itself with -l: counters only grow, and the newest row says how it is now.
    query.cards = list(newest.values())


def _rows(document: Document) -> Iterator[tuple[int, list[str]]]:
    for number, text in document.lines():
        if not text.strip():
            continue
        try:
            yield number, [cell.strip() for cell in next(csv.reader([text]))]
        except (csv.Error, StopIteration):
            continue


def _from_row(header: Sequence[str], row: Sequence[str], number: int) -> Card:
    card = Card(line=number)
    for name, value in zip(header, row, strict=True):
        if name in _ID_COLUMNS:
            _identify(card, _ID_COLUMNS[name], value)
        elif (value.startswith("[") and trouble(value) is not None) or value.startswith(
            ("GPU is lost", "Unknown Error")
        ):
            card.trouble = card.trouble or value
        elif name in COLUMNS:
            card.say(COLUMNS[name], value, number)
        else:
            reason = _REASON.match(name)
            if reason is not None and reason[1] in THROTTLE:
                card.say(THROTTLE[reason[1]], value, number)
    return card


def _page(card: Card, cause: str, number: int) -> Card:
    """A listing has a row for each retired page."""
    name = {"single bit ecc": "retired.sbe", "double bit ecc": "retired.dbe"}.get(cause.lower())
    if name is not None:
        card.facts[name] = Said(f"{(card.number(name) or 0) + 1:g}", number)
    return card


def _identify(card: Card, name: str, value: str) -> None:
    if is_absent(value):
        return
    if name == "pci":
        card.pci = pci_or_empty(value)
    elif name == "uuid" and value.startswith(("GPU-", "MIG-")):
        card.uuid = value[:80]
    elif name == "index" and value.isdecimal():
        card.index = value[:4]


def _csv_columns(document: Document) -> int:
    first = document.head.lstrip("\ufeff\r\n ").split("\n", 1)[0]
    names = [name.partition(" [")[0].strip().lower() for name in first.split(",")]
    if len(names) < 2:
        return 0
    known = sum(name in COLUMNS or name in _ID_COLUMNS or _REASON.match(name) is not None for name in names)
    return known + 2 * names.count("retired_pages.cause")


def read(document: Document) -> Reading:
    reading = Reading(reader="nvidia_smi", file=document.path)
    query = Query()
    if _csv_columns(document) >= 2:
        _read_csv(document, reading, query)
    else:
        _read_lines(document, reading, query)
    conclude(query, reading)
    return reading


_TOOL_COMPLAINTS = (
    "NVIDIA-SMI has failed", "Failed to initialize NVML", "Unable to determine the device handle", "No devices were found",
)  # fmt: skip


def _recognise(document: Document) -> float:
    head = document.head
    lines = head.lstrip("\ufeff\r\n ").splitlines()[:12]
    columns = _csv_columns(document)
    if columns >= 3 or (columns == 2 and "[" in lines[0]):
        return 0.8
    if columns == 2 and lines[0].count(",") == 1 and any(mark in lines[0] for mark in "._"):
        return 0.6
    if any(_TABLE.search(line) for line in lines):
        return 0.85
    whole = [line for line in head.splitlines() if line.strip()]
    # Other programs list the devices first and then do something with them: theirs is the document.
    if (
        whole
        and all(_LISTED.match(line) or _SLICE.match(line) or trouble(line) for line in whole[:200])
        and _LISTED.match(whole[0])
    ):
        return 0.75
    if any(line.startswith(_TOOL_COMPLAINTS) for line in lines):
        return 0.7
    return 0.35 if _TABLE.search(head) else 0.0


READER = Reader(
    name="nvidia_smi", text="nvidia-smi: the table, -L, --query-gpu CSV, or its complaint", recognise=_recognise, read=read
)  # fmt: skip
