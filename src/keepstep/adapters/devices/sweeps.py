"""What the child says, as observations, levels and names. Owns the memory of which devices there were; starts nothing."""

from msgspec import Struct, field

from keepstep.adapters.devices.steady import Duty, Steady
from keepstep.core.observation import Observation, Same
from keepstep.evidence.gpu.card import Card, Said, pci_or_empty
from keepstep.evidence.gpu.judge import RECOVERY, report
from keepstep.evidence.gpu.peers import compare
from keepstep.evidence.reading import Reading
from keepstep.ports import Outlet

EVENTS: dict[int, tuple[str, str]] = {
    2: ("gpu.ecc.dbe", "double-bit error"), 1024: ("gpu.retirement", "memory retired"),
    2048: ("gpu.remap.failed", "memory retirement failed"), 4096: ("gpu.poison", "poison contained"),
    8192: ("gpu.poison.fatal", "poison not contained"), 16384: ("gpu.lost", "device unavailable"),
}  # fmt: skip
_XID, _RECOVERY = 8, 32768
_UNLISTED_SWEEPS = 2
"""A device that is being reset is not listed for a moment."""
_SUSTAINED = ("throttle.hw_thermal", "throttle.power_brake", "throttle.hw_slowdown")


class CardLine(Struct):
    index: str = ""
    uuid: str = ""
    pci: str = ""
    serial: str = ""
    name: str = ""
    parent: str = ""
    trouble: str = ""
    instance: str = ""
    facts: dict[str, str] = {}


class EventLine(Struct):
    type: int
    data: int
    uuid: str = ""
    pci: str = ""
    index: str = ""
    serial: str = ""
    name: str = ""
    slice: str = ""


class Line(Struct):
    """One line of a child; exactly one of these stands in it."""

    begin: int | None = None
    card: CardLine | None = None
    end: int | None = None
    took_s: float = 0.0
    event: EventLine | None = None
    absent: str = ""
    loaded: bool = True
    failed: str = ""
    code: int = 0


class Known(Struct):
    """Every name that a device ever had, by UUID."""

    by_uuid: dict[str, Card] = field(default_factory=dict)
    uuid_at: dict[str, str] = field(default_factory=dict)
    """Index -> UUID, as it was while everything answered."""


class Sweeps:
    """``expected``: how many devices the inventory says; 0 for as many as were seen at the start."""

    def __init__(self, source: str, outlet: Outlet, expected: int = 0) -> None:
        self._source, self._outlet, self._expected = source, outlet, expected
        self._cards: list[Card] = []
        self._known = Known()
        self._steady, self._duty = Steady(), Duty()
        self._unlisted: dict[str, int] = {}
        """UUID -> sweeps in a row that did not list it."""

    def begin(self) -> None:
        self._cards = []

    def card(self, line: CardLine) -> None:
        uuid = line.uuid or self._known.uuid_at.get(line.index, "")
        before = self._known.by_uuid.get(uuid)
        parent = self._known.by_uuid.get(line.parent)
        card = Card(
            uuid=uuid, index=line.index, trouble=line.trouble,
            pci=pci_or_empty(line.pci) or (before.pci if before is not None else ""),
            parent=parent.part if parent is not None else "",
            facts={name: Said(text) for name, text in line.facts.items()},
        )  # fmt: skip
        for name, text in (("serial", line.serial), ("name", line.name)):
            card.say(name, text or (before.text(name) if before is not None else ""))
        self._cards.append(card)
        if line.trouble == "" and uuid and before is None:
            self._learn(card)

    def _learn(self, card: Card) -> None:
        self._known.by_uuid[card.uuid] = card
        if card.parent:
            return
        self._known.uuid_at[card.index] = card.uuid
        if len(card.names) > 1:
            self._outlet.same(Same(parts=card.names))

    def end(self, at_s: float) -> None:
        """Judge the sweep. ``at_s`` on this machine's monotonic clock."""
        reading = Reading(reader=self._source, file="")
        for card in self._cards:
            report(card, reading)
            self._levels(card)
            self._lasting(card, reading, at_s)
        whole = [card for card in self._cards if not card.parent]
        compare(whole, reading)
        self._missing(whole, reading)
        for one in self._steady.sweep(reading.observations):
            self._outlet.observe(one)

    def _levels(self, card: Card) -> None:
        for name in card.facts:
            value = card.number(name)
            if value is not None:
                self._outlet.level(card.part, f"gpu.{name}", value)

    def _lasting(self, card: Card, reading: Reading, at_s: float) -> None:
        for reason in _SUSTAINED:
            active = card.flag(reason)
            if active is not None and self._duty.sample(card.part, reason, active, at_s):
                detail = f"{reason.removeprefix('throttle.')} for most of the last minutes"
                reading.observations.append(
                    Observation(signal=f"gpu.{reason}.sustained", part=card.part, detail=detail, source=self._source)
                )

    def _missing(self, whole: list[Card], reading: Reading) -> None:
        """A device that was there and is not: by its own name where that is known, by number where not."""
        here = {card.uuid for card in whole}
        gone = [card for uuid, card in self._known.by_uuid.items() if uuid not in here and not card.parent]
        self._unlisted = {card.uuid: self._unlisted.get(card.uuid, 0) + 1 for card in gone}
        for card in gone:
            if self._unlisted[card.uuid] < _UNLISTED_SWEEPS:
                continue
            reading.observations.append(
                Observation(
                    signal="gpu.lost", part=card.part, detail="the driver does not list it any more", source=self._source,
                    attributes={"serial": card.text("serial"), "uuid": card.uuid},
                )
            )  # fmt: skip
        if self._expected and len(whole) + len(gone) < self._expected:
            reading.observations.append(
                Observation(
                    signal="gpu.count", detail=f"{len(whole)} devices; the inventory says {self._expected}",
                    attributes={"expected": str(self._expected), "seen": str(len(whole))}, source=self._source,
                )
            )  # fmt: skip

    def event(self, line: EventLine) -> None:
        """The driver said it by itself: no sweep is waited for."""
        known = self._known.by_uuid.get(line.uuid)
        card = known or Card(uuid=line.uuid, pci=pci_or_empty(line.pci), index=line.index)
        attributes: dict[str, str] = {"event": str(line.type)}
        if line.serial:
            attributes["serial"] = line.serial
        part = card.part
        if line.slice:
            part, attributes["parent"] = f"gpu/{line.slice}", card.part
        signal, detail = self._meaning(line)
        if signal:
            self._outlet.observe(
                Observation(signal=signal, part=part, detail=detail, attributes=attributes, source=self._source)
            )

    def _meaning(self, line: EventLine) -> tuple[str, str]:
        if line.type == _XID:
            return (f"xid.{line.data}", f"Xid {line.data} (driver's event)") if 0 < line.data < 1000 else ("", "")
        if line.type == _RECOVERY:
            wanted = RECOVERY.get(str(line.data), "")
            return (f"gpu.recovery_action.{wanted}", f"recovery action {line.data}") if wanted else ("", "")
        return EVENTS.get(line.type, ("", ""))
