"""One device beside its siblings of the same model on the same node. What all share is no fault of one. Judges nothing else."""

from collections.abc import Iterable, Sequence
from statistics import median

from keepstep.evidence.gpu.card import Card
from keepstep.evidence.gpu.judge import Found, observation
from keepstep.evidence.reading import Reading

MIN_SIBLINGS = 3
BUSY = 50.0
SLOW_CLOCK = 0.8
HOTTER_C = 20.0
HOT_C = 70.0

_Key = tuple[str, str, str]


def compare(cards: Sequence[Card], reading: Reading) -> None:
    """Adds what stands out; groups of fewer than three say nothing, except about links that are narrow or down."""
    siblings = _Siblings(reading)
    for group in _groups(cards):
        siblings.widths(group)
        siblings.links(group)
        busy = [card for card in group if (card.number("utilisation") or 0) >= BUSY]
        if len(busy) >= MIN_SIBLINGS:
            siblings.clocks(busy)
            siblings.heat(busy)
            siblings.generations(busy)
    siblings.tell()


def _groups(cards: Sequence[Card]) -> Iterable[list[Card]]:
    found: dict[tuple[str, str], list[Card]] = {}
    for card in cards:
        if not card.trouble:
            found.setdefault((card.node, card.text("name")), []).append(card)
    return found.values()


class _Siblings:
    """Collects what stands out, and changes the reading once."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._said = {(seen.node, seen.part, seen.signal) for seen in reading.observations}
        self._replaced: set[_Key] = set()
        self._found: list[tuple[Card, Found]] = []

    def widths(self, group: list[Card]) -> None:
        counted = [(card, card.number("pcie.width") or 0) for card in group]
        widest = max(width for _, width in counted)
        for card, width in counted:
            if 0 < width < widest <= 32 and self._key(card, "gpu.pcie.width") not in self._said:
                self._replaced.add(self._key(card, "gpu.pcie.width.alone"))
                self._add(card, "gpu.pcie.width", f"{width:g} lanes, its siblings have {widest:g}", "pcie.width")

    def links(self, group: list[Card]) -> None:
        """A slice of a card has no links: cards in that mode are left out."""
        counted = [(card, card.number("nvlink.active")) for card in group if card.text("mode.mig") != "Enabled"]
        most = max((active for _, active in counted if active is not None), default=0.0)
        for card, active in counted:
            if active is not None and active < most and self._key(card, "gpu.nvlink.down") not in self._said:
                detail = f"{active:g} links active, its siblings have {most:g}"
                self._add(card, "gpu.nvlink.down", detail, "nvlink.active")

    def clocks(self, busy: list[Card]) -> None:
        usual = _usual(busy, "clock.sm")
        for card in busy:
            own = card.number("clock.sm")
            if own and own < SLOW_CLOCK * usual:
                self._add(card, "gpu.clock.peers", f"{own:g} MHz, siblings {usual:g} MHz", "clock.sm")

    def heat(self, busy: list[Card]) -> None:
        usual = _usual(busy, "temperature")
        for card in busy:
            own = card.number("temperature")
            if usual and own and HOT_C <= own < 150 and own >= usual + HOTTER_C:
                self._add(card, "gpu.temperature.peers", f"{own:g} C, siblings {usual:g} C", "temperature")

    def generations(self, busy: list[Card]) -> None:
        usual = _usual(busy, "pcie.gen")
        for card in busy:
            own = card.number("pcie.gen")
            if own and own < usual:
                self._add(card, "gpu.pcie.gen", f"generation {own:g} while busy, siblings {usual:g}", "pcie.gen")

    def tell(self) -> None:
        if not self._found:
            return
        standing = {(card.node, card.part) for card, _ in self._found}
        reading = self._reading
        reading.fine = [fine for fine in reading.fine if (fine.node, fine.part) not in standing]
        reading.observations = [
            seen for seen in reading.observations if (seen.node, seen.part, seen.signal) not in self._replaced
        ]
        reading.observations.extend(observation(card, found, reading) for card, found in self._found)

    def _key(self, card: Card, signal: str) -> _Key:
        return (card.node or self._reading.node, card.part, signal)

    def _add(self, card: Card, signal: str, detail: str, fact: str) -> None:
        self._found.append((card, Found(signal, detail, fact)))


def _usual(cards: list[Card], name: str) -> float:
    """The middle of what is known; 0 where too few say it."""
    values = [value for card in cards if (value := card.number(name))]
    return median(values) if len(values) >= MIN_SIBLINGS else 0.0
