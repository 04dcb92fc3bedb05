"""Where errors of network ports come from: one port, one node, the cooling of a rack, or something that a rack or the fleet
shares. Pure. Owns the table of what a pattern means; it blames no accelerator and orders nothing.

Silicon, cables and modules fail alone; air, coolant, power and switches fail for many ports at once. So the pattern over ports
comes first, and only then the inlet temperature, which tells cooling from what else a rack shares.
"""

import enum
import statistics
from collections.abc import Mapping

from msgspec import Struct

from keepstep.core.health.level import COUNTERS, strength
from keepstep.core.health.window import History, grown, per_day, points, recent
from keepstep.core.observation import kind_of

NETWORK_COUNTERS = ("nic_symbol_errors", "link_downed")
AILING = 0.693
"""Strength from which a port counts: its counter's scale in a day, or a quarter of it in 6 hours."""
MANY_NODES = 3
MANY_SHARE = 0.5
ELSEWHERE_SHARE = 0.1
"""If more than this share of the nodes outside ail as well, the rack is not what they have in common."""
INLET_RISE_C = 3.0
INLET_ABOVE_C = 5.0

Node = str
Fleet = Mapping[Node, Mapping[str, History]]


class Origin(enum.Enum):
    PORT = "port"
    """One port, its cable or its module: silicon or wear. The part is to blame."""
    NODE = "node"
    """Most ports of one node: what they share in it, such as a PCIe switch, a riser or a power feed."""
    COOLING = "cooling"
    """Many nodes of one rack, and its inlet is warm: cooling. No part is to blame."""
    RACK = "rack"
    """Many nodes of one rack, at ordinary temperature: its switch or its power. No port is to blame."""
    FLEET = "fleet"
    """Many nodes of many racks: the fabric or a change that all of them got. No port is to blame."""


class Cluster(Struct, frozen=True, kw_only=True):
    """Ports whose errors have one origin."""

    origin: Origin
    where: str
    """The port (``node/part``), the node, the rack, or empty for the fleet."""
    ports: tuple[tuple[Node, str], ...]
    because: str

    def explained(self, node: Node) -> frozenset[tuple[str, str]]:
        """The (part, counter) of a node that must not count against the part itself."""
        if self.origin is Origin.PORT:
            return frozenset()
        return frozenset((part, name) for at, part in self.ports if at == node for name in NETWORK_COUNTERS)


def clusters(fleet: Fleet, rack_of: Mapping[Node, str], now_s: float) -> list[Cluster]:
    """The origins of all ports that have errors now, widest first. A node without a rack is in none."""
    ailing = {node: _ailing(parts, now_s) for node, parts in fleet.items()}
    sick = {node: ports for node, ports in ailing.items() if ports}
    racks = _by_rack(fleet, rack_of)
    if _fleet_wide(sick, fleet, rack_of):
        share = f"{len(sick)} of {len(fleet)} nodes in {len({rack_of[n] for n in sick if n in rack_of})} racks"
        return [_made(Origin.FLEET, "", sick, f"ports of {share} have errors: the fabric or a change that all got")]
    found: list[Cluster] = []
    told: set[Node] = set()
    for rack, nodes in sorted(racks.items()):
        here = {node: sick[node] for node in nodes if node in sick}
        if _rack_wide(here, nodes, sick, len(fleet)):
            origin, why = _warm(rack, racks, fleet, now_s)
            found.append(_made(origin, rack, here, f"{len(here)} of {len(nodes)} nodes of the rack have errors; {why}"))
            told.update(here)
    for node in sorted(sick.keys() - told):
        found.extend(_within(node, sick[node], fleet[node]))
    return found


def _ailing(parts: Mapping[str, History], now_s: float) -> tuple[str, ...]:
    return tuple(
        sorted(part for part, past in parts.items() if kind_of(part) == "nic" and _errors(past, now_s) >= AILING)
    )


def _errors(past: History, now_s: float) -> float:
    best = 0.0
    for name in NETWORK_COUNTERS:
        growths = grown(COUNTERS[name], points(past, name, now_s))
        for hours in (6.0, 24.0):
            best = max(best, strength(per_day(growths, now_s, hours), COUNTERS[name].scale))
    return best


def _by_rack(fleet: Fleet, rack_of: Mapping[Node, str]) -> dict[str, list[Node]]:
    racks: dict[str, list[Node]] = {}
    for node in fleet:
        if node in rack_of:
            racks.setdefault(rack_of[node], []).append(node)
    return racks


def _fleet_wide(sick: Mapping[Node, tuple[str, ...]], fleet: Fleet, rack_of: Mapping[Node, str]) -> bool:
    racks = {rack_of[node] for node in sick if node in rack_of}
    return len(racks) > 1 and len(sick) >= MANY_NODES and len(sick) >= MANY_SHARE * len(fleet)


def _rack_wide(here: Mapping[Node, object], nodes: list[Node], sick: Mapping[Node, object], size: int) -> bool:
    if len(here) < MANY_NODES or len(here) < MANY_SHARE * len(nodes):
        return False
    outside = size - len(nodes)
    return outside == 0 or (len(sick) - len(here)) <= ELSEWHERE_SHARE * outside


def _warm(rack: str, racks: Mapping[str, list[Node]], fleet: Fleet, now_s: float) -> tuple[Origin, str]:
    """Whether the inlet rose within the day, or stands above that of the other racks."""
    own = _inlet(racks[rack], fleet, now_s)
    if own is None:
        return Origin.RACK, "its inlet temperature is not measured, so cooling is not excluded"
    rise = own.peak_c - own.usual_c
    if rise >= INLET_RISE_C:
        return Origin.COOLING, f"its inlet rose by {rise:.1f} °C to {own.peak_c:.1f} °C: cooling"
    others = [t.usual_c for name, nodes in racks.items() if name != rack and (t := _inlet(nodes, fleet, now_s))]
    if others and own.usual_c - statistics.median(others) >= INLET_ABOVE_C:
        return (
            Origin.COOLING,
            f"its inlet is {own.usual_c - statistics.median(others):.1f} °C above other racks: cooling",
        )
    return Origin.RACK, f"its inlet is at an ordinary {own.usual_c:.1f} °C: switch or power"


class Inlet(Struct, frozen=True):
    peak_c: float
    usual_c: float


def inlet(past: History, now_s: float) -> Inlet | None:
    """The warmest reading of a day and its median; None where it is not measured now."""
    day = recent(past, "inlet_c", now_s, 24.0)
    return Inlet(max(day), statistics.median(day)) if day else None


def _inlet(nodes: list[Node], fleet: Fleet, now_s: float) -> Inlet | None:
    """The medians over the sensors of a rack: one sensor that lies does not decide."""
    found = [one for node in nodes for past in fleet[node].values() if (one := inlet(past, now_s)) is not None]
    if not found:
        return None
    return Inlet(statistics.median(one.peak_c for one in found), statistics.median(one.usual_c for one in found))


def _within(node: Node, ports: tuple[str, ...], parts: Mapping[str, History]) -> list[Cluster]:
    nics = [part for part in parts if kind_of(part) == "nic"]
    if len(ports) >= MANY_NODES and len(ports) > MANY_SHARE * len(nics):
        return [_made(Origin.NODE, node, {node: ports}, f"{len(ports)} of {len(nics)} ports of the node have errors")]
    alone = f"{len(ports)} of {len(nics)} ports of the node has errors" if len(ports) == 1 else "few ports of the node"
    return [
        _made(Origin.PORT, f"{node}/{port}", {node: (port,)}, f"{alone}: the port, its cable or its module")
        for port in ports
    ]


def _made(origin: Origin, where: str, sick: Mapping[Node, tuple[str, ...]], because: str) -> Cluster:
    ports = tuple((node, port) for node in sorted(sick) for port in sick[node])
    return Cluster(origin=origin, where=where, ports=ports, because=because)
