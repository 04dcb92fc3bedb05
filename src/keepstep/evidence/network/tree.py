"""A tree of sysfs flattened to text: ``path → value`` as JSON, ``path:value`` of a recursive grep, or headed pieces.

Owns which files of such a tree say something about ports, host memory and PCI links, and how they become ports. It must not
open a path: the agent reads the real tree and hands the same pairs in.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct, field

from keepstep.core.observation import Observation, pci_name
from keepstep.evidence.document import Document
from keepstep.evidence.network import port as ports_of
from keepstep.evidence.network.port import Origin, Port
from keepstep.evidence.reading import Fine, Reader, Reading

MAX_PORTS = 256
MAX_PAIRS = 2_000_000
MAX_DEPTH = 12
_PAIR = re.compile(r"^((?:[^\s/]*/)+[\w.+-]+?)\s?[:=]\s*(.*)$")
_HEAD = re.compile(r"^==> ?(\S+) ?<==$")
_ARCHIVED = re.compile(r"^(?:Path|Directory|SymlinkTo|Lines|Mode): ?(\S*)$")
_PORT = re.compile(r"(?:^|/)([^/]+)/ports/(\d{1,3})/(.+)$")
_DEVICE = re.compile(r"(?:^|/)(?:infiniband/|sys-class-infiniband[^/]*/)([^/]+)/(fw_ver|hca_type|board_id|node_desc)$")
_NET = re.compile(r"(?:^|/)(?:infiniband/([^/]+)/device/)?net/([^/]+)/(operstate|speed|carrier_down_count|mtu|type)$")
_PCI = re.compile(r"/([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(?=/)")
_EDAC = re.compile(r"/edac/mc/(mc\d+)/(ue_count|ce_count)$")
_LINK = re.compile(r"/([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])/(current_link_width|max_link_width|class)$")
_HOST = re.compile(r"^([\w.-]+) (?:HCA-\d+|mlx\d_\d+|ibp\w+)$")
_LEAVES = frozenset(
    (
        "state", "phys_state", "rate", "link_layer", "operstate", "carrier", "speed", "fw_ver", "hca_type", "board_id",
        "node_desc", "link_downed", "symbol_error", "ue_count", "ce_count", "current_link_width", "max_link_width",
        "port_rcv_errors", "uevent",
    )
)  # fmt: skip
_PLAUSIBLE = re.compile(r"/ports/\d+/|/net/[^/]+/operstate|/edac/mc/|/current_link_width|/infiniband/")


class Link(Struct, kw_only=True):
    """The PCIe link of one device, in lanes; 0 where not told."""

    now: int = 0
    most: int = 0
    kind: str = ""


class Tree(Struct, kw_only=True):
    """What was found in a tree."""

    ports: dict[tuple[str, str], Port] = field(default_factory=dict)
    devices: dict[str, dict[str, str]] = field(default_factory=dict)
    """Adapter → its files."""
    pci_of: dict[str, str] = field(default_factory=dict)
    """Adapter → PCI address."""
    nets: dict[str, dict[str, str]] = field(default_factory=dict)
    """Interface → its files; ``pci`` and ``device`` where the path says so."""
    edac: dict[str, dict[str, int]] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    paths: dict[tuple[str, str], str] = field(default_factory=dict)
    """Port → a path of it, to find its line again."""
    pairs: int = 0

    @property
    def node(self) -> str:
        for files in self.devices.values():
            match = _HOST.match(files.get("node_desc", "").strip()[:200])
            if match:
                return match.group(1)
        return ""


def gather(pairs: Iterable[tuple[str, str]]) -> Tree:
    """The tree of some (path, value) pairs."""
    tree = Tree()
    for path, value in pairs:
        tree.pairs += 1
        if tree.pairs > MAX_PAIRS:
            break
        _file(tree, path[:4096], value.strip()[:512])
    _join(tree)
    return tree


def _file(tree: Tree, path: str, value: str) -> None:
    pci = _last_pci(path)
    if match := _PORT.search(path):
        device, number, name = match.groups()
        _port_file(tree, device, number, name, value)
        tree.paths.setdefault((device, number), path)
        if pci:
            tree.pci_of.setdefault(device, pci)
    elif match := _NET.search(path):
        device, netdev, name = match.groups()
        if len(tree.nets) < MAX_PORTS * 4 or netdev in tree.nets:
            files = tree.nets.setdefault(netdev, {"pci": pci, "device": device or ""})
            files[name] = value
    elif match := _DEVICE.search(path):
        device, name = match.groups()
        if len(tree.devices) < MAX_PORTS or device in tree.devices:
            tree.devices.setdefault(device, {})[name] = value
        if pci:
            tree.pci_of.setdefault(device, pci)
    elif match := _EDAC.search(path):
        if value.isdecimal() and len(value) < 20 and len(tree.edac) < MAX_PORTS:
            tree.edac.setdefault(match.group(1), {})[match.group(2)] = int(value)
    elif match := _LINK.search(path):
        _link_file(tree, match.group(1), match.group(2), value)


def _last_pci(path: str) -> str:
    found = _PCI.findall(path)
    return pci_name(found[-1]) if found else ""


def _link_file(tree: Tree, address: str, name: str, value: str) -> None:
    link = tree.links.setdefault(pci_name(address), Link())
    if name == "class":
        link.kind = {"0x0302": "gpu", "0x0300": "gpu", "0x0207": "nic", "0x0200": "nic"}.get(value[:6], "")
    elif value.isdecimal() and len(value) < 4:
        if name == "current_link_width":
            link.now = int(value)
        else:
            link.most = int(value)


def _port_file(tree: Tree, device: str, number: str, name: str, value: str) -> None:
    key = (device, number)
    if key not in tree.ports and len(tree.ports) >= MAX_PORTS:
        return
    port = tree.ports.setdefault(key, Port(device=device, number=number))
    if name == "state":
        port.state = ports_of.state_of(value)
    elif name == "phys_state":
        port.physical = ports_of.physical_of(value)
    elif name == "rate":
        port.rate_gbps, port.width = ports_of.rate_of(value)
    elif name == "link_layer":
        port.link_layer = value
    elif name.startswith(("counters/", "hw_counters/")):
        counter = name.rpartition("/")[2]
        if value.isdecimal() and len(value) < 21 and len(port.counters) < 200:
            port.counters[counter] = int(value)


def _join(tree: Tree) -> None:
    """Interfaces and facts of an adapter go to its ports."""
    by_pci = {files["pci"]: netdev for netdev, files in tree.nets.items() if files["pci"]}
    by_device = {files["device"]: netdev for netdev, files in tree.nets.items() if files["device"]}
    for (device, _), port in tree.ports.items():
        files = tree.devices.get(device, {})
        port.firmware = files.get("fw_ver", "")
        port.model = " ".join(x for x in (files.get("hca_type", ""), files.get("board_id", "")) if x)
        port.pci = tree.pci_of.get(device, "")
        netdev = by_device.get(device) or (by_pci.get(port.pci) if port.pci else None)
        if netdev:
            net = tree.nets[netdev]
            port.netdev, port.netdev_state = netdev, net.get("operstate", "").lower()
            port.netdev_speed_mbps = float(net["speed"]) if net.get("speed", "").isdecimal() else None
            downs = net.get("carrier_down_count", "")
            port.netdev_downs = int(downs) if downs.isdecimal() and len(downs) < 19 else None


def judge(tree: Tree, origin: Origin) -> ports_of.Judged:
    """What a tree says: of its ports, its host memory and its PCIe links."""
    told = ports_of.judge(list(tree.ports.values()), origin)
    for controller, counts in tree.edac.items():
        if counts.get("ue_count"):
            detail = f"{controller}: {counts['ue_count']} uncorrected errors since the start"
            told.observations.append(origin.seen("edac.uncorrected", f"dimm/{controller}", detail))
        elif counts.get("ce_count", 0) > 1000:
            detail = f"{controller}: {counts['ce_count']} corrected errors since the start"
            told.observations.append(origin.seen("edac.corrected", f"dimm/{controller}", detail))
    nics = {port.pci for port in tree.ports.values()}
    for address, link in tree.links.items():
        kind = link.kind or ("nic" if address in nics else "")
        if kind and link.now and link.most and link.now < link.most:
            detail = f"{address}: x{link.now} of x{link.most} lanes"
            told.observations.append(origin.seen(f"pci.width.{kind}", f"{kind}/{address}", detail))
    return told


def _pairs_of_text(document: Document, reading: Reading) -> Iterator[tuple[str, str]]:
    headed, last, value = "", "", ""
    for number, line in document.lines():
        if match := _HEAD.match(line):
            headed = match.group(1)
        elif match := _ARCHIVED.match(line):
            # A text archive: a path, how many lines of it follow, the lines, its mode.
            headed = match.group(1) if line.startswith("Path:") else "" if line.startswith("Mode:") else headed
        elif not headed and line.startswith("# ttar"):
            continue
        elif match := _PAIR.match(line):
            path, text = match.groups()
            if path == last:
                value = f"{value}\n{text}"
            else:
                value = text
            last = path
            yield path, value
        elif headed and line.strip():
            yield headed, line
        elif line.strip():
            reading.puzzled(number, line)


def _pairs_of_json(document: Document) -> Iterator[tuple[str, str]] | None:
    found = document.json
    if not isinstance(found, dict) or not found:
        return None
    return _flat("", found, 0)


def _flat(above: str, found: dict[str, Any], depth: int) -> Iterator[tuple[str, str]]:
    """Files of a tree that may be flat, or nested as its folders are."""
    for name, value in found.items():
        path = f"{above}/{name}" if above else name
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path, str(value)
        elif isinstance(value, dict) and depth < MAX_DEPTH:
            yield from _flat(path, value, depth + 1)


def _recognise(document: Document) -> float:
    if document.is_binary:
        return 0.0
    head = document.head.lstrip("\ufeff \t\r\n")
    if head[:1] == "{":
        found = document.json if _PLAUSIBLE.search(head) or '"ports"' in head else None
        if not isinstance(found, dict):
            return 0.0
        paths = [path for path, _ in itertools.islice(_flat("", found, 0), 400)]
        good = [path for path in paths if "/" in path]
        told = any(_PLAUSIBLE.search(path) and path.rpartition("/")[2] in _LEAVES for path in paths)
        return 0.9 if told and len(good) * 2 > len(paths) else 0.0
    lines = [line for line in head.split("\n")[:200] if line.strip()]
    matched = sum(bool(_PAIR.match(line[:4096]) and _PLAUSIBLE.search(line[:4096])) for line in lines)
    headed = any(
        (match := _HEAD.match(line) or _ARCHIVED.match(line)) and _PLAUSIBLE.search(match.group(1)) for line in lines
    )
    return 0.8 if headed or (lines and matched * 2 > len(lines)) else 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="sysfs_tree", file=document.path)
    pairs = _pairs_of_json(document)
    tree = gather(pairs if pairs is not None else _pairs_of_text(document, reading))
    reading.records, reading.node = tree.pairs, tree.node
    for key, port in list(tree.ports.items())[:64]:
        at = document.data.find(tree.paths[key].encode("utf-8", errors="replace"))
        port.line = document.data.count(b"\n", 0, at) + 1 if at >= 0 else 0
    origin = Origin(source="sysfs_tree", node=tree.node, file=document.path)
    told = judge(tree, origin)
    reading.observations, reading.same, reading.fine = told.observations, told.same, told.fine
    if tree.ports:
        reading.observations.append(_found(tree, origin))
    for controller, counts in tree.edac.items():
        if counts.get("ue_count") == 0:
            fine = Fine(
                part=f"dimm/{controller}", text="no uncorrected memory errors", node=tree.node, file=document.path
            )
            reading.fine.append(fine)
    return reading


def _found(tree: Tree, origin: Origin) -> Observation:
    """The ports as an inventory sees them, to be compared with what is expected of the node."""
    active = {port.device: port for port in tree.ports.values() if port.state == "active" and not port.virtual}
    rates = ",".join(f"{name}={port.rate_gbps:g}" for name, port in active.items() if port.rate_gbps)
    firmware = ",".join(f"{name}={port.firmware}" for name, port in active.items() if port.firmware)
    widths = ",".join(f"{address}={link.now}" for address, link in list(tree.links.items())[:512] if link.now)
    bound = {port.netdev: f"{port.pci}/{port.device}" for port in tree.ports.values() if port.netdev and port.pci}
    binding = ",".join(f"{netdev}={where}" for netdev, where in bound.items())
    detail = f"{len(tree.ports)} ports of adapters, {len(active)} active"
    return origin.seen(
        "inventory.found", "nic/*", detail, rates=rates[:8192], firmware=firmware[:8192], widths=widths, binding=binding[:8192]
    )  # fmt: skip


READER = Reader(
    name="sysfs_tree", text="flattened sysfs trees: ports of adapters, host memory, PCIe links",
    recognise=_recognise, read=_read,
)  # fmt: skip
