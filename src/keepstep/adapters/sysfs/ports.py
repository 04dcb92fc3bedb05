"""InfiniBand and Ethernet ports of this node: state and rate every second, counters less often. Parses with the readers' code.

A port that goes from active to something else is told at once; one that was never seen active is judged beside its peers. The
management network, bonds and virtual functions are not looked at.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from keepstep.adapters.sysfs.deltas import Watched
from keepstep.adapters.sysfs.watching import CLOCK, Batch, KeptFiles, listed
from keepstep.evidence.network import port as ports_of
from keepstep.evidence.network import tree as trees
from keepstep.evidence.network.counters import LIMITS, WIDTH_BITS
from keepstep.evidence.network.port import Origin, Port

PERIOD_S = 1.0
COUNTERS_EVERY_S = 20.0
ENUMERATE_EVERY_S = 60.0
_FACTS = ("fw_ver", "hca_type", "board_id", "node_desc")
_STATES = ("state", "phys_state", "rate", "link_layer")
_MANAGEMENT = re.compile(
    r"^(?:lo$|docker|veth|br|virbr|cni|flannel|cali|tun|tap|kube|dummy|vxlan|vlan|bond|team|usb|idrac|enx|wl|ib)"
)


class PortWatch:
    """``rails``: adapters that the job uses, where that is known: down is then a fault from the first look on."""

    name = "ports"

    def __init__(self, root: Path = Path("/sys"), rails: frozenset[str] = frozenset()) -> None:
        self._root, self._rails = root, rails
        self._files = KeptFiles()
        self._ports: dict[tuple[str, str], Port] = {}
        self._state: dict[tuple[str, str], str] = {}
        self._netdevs: dict[str, int | None] = {}
        self._watched: dict[tuple[str, str], Watched] = {}
        self._counters: dict[tuple[str, str], list[tuple[str, Path]]] = {}
        self._enumerated_s = self._counted_s = float("-inf")

    def look(self, now_s: float) -> Batch:
        batch = Batch()
        origin = Origin(source="ports", at_s=now_s, clock=CLOCK)
        if now_s - self._enumerated_s >= ENUMERATE_EVERY_S:
            self._enumerated_s = now_s
            self._enumerate(origin, batch)
        for key, port in self._ports.items():
            self._look_at(key, port, origin, batch)
        if now_s - self._counted_s >= COUNTERS_EVERY_S:
            self._counted_s = now_s
            self._count(now_s, origin, batch)
        if not self._ports and not self._netdevs:
            batch.coverage = ("absent", "no network port that is not virtual")
        return batch

    def _enumerate(self, origin: Origin, batch: Batch) -> None:
        first = not self._ports
        tree = trees.gather(self._pairs())
        self._ports = {key: port for key, port in tree.ports.items() if not port.virtual}
        self._counters = {key: self._counters.get(key) or self._paths(*key) for key in self._ports}
        for netdev in self._interfaces():
            self._netdevs.setdefault(netdev, None)
        if not first:
            return
        self._state = {key: port.state for key, port in self._ports.items()}
        told = ports_of.judge(list(self._ports.values()), origin)
        batch.same += told.same
        for seen in told.observations:
            device = seen.part.split("/")[1] if "/" in seen.part else ""
            if seen.signal in ("port.down.alone", "port.unused") and device in self._rails:
                seen = replace(seen, signal="port.down", detail=f"{seen.detail}; the job uses it")
            batch.observations.append(seen)

    def _pairs(self) -> Iterator[tuple[str, str]]:
        base = self._root / "class/infiniband"
        for device in listed(base):
            address = _pci_of(base / device)
            prefix = f"/sys/bus/pci/devices/{address}/infiniband/{device}" if address else f"/infiniband/{device}"
            for fact in _FACTS:
                if (value := _once(base / device / fact)) is not None:
                    yield f"{prefix}/{fact}", value
            for number in listed(base / device / "ports"):
                for name in _STATES:
                    if (value := _once(base / device / "ports" / number / name)) is not None:
                        yield f"{prefix}/ports/{number}/{name}", value
            for netdev in listed(base / device / "device/net"):
                yield (
                    f"/infiniband/{device}/device/net/{netdev}/operstate",
                    _once(self._root / "class/net" / netdev / "operstate") or "",
                )

    def _paths(self, device: str, number: str) -> list[tuple[str, Path]]:
        base = self._root / "class/infiniband" / device / "ports" / number
        return [
            (name, base / folder / name)
            for folder in ("counters", "hw_counters")
            for name in listed(base / folder)
            if name in LIMITS
        ]

    def _interfaces(self) -> list[str]:
        base = self._root / "class/net"
        return [
            name for name in listed(base)
            if not _MANAGEMENT.match(name)
            and (base / name / "device").exists()
            and not (base / name / "device/physfn").exists()
        ]  # fmt: skip

    def _look_at(self, key: tuple[str, str], port: Port, origin: Origin, batch: Batch) -> None:
        base = self._root / "class/infiniband" / key[0] / "ports" / key[1]
        text = self._files.text(base / "state")
        if text is None:
            return
        state, before = ports_of.state_of(text), self._state.get(key, "")
        if state == before:
            return
        self._state[key] = port.state = state
        port.physical = ports_of.physical_of(self._files.text(base / "phys_state") or "")
        if before == "active" and state:
            detail = f"went from active to {state}, physical state {port.physical or 'not told'}"
            signal = "port.disabled" if port.physical == "disabled" else "port.down"
            batch.observations.append(origin.seen(signal, port.part, detail, state=state, physical=port.physical))
        elif state == "active" and before:
            batch.observations.append(origin.seen("port.up", port.part, f"active again after {before}"))
            self._rate(base, port, origin, batch)

    def _rate(self, base: Path, port: Port, origin: Origin, batch: Batch) -> None:
        """A link that came back may have trained to less than before."""
        rate, _ = ports_of.rate_of(self._files.text(base / "rate") or "")
        if rate and port.rate_gbps and rate < port.rate_gbps * 0.9:
            detail = f"came back at {rate:g} Gb/s after {port.rate_gbps:g}"
            batch.observations.append(origin.seen("port.rate", port.part, detail, value=f"{rate:g}"))

    def _count(self, now_s: float, origin: Origin, batch: Batch) -> None:
        for key, paths in self._counters.items():
            part = f"nic/{key[0]}/{key[1]}"
            for name, path in paths:
                if (value := self._files.number(path)) is not None:
                    self._feed(part, name, value, now_s, origin, batch)
        for netdev in self._netdevs:
            value = self._files.number(self._root / "class/net" / netdev / "carrier_down_count")
            if value is not None:
                self._feed(f"nic/{netdev}", "carrier_down_count", value, now_s, origin, batch)

    def _feed(self, part: str, name: str, value: int, now_s: float, origin: Origin, batch: Batch) -> None:
        watched = self._watched.get((part, name))
        if watched is None:
            watched = self._watched[part, name] = Watched(LIMITS[name], WIDTH_BITS.get(name))
        batch.levels.append((part, name, float(value)))
        grown = watched.feed(value, now_s)
        if grown:
            limit = watched.limit
            detail = f"{name} grew by {grown} within {limit.window_s:g} s; {limit.count} are too many"
            batch.observations.append(origin.seen(limit.signal, part, detail, value=str(grown), counter=name))


def _once(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _pci_of(device: Path) -> str:
    """The PCI address behind a device's link; empty where there is none."""
    try:
        name = os.path.basename(os.path.realpath(device / "device"))
    except OSError:
        return ""
    return name if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name) else ""


__all__ = ["COUNTERS_EVERY_S", "ENUMERATE_EVERY_S", "PERIOD_S", "PortWatch"]
