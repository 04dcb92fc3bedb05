"""Observations: one thing that one source said about one part. Owns their shape and the names of parts; judges nothing.

A reader of evidence (``keepstep.evidence``) makes them from a file, an adapter from a live source, the simulator from ground
truth. What an observation means stands in the catalogue, keyed by its ``signal``.
"""

from msgspec import Struct


class Observation(Struct, frozen=True, kw_only=True):
    signal: str
    """Key of the catalogue, for example ``xid.79`` or ``port.down``."""
    node: str = ""
    """Host name as the evidence gives it; empty where it does not say."""
    part: str = ""
    """``kind/name`` within the node, see ``PART_KINDS``; empty for the node itself."""
    at_s: float | None = None
    """When, in seconds on ``clock``; None where the evidence does not say."""
    clock: str = ""
    """Names the clock that ``at_s`` is read from. Two times are compared only where this is equal."""
    detail: str = ""
    """What a person should read: the evidence itself, at most 500 characters."""
    attributes: dict[str, str] = {}
    """What rules look at: ``gpc``, ``tpc``, ``pid``, ``process``, ``link``, ``subcode``, ``value``, ``rank`` …"""
    count: int = 1
    """How many records it stands for: a storm is one observation."""
    source: str = ""
    """The reader or adapter: ``kernel_log``, ``nvml``, ``redfish`` …"""
    file: str = ""
    line: int = 0
    """Line in ``file``, from 1; 0 where there are no lines."""
    entry: int = 0
    """Journal entry, where it came through the control plane."""


class Same(Struct, frozen=True, kw_only=True):
    """Names of one and the same part of a node: ``("gpu/0000:9b:00", "gpu/3", "gpu/GPU-4fe…")``."""

    parts: tuple[str, ...]
    node: str = ""


PART_KINDS: dict[str, str] = {
    "gpu": "an accelerator: PCI address without function, UUID, index, or slot as its BMC counts (``gpu/sxm3``)",
    "nvswitch": "an NVSwitch: PCI address or number",
    "nic": "a network adapter or one port of it: ``nic/mlx5_0``, ``nic/mlx5_0/1``, ``nic/ib6``, PCI address",
    "disk": "a drive: ``disk/nvme9``, a serial, a slot",
    "dimm": "host memory: label or slot",
    "cpu": "a processor: socket number",
    "psu": "a power supply",
    "fan": "a fan or pump",
    "sensor": "a sensor of the BMC that belongs to no other part",
    "pci": "a PCI device or port of no known kind, by address",
    "bmc": "the management controller itself",
    "switch": "a network switch: name or GUID",
    "link": "one link, by the port that reports it",
    "service": "a service on the node",
    "mount": "a file system as mounted here",
    "dependency": "something outside that jobs need: ``dependency/nfs:server``, ``dependency/10.0.0.1``",
    "rank": "a rank of the job",
    "process": "a process, by pid",
    "rack": "a rack or cabinet",
    "job": "the job itself",
}


def kind_of(part: str) -> str:
    """``gpu`` of ``gpu/0000:9b:00``; ``node`` of the empty name."""
    return part.split("/", 1)[0] if part else "node"


def name_of(part: str) -> str:
    return part.split("/", 1)[1] if "/" in part else ""


def pci_name(address: str) -> str:
    """The one spelling of a PCI address: lower case, four-digit domain, no function: ``00000000:9B:00.0`` → ``0000:9b:00``.

    Whoever names a single function of a device keeps it in an attribute. Raises ValueError for anything else.
    """
    text = address.strip().lower().removeprefix("pci:")
    fields = text.split(".")[0].split(":")
    if len(fields) == 2:
        fields.insert(0, "0")
    if len(fields) != 3 or not all(field and all(c in "0123456789abcdef" for c in field) for field in fields):
        raise ValueError(f"{address!r} is not a PCI address (domain:bus:device.function)")
    domain, bus, device = (int(field, 16) for field in fields)
    return f"{domain:04x}:{bus:02x}:{device:02x}"
