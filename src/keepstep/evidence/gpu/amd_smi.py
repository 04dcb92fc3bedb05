"""AMD's tools: ``amd-smi metric|static|bad-pages`` (JSON and text) and ``rocm-smi`` (JSON and text), as cards."""

import re
from collections.abc import Iterator
from typing import Any

from keepstep.evidence.document import Document
from keepstep.evidence.gpu.amd_names import AMD, ROCM
from keepstep.evidence.gpu.card import Card, pci_or_empty
from keepstep.evidence.gpu.driver_words import trouble
from keepstep.evidence.gpu.judge import report
from keepstep.evidence.gpu.peers import compare
from keepstep.evidence.gpu.smi import spelled
from keepstep.evidence.reading import Reader, Reading

MAX_CARDS, MAX_DEPTH, MAX_VALUES = 512, 12, 100_000
_GPU_LINE = re.compile(r"^GPU: (\d{1,3})\s*$")
_ROCM_LINE = re.compile(r"^GPU\[(\d{1,3})\]\s*: (.{1,120}?): +(.{0,200}?)\s*$")
_RAS_LINE = re.compile(r"^\s*([A-Z_]{2,16})\s+(ENABLED|DISABLED)\s+(\d{1,12})\s+(\d{1,12})\s*$")
_RAS_OF = re.compile(r"^GPU\[(\d{1,3})\]\s*:\s*RAS INFO", re.IGNORECASE)


def read(document: Document) -> Reading:
    reading = Reading(reader="amd_smi", file=document.path)
    tree = document.json
    cards = list(_from_json(tree) if tree is not None else _from_text(document))
    for card in cards:
        reading.records += 1
        report(card, reading)
    compare(cards, reading)
    return reading


def tell_tree(card: Card, tree: dict[str, Any]) -> Card:
    """The values of one device's tree; also for the live source, which asks the same tool."""
    for path, value in _values(tree, "", 0):
        if path in ("bus/bdf", "bdf"):
            card.pci = card.pci or pci_or_empty(value)
        elif path in ("asic/uuid", "uuid") and len(value) > 8:
            card.uuid = card.uuid or value[:64]
        else:
            _tell(card, path, value, 0)
    return card


def _tell(card: Card, path: str, value: str, line: int) -> None:
    name = AMD.get(path)
    if name is not None and name.endswith(".list"):
        return
    if name is not None:
        text = {"ACTIVE": "active", "NOT ACTIVE": "not active", "THROTTLED": "1", "UNTHROTTLED": "0"}.get(
            value.strip().upper(), value
        )
        card.say(name, text, line)
    elif trouble(value) is not None and len(value) < 200:
        card.trouble = card.trouble or value


def _values(tree: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """(path, text); ``{"value": 45, "unit": "C"}`` is one value. A list stands for its first entries."""
    if depth > MAX_DEPTH:
        return
    for key, value in list(tree.items())[:2000]:
        path = f"{prefix}/{spelled(str(key))}" if prefix else spelled(str(key))
        if isinstance(value, dict) and "value" in value and "unit" in value:
            yield path, str(value["value"])
        elif isinstance(value, dict):
            yield from _values(value, path, depth + 1)
        elif isinstance(value, (str, int, float)):
            yield path, str(value)[:200]


def _from_json(tree: Any) -> Iterator[Card]:
    if isinstance(tree, dict) and isinstance(tree.get("gpu_data"), list):
        tree = tree["gpu_data"]
    if isinstance(tree, list):
        for entry in tree[:MAX_CARDS]:
            if isinstance(entry, dict) and "gpu" in entry:
                card = Card(index=str(entry["gpu"])[:4] if str(entry["gpu"]).isdecimal() else "")
                yield tell_tree(card, {key: value for key, value in entry.items() if key != "gpu"})
    elif isinstance(tree, dict):
        for name, entry in list(tree.items())[:MAX_CARDS]:
            if isinstance(entry, dict) and name.startswith("card") and name[4:].isdecimal():
                card = Card(index=name[4:])
                for key, value in list(entry.items())[:500]:
                    _rocm(card, str(key), str(value), 0)
                yield card


def _rocm(card: Card, key: str, value: str, line: int) -> None:
    name = next((ours for words, ours in ROCM if key.lower().startswith(words)), None)
    if name == "pci":
        card.pci = card.pci or pci_or_empty(value)
    elif name == "uuid":
        card.uuid = card.uuid or (value[:64] if value.startswith("0x") else "")
    elif name is not None:
        card.say(name, value, line)


def _from_text(document: Document) -> Iterator[Card]:
    cards: dict[str, Card] = {}
    levels: list[tuple[int, str]] = []
    current: Card | None = None
    for number, text in document.lines():
        device, rocm, ras = _GPU_LINE.match(text), _ROCM_LINE.match(text), _RAS_OF.match(text)
        if device is not None or ras is not None:
            index = (device or ras)[1]  # type: ignore[index]
            current = _card(cards, index, number)
            levels.clear()
        elif rocm is not None:
            card = _card(cards, rocm[1], number)
            if card is not None:
                _rocm(card, rocm[2], rocm[3], number)
        elif current is not None and text.strip():
            block = _RAS_LINE.match(text)
            if block is not None:
                current.say("ecc.corrected", block[3], number)
                current.say("ecc.volatile", block[4], number)
            else:
                _outlined(current, levels, text, number)
    yield from cards.values()


def _card(cards: dict[str, Card], index: str, number: int) -> Card | None:
    if index not in cards and len(cards) < MAX_CARDS:
        cards[index] = Card(index=index, line=number)
    return cards.get(index)


def _outlined(card: Card, levels: list[tuple[int, str]], text: str, number: int) -> None:
    label, colon, value = text.partition(":")
    if not colon:
        return
    indent = len(text) - len(text.lstrip())
    while levels and levels[-1][0] >= indent:
        levels.pop()
    if len(levels) < MAX_DEPTH:
        levels.append((indent, spelled(label)))
    if value.strip():
        path = "/".join(name for _, name in levels)
        if path in ("bus/bdf", "bdf"):
            card.pci = card.pci or pci_or_empty(value)
        else:
            _tell(card, path, value.strip(), number)


def _recognise(document: Document) -> float:
    head = document.head
    start = head.lstrip("\ufeff \t\r\n")[:1]
    if (
        start in ("[", "{")
        and '"gpu"' in head
        and any(word in head for word in ('"ecc"', '"hotspot"', '"asic"', '"gfx_activity"'))
    ):
        return 0.8
    if (
        start == "{"
        and '"card0"' in head
        and any(word in head for word in ("Temperature (Sensor", "GPU use (%)", "Card "))
    ):
        return 0.85
    if _rocm_or_amd(head):
        return 0.8
    return 0.0


def _rocm_or_amd(head: str) -> bool:
    lines = head.splitlines()[:200]
    if any(_ROCM_LINE.match(line) or _RAS_OF.match(line) for line in lines):
        return True
    indented = any(
        line.startswith("    ") and line.strip().rstrip(":") in ("ECC", "ASIC", "TEMPERATURE", "PCIE", "USAGE")
        for line in lines
    )
    return indented and any(_GPU_LINE.match(line) for line in lines)


READER = Reader(name="amd_smi", text="state of AMD devices: amd-smi, rocm-smi", recognise=_recognise, read=read)
