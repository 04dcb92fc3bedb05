"""Machines as they really are: power, boots, devices, memory, the node's own gate. Ground truth; nothing here decides.

The engine never sees this. Launchers and witnesses report parts of it, and checkers compare against it.
"""

from dataclasses import dataclass, field
from typing import Literal

from keepstep.core.facts import Device
from keepstep.core.ids import JobId, NodeId, ResourceId, device_resource, node_resource

GateTruth = Literal["pass", "fail", "tool"]
_SNAPSHOTS_KEPT = 3


@dataclass(slots=True)
class Snapshot:
    """Sealed state of one step in the memory of one machine. Digests of one snapshot name its step and generation."""

    step: int
    generation: int
    world_size: int
    parts: dict[int, tuple[str, ...]]
    held: tuple[str, ...]
    rotten: bool = False
    """Its bytes do not match its digests any more."""


@dataclass(slots=True)
class SimDevice:
    slot: int
    serial: str
    firmware: str = "1"
    flaky_s: float = 0.0
    """Mean time until a rank on it fails; 0 for a sound device."""
    gate: GateTruth = "pass"
    """What a gate run would find."""


@dataclass(slots=True)
class GateRun:
    resource: ResourceId
    serial: str
    boot_id: str
    firmware: str
    passed: bool
    at_s: float


@dataclass(slots=True)
class Machine:
    node: NodeId
    rack: str
    devices: dict[int, SimDevice]
    on: bool = True
    boots: int = 1
    bmc_alive: bool = True
    managed: bool = True
    """The management network reaches it, so that a witness can look."""
    controlled: bool = True
    """The control network reaches it, so that its launchers hear the server."""
    gate: GateTruth = "pass"
    held: dict[ResourceId, str] = field(default_factory=dict)
    """The node's own gate, kept on its disk: work on these is refused, whoever orders it."""
    memory: dict[JobId, list[Snapshot]] = field(default_factory=dict)
    gate_runs: list[GateRun] = field(default_factory=list)

    @classmethod
    def fresh(cls, node: NodeId, rack: str, slots: int) -> "Machine":
        return cls(node, rack, {slot: SimDevice(slot, f"{node}-d{slot}") for slot in range(slots)})

    @property
    def boot_id(self) -> str:
        return f"{self.node}-boot{self.boots}"

    def facts_of_devices(self) -> tuple[Device, ...]:
        return tuple(Device(slot=d.slot, serial=d.serial, firmware=d.firmware) for d in self.devices.values())

    def refusal(self, slots: tuple[int, ...]) -> ResourceId | None:
        """The held resource that work on these slots would touch."""
        for resource in (node_resource(self.node), *(device_resource(self.node, slot) for slot in slots)):
            if resource in self.held:
                return resource
        return None

    def keep(self, job: JobId, snapshots: list[Snapshot]) -> None:
        """Seal what a generation left behind; the oldest goes where there are too many."""
        known = {(s.generation, s.step): s for s in self.memory.get(job, [])}
        for snapshot in snapshots:
            known.setdefault((snapshot.generation, snapshot.step), snapshot)
        newest = sorted(known.values(), key=lambda s: (s.generation, s.step))
        self.memory[job] = newest[-_SNAPSHOTS_KEPT:]

    def power_off(self) -> None:
        self.on = False
        self.memory.clear()

    def power_on(self) -> None:
        self.on = True
        self.boots += 1
