"""The fault: one root cause on a resource or a domain, with or without a job. Its states, its one transition table, its record.

Incidents are what jobs make of it: a rack that loses power is one fault and an incident of each job that ran there. All of them
point to it, and budgets are charged to it once.
"""

import enum

from msgspec import Struct, field

from keepstep.core.catalog.row import Scope, Verdict
from keepstep.core.ids import FaultId, IncidentId, JobId, NodeId, ResourceId
from keepstep.core.incident import Cause, Seen, Urgency


class FaultState(enum.Enum):
    OPEN = "open"
    GROUPED = "grouped"
    """A wider fault explains it."""
    CLOSED = "closed"


F = FaultState

TRANSITIONS: dict[FaultState, tuple[FaultState, ...]] = {
    F.OPEN: (F.GROUPED, F.CLOSED),
    F.GROUPED: (F.CLOSED,),
    F.CLOSED: (),
}

OWNER: dict[FaultState, str] = {
    F.OPEN: "assess; closes when its resource is validated, or after a quiet time",
    F.GROUPED: "the wider fault; closes with it",
    F.CLOSED: "nobody: it is history",
}


class Nature(Struct, frozen=True, kw_only=True):
    """What a fault is, as it was judged last."""

    cause: Cause
    failure_class: str
    scope: Scope
    verdict: Verdict
    urgency: Urgency
    confidence: float
    text: str
    resource_action: str
    job_action: str


class Fault(Struct, kw_only=True):
    id: FaultId
    node: NodeId | None
    """None for a domain or a dependency."""
    part: str
    """As ``core.observation`` names parts; empty for the node itself."""
    nature: Nature
    state: FaultState = FaultState.OPEN
    opened_s: float = 0.0
    last_s: float = 0.0
    """When evidence for it came last."""
    entries: list[int] = field(default_factory=list)
    """Journal entries that are evidence for it; bounded, the first ones are kept."""
    count: int = 0
    """How many there were."""
    signals: list[str] = field(default_factory=list)
    """Keys of the catalogue that were seen, each once."""
    held: list[ResourceId] = field(default_factory=list)
    """What was isolated because of it."""
    nodes: list[NodeId] = field(default_factory=list)
    """Nodes that it was seen on."""
    first: Seen | None = None
    """The signal that opened it: what a job is told that has to move because of it."""
    told: list[JobId] = field(default_factory=list)
    """Jobs that were told to act on it."""
    incidents: list[IncidentId] = field(default_factory=list)
    members: list[FaultId] = field(default_factory=list)
    group: FaultId | None = None
    closed_s: float | None = None
    outcome: str = ""

    @property
    def resource(self) -> str:
        """As people read it: ``n7/gpu/0000:9b:00``, ``rack/r12``, ``n7``."""
        if self.node is None:
            return self.part
        return f"{self.node}/{self.part}" if self.part else self.node
