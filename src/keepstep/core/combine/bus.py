"""Combination rules of the PCI bus and of links: echoes of a lost card, reports of one error by two devices, flaps. Pure."""

import re
from collections.abc import Sequence

import msgspec

from keepstep.core.catalog.row import Verdict
from keepstep.core.combine.nearness import MAX_COMPARED, Nearby, boot_of, by_boot, end_s, follows, near, place
from keepstep.core.observation import kind_of, name_of
from keepstep.core.signal import Context, Rule, Signal, within

BEFORE_S = 600.0
AFTER_S = 3600.0
"""A card that is about to leave the bus was seen to disturb it minutes before, and its port for half an hour after."""
FLAPS = 3
FLAP_S = 3 * 3600.0
MANY_PORTS = 4
TOGETHER_S = 60.0
STACK_LINES = 60
STACK_S = 5.0

PORT_LINES = 40
PORT_S = 10.0

_OF_PORTS = ("pcie.aer.", "pcie.contained", "pcie.recovery_failed")
LOST_CARD = ("xid.79", "nvrm.gpu_lost", "device.lost", "amdgpu.lost")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}")
_RDMA = re.compile(r"nic/(?:ib|mlx[45]_|roce|rdma|hsn|hca)")


def address_of(part: str) -> str:
    found = _ADDRESS.match(name_of(part))
    return found[0] if found else ""


def named_device(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """An address whose kind another line gives away is that card: the port's report says only the address."""
    kinds = {
        (x.seen.node, address): kind_of(x.seen.part)
        for x in signals
        if kind_of(x.seen.part) in ("gpu", "nic") and (address := address_of(x.seen.part))
    }
    return [_renamed(signal, kinds, context) for signal in signals]


def _renamed(signal: Signal, kinds: dict[tuple[str, str], str], context: Context) -> Signal:
    if not signal.key.startswith("pcie.") or kind_of(signal.seen.part) != "pci":
        return signal
    kind = kinds.get((signal.seen.node, address_of(signal.seen.part)))
    key = f"{signal.key}.{kind}"
    if kind is None or key not in context.catalog.rows:
        return signal
    seen = msgspec.structs.replace(signal.seen, signal=key, part=f"{kind}/{address_of(signal.seen.part)}")
    return Signal(seen=seen, row=context.catalog.row(key), because=("another line says what is at this address",))


def said_twice(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A root port announces an error and then the device's own line describes it: one error."""
    described = {
        (x.seen.node, _grade(x.key), address_of(x.seen.part))
        for x in signals
        if x.key.startswith("pcie.aer.") and _described(x)
    }
    return [
        x for x in signals
        if not x.key.startswith("pcie.aer.") or _described(x)
        or (x.seen.node, _grade(x.key), address_of(x.seen.part)) not in described
    ]  # fmt: skip


def _described(signal: Signal) -> bool:
    return "PCIe Bus Error" in signal.seen.detail


def _grade(key: str) -> str:
    return ".".join(key.split(".")[:3])


def below_the_port(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The kernel asks every device below a failing port to recover: the one that cannot is the one the error is about."""
    devices = Nearby(
        [x for x in signals if x.key.startswith("pcie.") and kind_of(x.seen.part) in ("gpu", "nic", "disk")]
    )
    made = []
    for signal in signals:
        if signal.key.startswith(_OF_PORTS) and kind_of(signal.seen.part) == "pci":
            below = {
                x.seen.part
                for x in devices.around(signal, PORT_LINES)
                if near(signal, x, PORT_LINES, PORT_S) and _bad(x)
            }
            if len(below) == 1:
                signal = signal.harmless(f"the port above {min(below)}")
        made.append(signal)
    return made


def _bad(signal: Signal) -> bool:
    return signal.row.verdict in (Verdict.SUSPECT, Verdict.FAULTY)


def recovered(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """An error that was not fatal, after which the kernel says that the device came back: it happened, and it is over."""
    good = Nearby([x for x in signals if x.key.startswith("pcie.recovered")])
    bad = Nearby([x for x in signals if x.key.startswith("pcie.recovery_failed")])
    made = []
    for signal in signals:
        if signal.key.startswith("pcie.aer.nonfatal") and _soon_after(signal, good) and not _soon_after(signal, bad):
            signal = signal.graded("the device was recovered", verdict=Verdict.WATCH, isolate=False, confidence=0.5)
        made.append(signal)
    return made


def _soon_after(signal: Signal, others: Nearby) -> bool:
    return any(
        x.seen.line >= signal.seen.line and near(signal, x, PORT_LINES, PORT_S)
        for x in others.around(signal, PORT_LINES)
    )


def echo_of_a_lost_card(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The bus above a card that fell off, and its other functions, complain too: one fault, the card's.

    Which ports lie above a card is not in the log. Its own address is certain; a port is joined by domain and time, and only
    where one card was lost: several at once may well be a switch.
    """
    lost = by_boot(
        x for x in signals if x.key.startswith(LOST_CARD) and x.row.verdict in (Verdict.FAULTY, Verdict.SUSPECT)
    )
    return [_echo(signal, lost.get(place(signal), [])) for signal in signals] if lost else list(signals)


def _echo(signal: Signal, lost: Sequence[Signal]) -> Signal:
    if not lost or not signal.key.startswith(("pcie.", "bmc.pcie.")) or signal.row.verdict is Verdict.BENIGN:
        return signal
    own = address_of(signal.seen.part)
    cards = {address_of(x.seen.part) for x in lost[:MAX_COMPARED]}
    for card in lost[:MAX_COMPARED]:
        address = address_of(card.seen.part)
        if not _soon(signal, card):
            continue
        if own and own == address:
            return signal.harmless(f"the same card, {address}, was lost")
        if (
            len(cards) == 1
            and kind_of(signal.seen.part) in ("pci", "node")
            and own.partition(":")[0] in ("", address.partition(":")[0])
        ):
            return signal.harmless(f"most likely the port above {address}, which was lost about then")
    return signal


def _soon(signal: Signal, card: Signal) -> bool:
    a, b = signal.seen, card.seen
    if a.at_s is None or b.at_s is None or a.clock != b.clock:
        return True
    return b.at_s - BEFORE_S <= end_s(a) and a.at_s <= b.at_s + AFTER_S


def flapping_link(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Three losses of carrier within three hours on one port are one flapping link; many such ports at once are a switch.

    The driver, the bond, a daemon, and two logs of one machine each tell the same loss: whoever tells most is counted.
    """
    told_by: dict[tuple[str, ...], list[Signal]] = {}
    for signal in signals:
        if signal.key == "nic.link_down":
            told_by.setdefault((*_port(signal), signal.seen.file, signal.seen.attributes.get("apart", "")), []).append(
                signal
            )
    ports: dict[tuple[str, ...], tuple[Signal, int]] = {}
    for key, downs in told_by.items():
        found = _flap(downs)
        if found is not None and (key[:3] not in ports or found[1] > ports[key[:3]][1]):
            ports[key[:3]] = found
    flaps = {id(first): count for first, count in ports.values()}
    crowd = _crowd([x for x in signals if id(x) in flaps])
    told: set[str] = set()
    made = []
    for signal in signals:
        if id(signal) not in flaps:
            made.append(signal)
            continue
        many = id(signal) in crowd
        if many and signal.seen.node in told:
            made.append(signal.harmless("one of many ports that went down together"))
            continue
        if many:
            told.add(signal.seen.node)
        made.append(_flapped(signal, flaps[id(signal)], many, context))
    return made


def _port(signal: Signal) -> tuple[str, str, str]:
    return signal.seen.node, signal.seen.part, boot_of(signal)


def _crowd(first: Sequence[Signal]) -> set[int]:
    """The flaps that began together with those of many other ports of the same node."""
    found: set[int] = set()
    for ports in by_boot(first).values():
        for one in ports[:MAX_COMPARED]:
            together = {x.seen.part for x in ports[:MAX_COMPARED] if within(x, one, TOGETHER_S)}
            if len(together) >= MANY_PORTS:
                found.add(id(one))
    return found


def _flap(downs: list[Signal]) -> tuple[Signal, int] | None:
    """The first loss of a series that is long enough, and how many there were."""
    for index, first in enumerate(downs):
        count = sum(x.seen.count for x in downs[index : index + MAX_COMPARED] if within(first, x, FLAP_S))
        if count >= FLAPS:
            return first, count
    return None


def _flapped(signal: Signal, count: int, many: bool, context: Context) -> Signal:
    key = "nic.flap.many" if many else "nic.flap"
    seen = msgspec.structs.replace(signal.seen, signal=key, count=count, part="" if many else signal.seen.part)
    return Signal(
        seen=seen,
        row=context.catalog.row(key),
        because=(f"lost its carrier {count} times within {FLAP_S / 3600:.0f} h",),
    )


def stays_down(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A port that carries training traffic and went down for good; others go up and down with what hangs on them."""
    back: dict[tuple[str, str], Signal] = {}
    for signal in signals:
        if signal.key in ("nic.link_up", "nic.flap"):
            back[signal.seen.node, signal.seen.part] = signal
    return [_gone(signal, back, context) for signal in signals]


def _gone(signal: Signal, back: dict[tuple[str, str], Signal], context: Context) -> Signal:
    seen = signal.seen
    if signal.key != "nic.link_down" or not _RDMA.match(seen.part):
        return signal
    newest = back.get((seen.node, seen.part))
    if newest is not None and (newest.key == "nic.flap" or follows(newest, signal)):
        return signal
    return Signal(
        seen=msgspec.structs.replace(seen, signal="nic.link_lost"), row=context.catalog.row("nic.link_lost"),
        because=("no line says that it came back",),
    )  # fmt: skip


def stuck_in_the_adapter(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A lock-up whose stack stands in the adapter's driver is the adapter's."""
    stacks = Nearby([x for x in signals if x.key == "nic.stack"])
    made = []
    for signal in signals:
        if signal.key == "host.soft_lockup" and any(
            x.seen.line >= signal.seen.line and near(signal, x, STACK_LINES, STACK_S)
            for x in stacks.around(signal, STACK_LINES)
        ):
            seen = msgspec.structs.replace(signal.seen, signal="nic.driver_lockup")
            because = ("its stack stands in the adapter's driver",)
            signal = Signal(seen=seen, row=context.catalog.row("nic.driver_lockup"), because=because)
        made.append(signal)
    return made


RULES: tuple[Rule, ...] = (
    Rule(
        name="stuck_in_the_adapter",
        text="A lock-up inside the adapter's driver is the adapter's.",
        apply=stuck_in_the_adapter,
    ),
    Rule(name="named_device", text="An address that another line names as a card is that card.", apply=named_device),
    Rule(name="said_twice", text="An error that a port announces and a device describes is one.", apply=said_twice),
    Rule(
        name="below_the_port", text="A port's error is its one device's that could not recover.", apply=below_the_port
    ),
    Rule(name="recovered", text="A non-fatal error of a device that was recovered is over.", apply=recovered),
    Rule(
        name="echo_of_a_lost_card",
        text="Bus errors around a card that fell off are its echo.",
        apply=echo_of_a_lost_card,
    ),
    Rule(
        name="flapping_link", text="Three losses of carrier in three hours are one flapping link.", apply=flapping_link
    ),
    Rule(name="stays_down", text="A training port that went down and stayed down is lost.", apply=stays_down),
)
