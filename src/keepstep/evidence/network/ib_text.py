"""What ``ibstat``, ``ibstatus``, ``ibv_devinfo`` and ``rdma link`` print of the ports of a node. Must not know about files."""

import re

from keepstep.evidence.document import Document
from keepstep.evidence.network import port as ports_of
from keepstep.evidence.network.port import Origin, Port
from keepstep.evidence.reading import Reader, Reading

MAX_PORTS = 1024
_HOST = re.compile(r"^([A-Za-z0-9][\w.-]{0,127}): ?(?=\S|\t| {2})(.*)$")
_CA = re.compile(r"^CA '([^']{1,64})'")
_STATUS = re.compile(r"^Infiniband device '([^']{1,64})' port (\d{1,3}) status:")
_HCA = re.compile(r"^hca_id:\s*(\S{1,64})")
_PORT = re.compile(r"^\s*[Pp]ort:?\s+(\d{1,3}):?\s*$")
_FIELD = re.compile(r"^\s*([A-Za-z_][\w /]{0,40}?):\s*(.*?)\s*$")
_RDMA = re.compile(
    r"^(?:\d+/\d+: |link )\s*([\w-]{1,64})/(\d{1,3}):? .*?\bstate (\S+)(?: physical_state (\S+))?(?:.*?\bnetdev (\S+))?"
)
_VM = re.compile(r"^VM_hostname (\S{1,128})$")
_GUID = re.compile(r"^(?:0x)?([0-9a-fA-F]{16})$")


class _Scan:
    """One pass over the lines: the port that is being described, and all ports by host."""

    def __init__(self) -> None:
        self.hosts: dict[str, list[Port]] = {}
        self.host = ""
        self.device = ""
        self.facts: dict[str, str] = {}
        self.port: Port | None = None
        self.count = 0

    def begin(self, host: str, device: str) -> None:
        self.host, self.device, self.facts, self.port = host, device, {}, None

    def open_port(self, number: str, line: int) -> None:
        self.count += 1
        self.port = Port(device=self.device, number=number, line=line)
        self.port.model = self.facts.get("model", "")
        self.port.firmware = self.facts.get("firmware", "")
        if self.count <= MAX_PORTS:
            self.hosts.setdefault(self.host, []).append(self.port)

    def field(self, name: str, value: str) -> None:
        key = name.strip().lower().replace("_", " ")
        if key in ("ca type", "vendor part id", "board id"):
            self.facts["model"] = f"{self.facts.get('model', '')} {value}".strip()
        elif key in ("firmware version", "fw ver"):
            self.facts["firmware"] = value
        port = self.port
        if port is None:
            return
        if key == "state":
            port.state = ports_of.state_of(value)
        elif key in ("physical state", "phys state"):
            port.physical = ports_of.physical_of(value)
        elif key == "rate":
            port.rate_gbps, port.width = ports_of.rate_of(value)
        elif key == "link layer":
            port.link_layer = value


def _scan(document: Document, reading: Reading) -> _Scan:
    scan, hostname = _Scan(), ""
    for number, raw in document.lines():
        line, host = raw, ""
        prefixed = _HOST.match(raw[:400])
        if prefixed and _starts(prefixed.group(2)):
            host, line = prefixed.groups()
        elif scan.host and raw.startswith(f"{scan.host}:"):
            line = raw[len(scan.host) + 1 :]
        if match := _VM.match(line):
            hostname = match.group(1)
        elif hostname and (match := _GUID.match(line.strip())):
            reading.records += 1
        else:
            reading.records += _line(scan, line[:400], host, number)
    return scan


def _starts(text: str) -> bool:
    return bool(_CA.match(text) or _STATUS.match(text) or _HCA.match(text))


def _line(scan: _Scan, line: str, host: str, number: int) -> int:
    """How many records it began."""
    if match := _CA.match(line) or _HCA.match(line):
        scan.begin(host, match.group(1))
    elif match := _STATUS.match(line):
        scan.begin(host, match.group(1))
        scan.open_port(match.group(2), number)
        return 1
    elif match := _RDMA.match(line):
        device, port_number, state, physical, netdev = match.groups()
        scan.begin(host, device)
        scan.open_port(port_number, number)
        scan.field("state", state)
        scan.field("physical state", physical or "")
        if scan.port is not None:
            scan.port.netdev = netdev or ""
        return 1
    elif scan.device and (match := _PORT.match(line)):
        scan.open_port(match.group(1), number)
        return 1
    elif scan.device and (match := _FIELD.match(line)):
        scan.field(match.group(1), match.group(2))
    return 0


def _recognise(document: Document) -> float:
    if document.is_binary:
        return 0.0
    lines = document.head.split("\n")[:400]
    found = vms = 0
    for raw in lines:
        line = raw.rstrip("\r")[:400]
        prefixed = _HOST.match(line)
        if _starts(line) or _RDMA.match(line) or (prefixed and _starts(prefixed.group(2))):
            found += 1
        vms += bool(_VM.match(line))
    return 0.9 if found or vms >= 2 else 0.0


def _read(document: Document) -> Reading:
    reading = Reading(reader="ib_ports", file=document.path)
    scan = _scan(document, reading)
    for host, ports in scan.hosts.items():
        told = ports_of.judge(ports[:256], Origin(source="ib_ports", node=host, file=document.path))
        reading.observations += told.observations
        reading.fine += told.fine
        reading.same += told.same
    if len(scan.hosts) == 1:
        reading.node = next(iter(scan.hosts))
    return reading


READER = Reader(
    name="ib_ports", text="ibstat, ibstatus, ibv_devinfo, rdma link: states of ports", recognise=_recognise, read=_read
)
