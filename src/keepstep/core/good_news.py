"""Signals that say that something is well again: which open fault each of them ends. Data and one look-up; lifts no hold."""

from keepstep.core.facts import SignalSeen
from keepstep.core.fault import Fault
from keepstep.core.ids import NodeId
from keepstep.core.world import World

ENDS: dict[str, tuple[str, ...]] = {
    "dependency.ok": ("dependency.",),
    "mount.ok": ("mount.",),
    "mount.nfs.ok": ("mount.",),
    "mount.lustre.ok": ("mount.",),
    "mount.ceph.ok": ("mount.",),
    "mount.nvmeof.ok": ("mount.",),
    "service.ok": ("service.",),
    "host.service.up": ("host.service.",),
    "port.up": ("port.down",),
    "nic.link_up": ("nic.link_down", "nic.link_lost"),
}
"""Good news -> begins of the signals that it takes back."""


def ended_by(fact: SignalSeen, node: NodeId, world: World) -> Fault | None:
    """The open fault of that part which the news is about. What was isolated comes back through the gate, not by good news."""
    begins = ENDS.get(fact.signal)
    if begins is None:
        return None
    part = world.parts.canonical(node, fact.part)
    found = world.fault_at.get((node, part)) or world.fault_at.get(("", part))
    if found is None:
        return None
    fault = world.faults[found]
    ours = all(signal.startswith(begins) for signal in fault.signals)
    return fault if ours and not fault.held and node in fault.nodes else None
