"""Samples of a node's devices over time, one JSON object a line, keys like ``gpu_temperature:3`` (SuperBench's monitor)."""

import json
import re
from typing import Any

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.gpu.card import Card, Said
from keepstep.evidence.gpu.judge import report
from keepstep.evidence.gpu.peers import compare
from keepstep.evidence.reading import Reader, Reading

MAX_CARDS = 256
DEAD_AFTER = 2
_KEY = re.compile(r"^gpu_([a-z_]{2,40}):(\d{1,3})$")
NAMES: dict[str, str] = {
    "usage": "utilisation", "temperature": "temperature", "power": "power", "power_limit": "power.limit",
    "corrected_ecc": "ecc.corrected", "uncorrected_ecc": "ecc.volatile", "remap_correctable_error": "remap.correctable",
    "remap_uncorrectable_error": "remap.uncorrectable", "remap_none": "remap.banks.none", "remap_low": "remap.banks.low",
}  # fmt: skip


def read(document: Document) -> Reading:
    reading = Reading(reader="gpu_samples", file=document.path)
    cards: dict[str, Card] = {}
    last: dict[str, int] = {}
    for number, text in document.lines():
        if not text.strip():
            continue
        row = _row(text)
        if row is None:
            reading.puzzled(number, text)
            continue
        reading.records += 1
        for index in _sample(row, number, cards):
            last[index] = reading.records
    for card in cards.values():
        report(card, reading)
    # Its siblings went on: a device that stopped giving samples is gone; one sample may be missed by anybody.
    for index, card in cards.items():
        if reading.records - last[index] >= DEAD_AFTER:
            reading.observations.append(_dead(card, reading.records - last[index], reading))
    compare([card for index, card in cards.items() if last[index] == reading.records], reading)
    return reading


def _sample(row: dict[str, Any], number: int, cards: dict[str, Card]) -> set[str]:
    """Devices that this sample has values of. The newest value stands: counters only grow."""
    seen: set[str] = set()
    for key, value in row.items():
        match = _KEY.match(key) if len(key) < 64 else None
        if (
            match is None
            or isinstance(value, bool)
            or not isinstance(value, (int, float))
            or value < 0
            or value != value
        ):
            continue
        index = str(int(match[2]))
        card = cards.get(index)
        if card is None:
            if len(cards) >= MAX_CARDS:
                continue
            card = cards[index] = Card(index=index, line=number)
        seen.add(index)
        name = NAMES.get(match[1])
        before = card.number(name) if name is not None else None
        if name is not None and not (name.startswith(("ecc.", "remap.")) and before is not None and before >= value):
            card.facts[name] = Said(f"{value:.15g}", number)
    return seen


def _dead(card: Card, missed: int, reading: Reading) -> Observation:
    reading.fine = [fine for fine in reading.fine if fine.part != card.part]
    line = max((said.line for said in card.facts.values()), default=card.line)
    return Observation(
        signal="gpu.dead", part=card.part, detail=f"no sample in the last {missed}; its siblings have some",
        source=reading.reader, file=reading.file, line=line,
    )  # fmt: skip


def _row(text: str) -> dict[str, Any] | None:
    if text.lstrip()[:1] != "{":
        return None
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _recognise(document: Document) -> float:
    for line in document.head.splitlines()[:3]:
        row = _row(line)
        if row is not None and any(_KEY.match(key) for key in row if len(key) < 64):
            return 0.85
    return 0.0


READER = Reader(
    name="gpu_samples", text="samples of the devices over time: SuperBench's monitor", recognise=_recognise, read=read
)  # fmt: skip
