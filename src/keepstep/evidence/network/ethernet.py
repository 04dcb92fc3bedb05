"""What ``ip link`` (text and JSON) and ``ethtool`` with its ``-S`` and ``-m`` print. Must not judge by name alone."""

import re
from typing import Any

from keepstep.evidence.document import Document
from keepstep.evidence.network import interface as interfaces_of
from keepstep.evidence.network.interface import Interface
from keepstep.evidence.network.port import Origin
from keepstep.evidence.reading import Fine, Reader, Reading

MAX_INTERFACES = 2048
_LINK = re.compile(r"^(\d{1,6}): ([^:@\s]{1,32})(?:@\S{1,32})?: <([A-Z0-9_,-]{0,200})> mtu (\d{1,6})(.*)$")
_INET = re.compile(r"^\s+inet6? (\S+)")
_SCOPE = re.compile(r"scope (?:link|host)")
_SETTINGS = re.compile(r"^Settings for (\S{1,32}):$")
_ETHTOOL = re.compile(r"^\s+([A-Z][\w /-]{2,40}):\s*(.*?)\s*$")
_STATS = re.compile(r"^NIC statistics(?: for (\S{1,32}))?:?\s*$")
_STAT = re.compile(r"^\s+(?:\[\d+\]: ?)?([\w.\[\]-]{2,60}): (\d{1,20})\s*$")
_MODULE = re.compile(r"^\s+Identifier\s+: 0x[0-9a-f]{2} \(")
_ALARM = re.compile(r"^\s+(Laser|Module|Rx|Tx|RX|TX)([\w ()-]{3,60}?)\s+(?:\(Channel (\d)\)\s+)?: On\s*$")
_DAMAGE = ("rx_crc_errors_phy", "rx_symbol_err_phy", "rx_crc_errors", "rx_frame_errors")


def of_json(entry: dict[str, Any]) -> Interface | None:
    """One entry of ``ip -j link`` or ``ip -j addr``."""
    name, flags = entry.get("ifname"), entry.get("flags")
    if not isinstance(name, str) or not isinstance(flags, list):
        return None
    addresses = entry.get("addr_info")
    routed = isinstance(addresses, list) and any(
        isinstance(x, dict) and x.get("scope") not in ("link", "host", None) for x in addresses
    )
    state, mtu = str(entry.get("operstate", "")).upper(), entry.get("mtu")
    master = entry.get("master") or entry.get("main") or "SLAVE" in flags
    return Interface(
        name=name[:32], up=_carrier(state, flags), enabled="UP" in flags, configured=bool(master or routed),
        mtu=mtu if isinstance(mtu, int) else None,
    )  # fmt: skip


def _carrier(state: str, flags: list[Any]) -> bool | None:
    if "NO-CARRIER" in flags or state in ("DOWN", "LOWERLAYERDOWN"):
        return False
    return True if state == "UP" or "LOWER_UP" in flags else None


def _recognise(document: Document) -> float:
    if document.is_binary:
        return 0.0
    head = document.head.lstrip("\ufeff \t\r\n")
    if head[:1] == "[":
        found = document.json if '"ifname"' in head else None
        good = isinstance(found, list) and found and isinstance(found[0], dict) and of_json(found[0]) is not None
        return 0.9 if good else 0.0
    lines = [line.rstrip("\r")[:400] for line in document.head.split("\n")[:120]]
    for line in lines:
        if _LINK.match(line) or _SETTINGS.match(line) or _STATS.match(line) or _MODULE.match(line):
            return 0.85
    return 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="ethernet", file=document.path)
    origin = Origin(source="ethernet", file=document.path)
    found = document.json
    if isinstance(found, list):
        entries = [of_json(entry) for entry in found[:MAX_INTERFACES] if isinstance(entry, dict)]
        interfaces = [entry for entry in entries if entry is not None]
    else:
        interfaces = _scan(document, reading, origin)
    reading.records = reading.records or len(interfaces)
    told = interfaces_of.judge(interfaces, origin)
    reading.observations += told.observations
    reading.fine += told.fine
    return reading


def _scan(document: Document, reading: Reading, origin: Origin) -> list[Interface]:
    found: list[Interface] = []
    one: Interface | None = None
    tell, counting = "", False
    for number, line in document.lines():
        line = line[:600]
        if match := _LINK.match(line):
            one = _of_link(match, number)
            found.append(one)
            counting = False
        elif match := _SETTINGS.match(line):
            one, counting = Interface(name=match.group(1), line=number), False
            found.append(one)
        elif match := _STATS.match(line):
            one, counting = Interface(name=match.group(1) or "unnamed", line=number), True
            found.append(one)
        elif match := _ALARM.match(line):
            tell = f"{match.group(1)}{match.group(2)}"
            if "alarm" in tell.lower():
                part = one.part if one else "nic/module"
                reading.observations.append(origin.seen("optics.alarm", part, tell.strip(), number))
        elif _MODULE.match(line):
            reading.records += 1
            reading.fine.append(
                Fine(
                    part=one.part if one else "nic/module",
                    text="optical module answers",
                    file=document.path,
                    line=number,
                )
            )
        elif one is not None:
            _detail(one, line, counting)
        if len(found) > MAX_INTERFACES:
            break
    return found


def _of_link(match: re.Match[str], number: int) -> Interface:
    _, name, flags_text, mtu, rest = match.groups()
    flags = flags_text.split(",")
    state = re.search(r"\bstate (\w+)", rest)
    configured = "SLAVE" in flags or bool(re.search(r"\bmaster (?!docker|virbr|br-|cni)\S+", rest))
    return Interface(
        name=name, up=_carrier(state.group(1) if state else "", list(flags)), enabled="UP" in flags, configured=configured,
        mtu=int(mtu), line=number,
    )  # fmt: skip


def _detail(one: Interface, line: str, counting: bool) -> None:
    if counting:
        if match := _STAT.match(line):
            name, count = match.group(1), int(match.group(2))
            if name in _DAMAGE:
                one.damaged = max(one.damaged, count)
            elif name in ("rx_packets_phy", "rx_packets"):
                one.received = max(one.received, count)
    elif _INET.match(line) and not _SCOPE.search(line):
        one.configured = True
    elif match := _ETHTOOL.match(line):
        key, value = match.groups()
        if key == "Link detected":
            one.up = value.startswith("yes")
        elif key == "Speed" and (figure := re.match(r"(\d{1,8})Mb/s", value)):
            one.speed_mbps = float(figure.group(1))


READER = Reader(
    name="ethernet", text="ip link, ethtool: interfaces, their counters and modules", recognise=_recognise, read=_read
)
