"""Combination rules of network signals. Pure.

A link has two ends and a switch has many: one cause is one signal, at the part that is common to those who complain.
"""

from collections.abc import Sequence

from keepstep.core.catalog.row import Verdict
from keepstep.core.incident import Urgency
from keepstep.core.observation import Observation, kind_of, name_of
from keepstep.core.signal import Context, Rule, Signal, by_part, place_of, within

SWITCH_PORTS = 4
SWITCH_WINDOW_S = 60.0
PEER_REPORTERS = 3
_LINK_CLASSES = ("nic.link",)
_HARMLESS = (Verdict.BENIGN, Verdict.WATCH)


def _derived(key: str, signals: Sequence[Signal], context: Context, part: str, detail: str) -> Signal:
    """A new signal that stands for several."""
    first = signals[0].seen
    seen = Observation(
        signal=key, node=first.node, part=part, at_s=first.at_s, clock=first.clock, detail=detail[:500],
        count=len(signals), source="rule", file=first.file, line=first.line, entry=first.entry,
    )  # fmt: skip
    return Signal(seen=seen, row=context.catalog.row(key))


def _one_port(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Down now, and down often before: no coincidence."""
    sure: set[int] = set()
    for group in by_part(signals, context).values():
        down = [x for x in group if x.key in ("port.down", "port.down.alone", "netdev.down", "netdev.down.peers")]
        if down and any(x.key == "port.flaps" for x in group):
            sure.update(id(x) for x in down)
    because = "down now, and the link went down far more often than its peers'"
    return [
        x.graded(because, verdict=Verdict.FAULTY, isolate=True, urgency=Urgency.NOW, confidence=0.85)
        if id(x) in sure
        else x
        for x in signals
    ]


def _switch_restart(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Many ports that lose their link together: what they are plugged into, not they."""
    links = [x for x in signals if x.row.failure_class in _LINK_CLASSES and x.row.verdict not in _HARMLESS]
    told = list(signals)
    for switch, group in _together(links, context):
        parts = {place_of(x, context) for x in group}
        members = {id(x) for x in group}
        because = f"{len(parts)} ports lost their link together: one cause beyond the ports"
        told = [x.graded(because, verdict=Verdict.SUSPECT, isolate=False) if id(x) in members else x for x in told]
        told.append(_derived("fabric.flaps", group, context, f"switch/{switch}" if switch else "", because))
    return told


def _together(links: Sequence[Signal], context: Context) -> list[tuple[str, list[Signal]]]:
    """(switch or empty, its signals). By the switch where it is named; else by the clock of one host, within a minute."""
    named: dict[str, list[Signal]] = {}
    timed: dict[str, list[Signal]] = {}
    for signal in links:
        switch = signal.seen.attributes.get("switch")
        if switch:
            named.setdefault(switch, []).append(signal)
        elif signal.seen.at_s is not None and signal.seen.clock:
            timed.setdefault(signal.seen.clock, []).append(signal)
    found = [(switch, group) for switch, group in named.items() if _ports(group, context) >= SWITCH_PORTS]
    for group in timed.values():
        group.sort(key=lambda x: x.seen.at_s or 0.0)
        start = 0
        while start < len(group):
            close = [x for x in group[start:] if within(group[start], x, SWITCH_WINDOW_S)]
            if _ports(close, context) >= SWITCH_PORTS:
                found.append(("", close))
            start += max(len(close), 1)
    return found


def _ports(group: Sequence[Signal], context: Context) -> int:
    return len({place_of(x, context) for x in group})


def _common_peer(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Many nodes that lose their connections to one node: that one, not they."""
    towards: dict[str, list[Signal]] = {}
    for signal in signals:
        peer = signal.seen.attributes.get("peer", "")
        if peer and signal.row.failure_class in ("nic.transport", "software.nccl", "nic.link"):
            towards.setdefault(peer, []).append(signal)
    told = list(signals)
    for peer, group in towards.items():
        reporters = {x.seen.node for x in group}
        if len(reporters) < PEER_REPORTERS or peer in reporters:
            continue
        members = {id(x) for x in group}
        because = f"{len(reporters)} nodes report the same about {peer}: it is the common end"
        told = [x.harmless(because) if id(x) in members else x for x in told]
        derived = _derived("link.peer", group, context, "", because)
        host = peer if "/" not in peer else ""
        part = peer if "/" in peer else ""
        seen = Observation(
            signal="link.peer", node=host, part=part, detail=because, count=len(group), source="rule",
            file=derived.seen.file, line=derived.seen.line, entry=derived.seen.entry,
        )  # fmt: skip
        told.append(Signal(seen=seen, row=derived.row, because=(because,)))
    return told


def _both_ends(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The two ends of one link say the same thing twice: the host's end carries it, the switch's end confirms."""
    ends: dict[str, list[Signal]] = {}
    for signal in signals:
        link = signal.seen.attributes.get("cable", "")
        if link and signal.row.verdict not in _HARMLESS:
            ends.setdefault(link, []).append(signal)
    told = list(signals)
    for group in ends.values():
        hosts = [x for x in group if kind_of(x.seen.part) == "nic"]
        others = {id(x) for x in group if kind_of(x.seen.part) in ("link", "switch")}
        if hosts and others:
            carried = {id(hosts[0])}
            told = [
                x.harmless("the other end of a link that a host reports") if id(x) in others
                else x.graded("both ends of the link say so", confidence=max(x.row.confidence, 0.85)) if id(x) in carried
                else x
                for x in told
            ]  # fmt: skip
    return told


def _against_inventory(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """What was found beside what is expected. Two expectations that contradict each other are none."""
    expected: dict[str, dict[str, str] | None] = {}
    for signal in signals:
        if signal.key == "inventory.expected":
            part, wanted = signal.seen.part, dict(signal.seen.attributes)
            expected[part] = wanted if expected.setdefault(part, wanted) == wanted else None
    told = list(signals)
    blamed = {(x.seen.node, x.seen.file, x.seen.part, x.key) for x in signals}
    for signal in signals:
        wanted_here = expected.get(signal.seen.part) if signal.key == "inventory.found" else None
        if wanted_here:
            for key, part, detail in _differences(signal, wanted_here):
                if (signal.seen.node, signal.seen.file, part, key) not in blamed:
                    told.append(_derived(key, [signal], context, part, detail))
    return told


def _differences(found: Signal, wanted: dict[str, str]) -> list[tuple[str, str, str]]:
    """(key, part, detail) of what is less, or other, than expected."""
    told = []
    has, part = found.seen.attributes, found.seen.part
    speed, wanted_speed = _figure(has.get("speed_mbps", "")), _figure(wanted.get("speed_mbps", ""))
    if speed and wanted_speed and speed < wanted_speed:
        told.append(
            ("port.rate", part, f"{name_of(part)}: {speed / 1000:g} Gb/s where {wanted_speed / 1000:g} is expected")
        )
    mtu, wanted_mtu = has.get("mtu"), wanted.get("mtu")
    if mtu and wanted_mtu and mtu != wanted_mtu:
        told.append(("netdev.mtu", part, f"{name_of(part)}: MTU {mtu} where {wanted_mtu} is expected"))
    wanted_rate = _figure(wanted.get("rate", "").partition(" ")[0])
    for device, text in _named(has.get("rates", "")):
        rate = _figure(text)
        if rate and wanted_rate and rate < wanted_rate:
            told.append(("port.rate", f"nic/{device}/1", f"{device}: {rate:g} Gb/s where {wanted_rate:g} is expected"))
    versions = [x for x in wanted.get("firmware", "").split(",") if x]
    for device, version in _named(has.get("firmware", "")):
        if versions and version not in versions:
            detail = f"{device}: firmware {version} where {' or '.join(versions)} is expected"
            told.append(("nic.firmware.unexpected", f"nic/{device}", detail))
    return told + _misplaced(has, wanted) + _narrow(has, wanted)


def _misplaced(has: dict[str, str], wanted: dict[str, str]) -> list[tuple[str, str, str]]:
    """Interfaces that are bound to another slot or adapter than expected, or do not exist."""
    told, bound = [], dict(_named(has.get("binding", "")))
    for netdev, where in _named(wanted.get("binding", "")) if bound else ():
        if netdev not in bound:
            told.append(("port.missing", f"nic/{netdev}", f"{netdev}: expected at {where}, does not exist"))
        elif bound[netdev] != where:
            told.append(("nic.binding", f"nic/{netdev}", f"{netdev}: at {bound[netdev]} where {where} is expected"))
    return told


def _narrow(has: dict[str, str], wanted: dict[str, str]) -> list[tuple[str, str, str]]:
    """Devices that are missing from a listing of the bus, or whose links have fewer lanes than expected."""
    told, lanes = [], dict(_named(has.get("widths", "")))
    for address, text in _named(wanted.get("widths", "")) if lanes else ():
        kind, _, most = text.partition(":")
        now = _figure(lanes.get(address, ""))
        if address not in lanes:
            told.append((f"pci.missing.{kind}", f"{kind}/{address}", f"{address} is expected and not on the bus"))
        elif now and now < (_figure(most) or 0.0) and kind != "disk":
            told.append((f"pci.width.{kind}", f"{kind}/{address}", f"{address}: x{now:g} of x{most} lanes"))
    return told


def _named(text: str) -> list[tuple[str, str]]:
    return [(name, value) for name, equals, value in (item.partition("=") for item in text.split(",")) if equals]


def _figure(text: str) -> float | None:
    digits = text.replace(".", "", 1)
    return float(text) if digits.isascii() and digits.isdigit() and len(digits) < 15 else None


RULES: tuple[Rule, ...] = (
    Rule(
        name="against_inventory", text="What was found is compared with what the model of node should have.",
        apply=_against_inventory,
    ),
    Rule(name="flapping_port", text="A port that is down and has flapped is faulty.", apply=_one_port),
    Rule(name="switch_restart", text="Many ports that lose their link at once are one fabric incident.", apply=_switch_restart),
    Rule(name="both_ends", text="Both ends of one link are one signal, at the host's end.", apply=_both_ends),
    Rule(name="common_peer", text="Many nodes that lose one peer blame that peer.", apply=_common_peer),
)  # fmt: skip
