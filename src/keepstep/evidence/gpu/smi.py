"""The state query of a node, text or XML, as cards. Owns what both forms have in common; reads neither."""

import re

from msgspec import Struct, field

from keepstep.core.observation import Observation
from keepstep.evidence.gpu.card import Card, is_absent, pci_or_empty
from keepstep.evidence.gpu.driver_words import trouble
from keepstep.evidence.gpu.judge import report
from keepstep.evidence.gpu.peers import compare
from keepstep.evidence.gpu.smi_names import FABRIC_BAD, PATHS, THROTTLE
from keepstep.evidence.reading import Reading

MAX_CARDS = 512
_NOT_WORD = re.compile(r"[^a-z0-9]+")
_REASON = re.compile(
    r"^clocks_(?:throttle|event)_reasons?(?:/[a-z_]+)*/(?:clocks_(?:throttle|event)_reason_)?([a-z_]+)$"
)


class Query(Struct, kw_only=True):
    """What one run of the tool says."""

    cards: list[Card] = field(default_factory=list)
    slices: list[Card] = field(default_factory=list)
    attached: int | None = None
    attached_line: int = 0


def spelled(label: str) -> str:
    return _NOT_WORD.sub("_", label.strip().lower()).strip("_")


def tell(card: Card, path: str, text: str, line: int) -> None:
    """One value of the query, at a path relative to its device."""
    if text.startswith(
        ("[Unknown", "Unknown Error", "ERR!", "GPU is lost", "[GPU is lost", "[GPU requires", "GPU requires")
    ):
        if trouble(text) is not None and (not card.trouble or "unknown" in card.trouble.lower()):
            card.trouble, card.line = text, line or card.line
        return
    name = PATHS.get(path)
    if name == "repair.pending" and is_no(text):
        return
    if name is not None:
        card.say(name, text, line)
        return
    reason = _REASON.match(path)
    if reason is not None and reason[1] in THROTTLE:
        card.say(THROTTLE[reason[1]], text, line)
    elif path.startswith("fabric/"):
        bad = FABRIC_BAD.get(path.rsplit("/", 1)[1])
        if bad is not None and text.strip().lower() in bad:
            card.say("fabric.unhealthy", "yes", line)
    else:
        _identify(card, path, text)


def is_no(text: str) -> bool:
    return text.strip().lower() in ("no", "0", "false")


def _identify(card: Card, path: str, text: str) -> None:
    if path in ("uuid", "gpu_uuid", "mig_uuid") and text.startswith(("GPU-", "MIG-")):
        card.uuid = text.strip()[:64]
    elif path in ("pci/pci_bus_id", "pci/bus_id") and not card.pci:
        card.pci = pci_or_empty(text)


def conclude(query: Query, reading: Reading) -> None:
    """Judge every card, then beside its siblings, then their number."""
    query.cards, query.slices = _newest(query.cards), _newest(query.slices)
    if query.attached == len(query.cards):
        for index, card in enumerate(query.cards):
            card.index = card.index or str(index)
    for card in query.cards:
        _merge_partial_troubles(card)
        report(card, reading)
    for card in query.slices:
        report(card, reading)
    compare(query.cards, reading)
    count(query, reading)
    reading.records += len(query.cards) + len(query.slices)


def _newest(cards: list[Card]) -> list[Card]:
    """A tool that repeats itself (``-l``) says last how it is now."""
    return list({card.part or str(card.line): card for card in cards}.values())


def _merge_partial_troubles(card: Card) -> None:
    """An unknown error in one field of a device that otherwise answers is no lost device."""
    if card.trouble and len(card.facts) >= 8 and "unknown" in card.trouble.lower():
        card.trouble = ""


def count(query: Query, reading: Reading) -> None:
    """A query of chosen devices lists fewer than are attached, on purpose: half of them or less say nothing."""
    listed = len(query.cards)
    if query.attached is None or listed < 2 or not listed < query.attached < 2 * listed:
        return
    reading.observations.append(
        Observation(
            signal="gpu.count", node=reading.node, detail=f"{query.attached} devices attached, {listed} described",
            attributes={"attached": str(query.attached), "listed": str(listed)}, source=reading.reader, file=reading.file,
            line=query.attached_line,
        )
    )  # fmt: skip


__all__ = ["MAX_CARDS", "Query", "conclude", "is_absent", "spelled", "tell"]
