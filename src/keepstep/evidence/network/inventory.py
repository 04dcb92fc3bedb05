"""Inventories of a node's network: what was found on it (states, speeds, start-up files), and what its model should have.

Found and expected are told as ordinary facts; that they differ is found where both are at hand (``core/combine/network.py``).
"""

from typing import Any

from keepstep.core.observation import pci_name
from keepstep.evidence.document import Document
from keepstep.evidence.network import ethernet
from keepstep.evidence.network import interface as interfaces_of
from keepstep.evidence.network.interface import Interface
from keepstep.evidence.network.port import Origin
from keepstep.evidence.reading import Reader, Reading

MAX_ENTRIES = 2048
_KINDS = {"gpu": "gpu", "ib": "nic", "net": "nic", "nvme": "disk"}


def _found(document: Document) -> dict[str, Any] | None:
    found = document.json
    return found if isinstance(found, dict) and isinstance(found.get("intf_status"), list) else None


def _expected(document: Document) -> dict[str, Any] | None:
    found = document.json
    if not isinstance(found, dict):
        return None
    parts = [found.get(key) for key in ("pci", "eth", "ib", "disks")]
    return found if sum(isinstance(part, dict) for part in parts) >= 2 and "eth" in found else None


def _recognise(document: Document) -> float:
    head = document.head.lstrip("\ufeff \t\r\n")
    if head[:1] != "{":
        return 0.0
    return 0.9 if _found(document) is not None or _expected(document) is not None else 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="network_inventory", file=document.path)
    origin = Origin(source="network_inventory", file=document.path)
    if (found := _found(document)) is not None:
        _read_found(found, origin, reading)
    elif (expected := _expected(document)) is not None:
        _read_expected(expected, origin, reading)
    return reading


def _entries(found: dict[str, Any]) -> dict[str, Interface]:
    named: dict[str, Interface] = {}
    for entry in found["intf_status"][:MAX_ENTRIES]:
        one = ethernet.of_json(entry) if isinstance(entry, dict) else None
        if one is not None:
            named[one.name] = one
    return named


def _read_found(found: dict[str, Any], origin: Origin, reading: Reading) -> None:
    named = _entries(found)
    _files(found, named)
    speeds = found.get("link_speed")
    for name, speed in list(speeds.items())[:MAX_ENTRIES] if isinstance(speeds, dict) else ():
        # Asked for its speed by somebody who expected it, and it is not there.
        one = named.setdefault(str(name)[:32], Interface(name=str(name)[:32], present=False))
        if isinstance(speed, str | int) and str(speed).isdecimal() and len(str(speed)) < 9:
            one.speed_mbps = float(speed)
    told = interfaces_of.judge(list(named.values()), origin)
    reading.records = len(named)
    reading.observations += told.observations
    reading.fine += told.fine
    for one in named.values():
        if one.speed_mbps and one.present:
            values = {"speed_mbps": f"{one.speed_mbps:g}", "mtu": str(one.mtu or "")}
            reading.observations.append(origin.seen("inventory.found", one.part, f"{one.name}: {values}", 0, **values))


def _files(found: dict[str, Any], named: dict[str, Interface]) -> None:
    """Start-up files say which interfaces are to carry traffic, and with which MTU."""
    files = found.get("intf_ifcfg")
    for name, file in list(files.items())[:MAX_ENTRIES] if isinstance(files, dict) else ():
        if not isinstance(file, dict) or str(file.get("ONBOOT", "yes")).strip("\"'").lower() == "no":
            continue
        one = named.setdefault(str(name)[:32], Interface(name=str(name)[:32], present=False))
        one.configured = True
        mtu = str(file.get("MTU", "")).strip("\"'")
        if mtu.isdecimal() and len(mtu) < 7:
            one.wanted_mtu = int(mtu)


def _read_expected(expected: dict[str, Any], origin: Origin, reading: Reading) -> None:
    ethernets = expected.get("eth")
    for entry in list(ethernets.values())[:MAX_ENTRIES] if isinstance(ethernets, dict) else ():
        if isinstance(entry, dict) and isinstance(entry.get("netdev"), str):
            values = {"speed_mbps": str(entry.get("speed", ""))[:12], "mtu": str(entry.get("mtu", ""))[:8]}
            part = f"nic/{entry['netdev'][:32]}"
            reading.observations.append(origin.seen("inventory.expected", part, f"{part}: {values}", 0, **values))
    reading.records = len(reading.observations)
    adapters = expected.get("ib")
    versions = adapters.get("firmware_version") if isinstance(adapters, dict) else None
    listed = [str(x)[:32] for x in versions[:16]] if isinstance(versions, list) else []
    rate = str(adapters.get("link_rate", ""))[:40] if isinstance(adapters, dict) else ""
    widths, slots = _slots(expected)
    binding = _binding(adapters if isinstance(adapters, dict) else {}, slots)
    values = {"rate": rate, "firmware": ",".join(listed), "widths": widths, "binding": binding}
    reading.observations.append(origin.seen("inventory.expected", "nic/*", f"{rate} {listed}", 0, **values))


def _slots(expected: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """(``address=kind:lanes`` of each device, interface → address)"""
    widths, slots = [], {}
    devices = expected.get("pci")
    for address, entry in list(devices.items())[:MAX_ENTRIES] if isinstance(devices, dict) else ():
        kind = _KINDS.get(str(entry.get("type", ""))) if isinstance(entry, dict) else None
        try:
            where = pci_name(str(address))
        except ValueError:
            continue
        if kind and isinstance(entry, dict):
            widths.append(f"{where}={kind}:{str(entry.get('link_width', ''))[:4]}")
            slots[str(entry.get("dev", "")).rpartition("/")[2][:32]] = where
    return ",".join(widths), slots


def _binding(adapters: dict[str, Any], slots: dict[str, str]) -> str:
    """``interface=address/adapter`` of each interface that has a slot."""
    bound = []
    interfaces = adapters.get("interfaces")
    for netdev, entry in list(interfaces.items())[:MAX_ENTRIES] if isinstance(interfaces, dict) else ():
        if isinstance(entry, dict) and netdev in slots:
            bound.append(f"{netdev}={slots[netdev]}/{str(entry.get('mlx', ''))[:32]}")
    return ",".join(bound)


READER = Reader(
    name="network_inventory",
    text="inventories of a node's network, found and expected",
    recognise=_recognise,
    read=_read,
)
