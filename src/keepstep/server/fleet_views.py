"""Answers about the fleet as a whole and its parts, as structs: the dashboard's map and pages. Computes nothing."""

from msgspec import Struct

from keepstep.server.views import HoldView


class FleetMap(Struct, frozen=True, kw_only=True):
    """Part of the fleet in columns: entry i of each column belongs to node i of this part."""

    entry: int
    """Newest journal entry that it knows."""
    total: int
    """Nodes in all."""
    next: int
    """``after`` of the following part; 0 on the last one."""
    states: tuple[str, ...]
    """State number -> name. A device's letter is ``a`` + number, in upper case where somebody holds it."""
    racks: tuple[str, ...]
    """Of this part."""
    names: tuple[str, ...]
    rack: tuple[int, ...]
    """Index into ``racks``; -1 where none is known."""
    node: str
    """One letter a node: its own state."""
    devices: tuple[str, ...]
    """One letter a device, in the order of its slots."""
    score: tuple[int, ...]
    """Health index 0 … 100, -1 where no forecast is known."""


class StateCount(Struct, frozen=True, kw_only=True):
    state: str
    nodes: int
    devices: int


class Capacity(Struct, frozen=True, kw_only=True):
    states: tuple[StateCount, ...]
    """Every state that something is in."""
    nodes: int
    devices: int
    held: int
    """Nodes and devices with a hold of a person."""
    spares: int
    """Nodes that stand by for a live job, and are usable."""


class ResourceLine(Struct, frozen=True, kw_only=True):
    id: str
    node: str
    rack: str
    slot: int | None
    """None for a node."""
    state: str
    since_s: float
    allocatable: bool
    serial: str
    model: str
    holds: tuple[HoldView, ...]
    failures: int
    incident: str


class ResourceLines(Struct, frozen=True, kw_only=True):
    resources: tuple[ResourceLine, ...]
    next: int
    """``after`` of the following page; 0 on the last one."""


class RunsHere(Struct, frozen=True, kw_only=True):
    job: str
    """Empty where it is another tenant's."""
    ranks: tuple[int, ...]
    generation: int


class OpenFault(Struct, frozen=True, kw_only=True):
    id: str
    part: str
    failure_class: str
    cause: str
    verdict: str
    text: str
    confidence: float
    count: int
    opened_s: float
    last_s: float


class NodeDetail(Struct, frozen=True, kw_only=True):
    node: ResourceLine
    devices: tuple[ResourceLine, ...]
    domains: dict[str, str]
    means: str
    """What all witnesses together say of it, see docs/reference/liveness.md."""
    means_text: str
    agent: str
    """``heard``, ``silent`` or ``none``."""
    power: str
    bmc_health: str
    coverage: tuple[tuple[str, str, str], ...]
    """(source, state, detail) of what its agent can see."""
    faults: tuple[OpenFault, ...]
    runs: tuple[RunsHere, ...]
    index: float | None
    """Health index 0 … 100; None where no forecast is known."""
    within: tuple[float, float, float] | None
    """Probability of a failure within 1, 6 and 24 hours."""
    explained: tuple[str, ...]


class DeviceDetail(Struct, frozen=True, kw_only=True):
    device: ResourceLine
    firmware: str
    boot_id: str
    names: tuple[str, ...]
    """Every name of the card that its agent knows."""
    gated: bool
    """Its node refuses it until it is told to let work in again."""
    node_takes_work: bool
    gate_verdict: str
    gate_tries: int
    gate_passed_s: float | None
    resets: int
    failures_s: tuple[float, ...]
    """When ranks failed on it for a reason that could be its own."""
    faults: tuple[OpenFault, ...]
    runs: tuple[RunsHere, ...]


class Found(Struct, frozen=True, kw_only=True):
    kind: str
    """``device``, ``node``, ``job``, ``incident`` or ``fault``."""
    id: str
    about: str


class Finds(Struct, frozen=True, kw_only=True):
    finds: tuple[Found, ...]
    more: bool
    """There are others; a longer word finds fewer."""
