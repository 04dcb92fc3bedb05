"""One network interface as the host knows it, and what its state says beside the others. Pure; knows no file format.

Interfaces without a cable are everywhere. Down is a fault only where the interface is configured to carry traffic: it has a
master, an address, or a start-up file. Bonds follow their members; virtual interfaces and loopback are not looked at.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from keepstep.evidence.network.port import Judged, Origin
from keepstep.evidence.reading import Fine

_VIRTUAL = re.compile(
    r"^(?:lo|docker|veth|br-|virbr|cni|flannel|cali|tunl|kube|dummy|vxlan|vnet|tap|tun|cilium|lxc|ovs|sit|gre|ip6|erspan|wg|nodelocal|bond\d+\.)"
)
_MANAGEMENT = re.compile(r"^(?:usb|ipmi|idrac|mgmt|bmc|enx|wlan|wl)")


class Interface(Struct, kw_only=True):
    name: str
    up: bool | None = None
    """Whether it has a carrier; None where not told."""
    enabled: bool | None = None
    """Whether somebody has switched it on."""
    configured: bool = False
    """Whether something names it as one that is to carry traffic."""
    present: bool = True
    speed_mbps: float | None = None
    mtu: int | None = None
    wanted_mtu: int | None = None
    received: int = 0
    damaged: int = 0
    line: int = 0

    @property
    def part(self) -> str:
        return f"nic/{self.name}"

    @property
    def looked_at(self) -> bool:
        return not (_VIRTUAL.match(self.name) or _MANAGEMENT.match(self.name))


def judge(interfaces: Sequence[Interface], origin: Origin) -> Judged:
    """What the interfaces of one node say."""
    told = Judged()
    for one in interfaces:
        if not one.looked_at:
            continue
        before = len(told.observations)
        _presence(one, origin, told)
        if one.wanted_mtu and one.mtu and one.mtu != one.wanted_mtu and one.present and one.up is not False:
            detail = f"{one.name}: MTU {one.mtu} where {one.wanted_mtu} is configured"
            told.observations.append(origin.seen("netdev.mtu", one.part, detail, one.line, value=str(one.mtu)))
        if one.damaged > 1000 and one.damaged > one.received * 1e-5:
            detail = f"{one.name}: {one.damaged} of {one.received} frames damaged"
            told.observations.append(origin.seen("netdev.errors", one.part, detail, one.line))
        if one.up and len(told.observations) == before:
            told.fine.append(
                Fine(part=one.part, text="interface is up", node=origin.node, file=origin.file, line=one.line)
            )
    return told


def _presence(one: Interface, origin: Origin, told: Judged) -> None:
    if not one.present:
        told.observations.append(origin.seen("netdev.missing", one.part, f"{one.name} does not exist", one.line))
    elif one.up is False and one.configured and one.enabled is not False:
        told.observations.append(origin.seen("netdev.down", one.part, f"{one.name} is configured and down", one.line))
