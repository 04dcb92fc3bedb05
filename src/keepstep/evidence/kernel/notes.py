"""A person's notes about a card: which Xid came on which card, in prose. The weakest evidence of all, and better than none.

Reads a document only where nobody else knows its form, where it names codes and a PCI address, and where it is short: a person
wrote it. What a program logs about codes is not read here.
"""

import re

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.kernel.frames import MAX_DETAIL, frame
from keepstep.evidence.kernel.xid import part_of
from keepstep.evidence.reading import Reader, Reading

NAME = "notes"
SURE = 0.3
MAX_BYTES = 32 * 1024
MAX_LINES = 200

_CODES = re.compile(
    r"(?<![\w(])(?P<no>(?:no|without|not|never|neither) (?:an? )?)?X[Ii][Dd]s? {0,2}"
    r"(?P<codes>\d{1,3}(?:(?: {0,2}(?:/|,|&|and|or) {0,2})(?:X[Ii][Dd] )?\d{1,3}(?!\d|[:.]\d))*)\b(?!\.\d)"
)
_PCI = re.compile(r"\b((?:[0-9a-fA-F]{4,8}:)[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?\b")
_RANGE = re.compile(r"X[Ii][Dd]s? {0,2}\d{1,3} ?[-–] ?\d{1,3}\b")
"""Ranges of codes stand in manuals, not in what happened to a card."""
_TIME = re.compile(r"(?<![\d:.])([01]\d|2[0-3]):([0-5]\d)(?![\d:])")
_RECOVERY = (
    ("drain and reset", "drain_and_reset"), ("drain p2p", "drain_p2p"), ("node reboot", "reboot"), ("gpu reset", "reset"),
)  # fmt: skip


def recognise(document: Document) -> float:
    if document.is_binary or len(document.data) > MAX_BYTES or document.head[:1] in "{[<" or "NVRM:" in document.head:
        return 0.0
    lines = [line for line in document.head.splitlines()[:MAX_LINES] if line.strip()]
    if not any(_CODES.search(line) for line in lines) or not any(_PCI.search(line) for line in lines):
        return 0.0
    if _RANGE.search(document.head):
        return 0.0
    return 0.0 if any(frame(line.lstrip()).form for line in lines) else SURE


def read(document: Document) -> Reading:
    reading = Reading(reader=NAME, file=document.path)
    cards = [card for card in (part_of(found[1]) for found in _PCI.finditer(document.head)) if card]
    card = cards[0] if cards else ""
    for number, text in document.lines():
        if number > MAX_LINES:
            break
        reading.records += 1
        if found := _PCI.search(text):
            card = part_of(found[1]) or card
        for mention in _CODES.finditer(text):
            if not mention["no"]:
                reading.observations += _said(number, text, card, mention["codes"], document.path)
    return reading


def _said(number: int, text: str, card: str, codes: str, path: str) -> list[Observation]:
    """One observation for each time of day that the line gives; else one for each code."""
    times: list[float | None] = [int(found[1]) * 3600.0 + int(found[2]) * 60.0 for found in _TIME.finditer(text)]
    return [
        Observation(
            signal=_signal(int(code), text), part=card, at_s=at_s, clock="" if at_s is None else "time of day",
            detail=text.strip()[:MAX_DETAIL], attributes={"xid": code, "prose": "yes"}, source=NAME, file=path, line=number,
        )
        for code in dict.fromkeys(re.findall(r"\d+", codes))
        for at_s in times or [None]
    ]  # fmt: skip


def _signal(code: int, text: str) -> str:
    if code == 154:
        action = next((action for words, action in _RECOVERY if words in text.lower()), "")
        return f"xid.154.{action}" if action else "xid.154"
    return f"nvlink5.{code}" if 144 <= code <= 150 else f"xid.{code}"


READER = Reader(name=NAME, text="a person's notes that name Xid codes and a card", recognise=recognise, read=read)
