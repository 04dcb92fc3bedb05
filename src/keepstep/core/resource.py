"""The resource (a node or a device): its states, its one transition table, its holds.

Three facts are kept apart: the state in its life, the holds with their owners, and the suspicion score. A resource may take
work only when it is in service (or on probation) and nobody holds it.
"""

import enum

from msgspec import Struct, field

from keepstep.core.ids import IncidentId, NodeId, ResourceId


class ResourceState(enum.Enum):
    NEW = "new"
    BURN_IN = "burn_in"
    IN_SERVICE = "in_service"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"
    DRAINING = "draining"
    FENCED = "fenced"
    REMEDIATING = "remediating"
    VALIDATING = "validating"
    PROBATION = "probation"
    REPAIR = "repair"
    RETIRED = "retired"
    LOST = "lost"
    """Its node is gone; what it was before comes back only through validation."""


R = ResourceState

TRANSITIONS: dict[ResourceState, tuple[ResourceState, ...]] = {
    R.NEW: (R.BURN_IN, R.IN_SERVICE, R.QUARANTINED, R.LOST),
    R.BURN_IN: (R.IN_SERVICE, R.REPAIR, R.QUARANTINED, R.LOST),
    R.IN_SERVICE: (R.SUSPECT, R.QUARANTINED, R.LOST, R.RETIRED),
    R.SUSPECT: (R.IN_SERVICE, R.QUARANTINED, R.LOST),
    R.QUARANTINED: (R.DRAINING, R.LOST),
    R.DRAINING: (R.FENCED, R.LOST),
    R.FENCED: (R.REMEDIATING, R.VALIDATING, R.REPAIR, R.LOST),
    R.REMEDIATING: (R.VALIDATING, R.REPAIR, R.LOST),
    R.VALIDATING: (R.PROBATION, R.REMEDIATING, R.REPAIR, R.LOST),
    R.PROBATION: (R.IN_SERVICE, R.QUARANTINED, R.LOST),
    R.REPAIR: (R.BURN_IN, R.VALIDATING, R.RETIRED, R.LOST),
    R.RETIRED: (),
    R.LOST: (R.VALIDATING, R.REPAIR, R.RETIRED),
}

OWNER: dict[ResourceState, str] = {
    R.NEW: "the node that reports it",
    R.BURN_IN: "remediate",
    R.IN_SERVICE: "place",
    R.SUSPECT: "diagnose; decays by itself",
    R.QUARANTINED: "isolate",
    R.DRAINING: "isolate",
    R.FENCED: "remediate",
    R.REMEDIATING: "remediate",
    R.VALIDATING: "remediate, by the gate",
    R.PROBATION: "remediate; ends by itself",
    R.REPAIR: "the repair order",
    R.RETIRED: "nobody: it is out",
    R.LOST: "the node, when it comes back",
}

USABLE = (R.IN_SERVICE, R.PROBATION, R.SUSPECT)


class Hold(Struct, frozen=True, kw_only=True):
    """Keeps work off a resource until its own source lifts it."""

    source: str
    """``keepstep:<incident>``, ``gate``, or ``person:<name>``."""
    reason: str
    since_s: float


class Resource(Struct, kw_only=True):
    id: ResourceId
    node: NodeId
    serial: str = ""
    model: str = ""
    firmware: str = ""
    boot_id: str = ""
    state: ResourceState = ResourceState.NEW
    entered_s: float = 0.0
    holds: dict[str, Hold] = field(default_factory=dict)
    failures: list[float] = field(default_factory=list)
    """Times at which a rank failed on it for a reason that could be its own; bounded by policy."""
    incident: IncidentId | None = None
    """The incident that isolated it."""
    resets: int = 0
    gated: bool = False
    """The node was told to refuse it, and has not confirmed yet that it lets work in again."""
    gate_tries: int = 0
    gate_verdict: str = ""
    """``passed``, ``failed`` or ``tool_failed``: what the newest gate run said."""
    gate_passed_entry: int | None = None
    """Journal entry of the gate pass that is valid for the present serial, boot and firmware."""
    gate_passed_s: float = -1.0
    """When it last passed, whatever became of that pass: what was seen before is answered by it."""

    @property
    def allocatable(self) -> bool:
        return self.state in USABLE and not self.holds and not self.gated
