"""The incident: its states, its one transition table, its record. Nothing else may change an incident's state."""

import enum

from msgspec import Struct, field

from keepstep.core.facts import Fact, RankStack
from keepstep.core.ids import DrillId, FaultId, IncidentId, JobId, NodeId, ResourceId
from keepstep.core.intents import Restore


class IncidentState(enum.Enum):
    OPEN = "open"
    """Evidence is being joined and diagnosed."""
    ISOLATING = "isolating"
    """Holds are placed; the old generation is being fenced."""
    SELECTING = "selecting"
    """The newest valid state is being chosen and verified."""
    PLACING = "placing"
    """A place on healthy capacity is looked for; waits here when there is none."""
    RESTARTING = "restarting"
    """A new generation has been ordered."""
    VERIFYING = "verifying"
    """The new generation runs; it must progress."""
    WAITING = "waiting"
    """A person or the policy must decide."""
    RECOVERED = "recovered"
    ESCALATED = "escalated"
    NO_FAULT = "no_fault"


S = IncidentState

TRANSITIONS: dict[IncidentState, tuple[IncidentState, ...]] = {
    S.OPEN: (S.ISOLATING, S.SELECTING, S.RESTARTING, S.WAITING, S.NO_FAULT, S.ESCALATED),
    S.ISOLATING: (S.SELECTING, S.WAITING, S.ESCALATED),
    S.SELECTING: (S.PLACING, S.OPEN, S.WAITING, S.ESCALATED),
    S.PLACING: (S.RESTARTING, S.SELECTING, S.OPEN, S.WAITING, S.ESCALATED),
    S.RESTARTING: (S.VERIFYING, S.OPEN, S.ESCALATED),
    S.VERIFYING: (S.RECOVERED, S.OPEN, S.ESCALATED),
    S.WAITING: (S.OPEN, S.ISOLATING, S.SELECTING, S.PLACING, S.ESCALATED),
    S.RECOVERED: (),
    S.ESCALATED: (),
    S.NO_FAULT: (),
}

TERMINAL = (S.RECOVERED, S.ESCALATED, S.NO_FAULT)

OWNER: dict[IncidentState, str] = {
    S.OPEN: "correlate, diagnose",
    S.ISOLATING: "isolate",
    S.SELECTING: "select",
    S.PLACING: "place",
    S.RESTARTING: "restart",
    S.VERIFYING: "verify",
    S.WAITING: "a person, or the policy's deadline",
    S.RECOVERED: "review",
    S.ESCALATED: "review",
    S.NO_FAULT: "review",
}


class Cause(enum.Enum):
    """Requirement B2's classes."""

    APPLICATION = "application"
    DATA = "data"
    DEVICE = "device"
    HOST_SOFTWARE = "host_software"
    HOST_HARDWARE = "host_hardware"
    NETWORK = "network"
    POWER = "power"
    DEPENDENCY = "dependency"
    CHECKPOINT = "checkpoint"
    OPERATOR = "operator"
    UNKNOWN = "unknown"


class Urgency(enum.Enum):
    """What the running job should do about it; a separate verdict from what is wrong with the resource."""

    NOW = "now"
    NEXT_CHECKPOINT = "next_checkpoint"
    JOB_END = "job_end"
    NONE = "none"


class Judged(Struct, frozen=True, kw_only=True):
    """The verdict on a hardware signal, as ``assess`` took it in the company of the others."""

    fault: FaultId
    resource: ResourceId
    cause: Cause
    failure_class: str
    text: str
    confidence: float
    isolate: bool


class Seen(Struct, frozen=True, kw_only=True):
    """A fact that serves as evidence, for the job that it concerns."""

    entry: int
    job: JobId | None
    at_s: float
    fact: Fact
    judged: Judged | None = None
    """Of a signal."""


class Evidence(Struct, frozen=True, kw_only=True):
    """One piece of evidence: which journal entry, who saw it, what it says."""

    entry: int
    source: str
    text: str
    supports: bool = True


class Diagnosis(Struct, frozen=True, kw_only=True):
    cause: Cause
    confidence: float
    """0 … 1."""
    summary: str
    urgency: Urgency = Urgency.NOW
    resources: tuple[ResourceId, ...] = ()
    """Suspects that are isolated before the restart."""
    lost_nodes: tuple[NodeId, ...] = ()
    culprits: tuple[int, ...] = ()
    """Ranks at fault."""
    key: str = ""
    """Names the root cause; budgets are charged per key."""
    evidence: tuple[Evidence, ...] = ()
    fault: FaultId | None = None
    """The root cause on a resource or a domain that it goes back to."""
    deterministic: bool = False
    """The same error at the same step as before: a restart cannot cure it."""


class Attempt(Struct, kw_only=True):
    """One try at recovering: from a diagnosis to a generation that lives or fails."""

    generation: int
    """The generation that is being replaced; 0 at the first start."""
    diagnosis: Diagnosis | None = None
    fenced: dict[NodeId, str] = field(default_factory=dict)
    """Node -> proof."""
    fence_tries: dict[NodeId, int] = field(default_factory=dict)
    fence_tried_s: dict[NodeId, float] = field(default_factory=dict)
    fence_road: dict[NodeId, str] = field(default_factory=dict)
    """Node -> whom the newest fence went to: another one is asked at once, the same one after a while."""
    charged: bool = False
    """Its failure is remembered by the job."""
    rejected: list[str] = field(default_factory=list)
    """Keys of candidates that did not verify."""
    unread: list[tuple[str, NodeId]] = field(default_factory=list)
    """(key, node): a node that could not read a candidate."""
    restore: Restore | None = None
    restore_chosen: bool = False
    verified_by: list[NodeId] = field(default_factory=list)
    """Nodes that verified their part of it."""
    verify_asked: tuple[NodeId, ...] = ()
    """Nodes that were asked to."""
    witnesses_asked: tuple[NodeId, ...] = ()
    stacks_asked: bool = False
    stacks: dict[NodeId, tuple[RankStack, ...]] = field(default_factory=dict)
    failed_launches: dict[int, NodeId] = field(default_factory=dict)
    """Journal entry of a failed launch -> its node."""
    launched: dict[NodeId, bool] = field(default_factory=dict)
    """Node -> warm."""
    new_generation: int = 0


class Incident(Struct, kw_only=True):
    """One incident, from the first evidence to the review. A job's first start is the same road without a fault."""

    id: IncidentId
    job: JobId
    kind: str
    """``start`` or ``fault``."""
    state: IncidentState
    opened_s: float
    entered_s: float
    """When the present state was entered; every state has a deadline."""
    entered_entry: int = 0
    """The journal entry with which it was entered: a word that is older does not answer what is asked here."""
    step_before: int = -1
    """The newest step that all ranks had completed when it was opened."""
    loss_before: float | None = None
    step_time_before_s: float | None = None
    attempts: list[Attempt] = field(default_factory=list)
    evidence: dict[int, Seen] = field(default_factory=dict)
    """The symptoms themselves while it is open; afterwards the journal has them."""
    symptoms: list[int] = field(default_factory=list)
    """Journal entries joined to it, oldest first."""
    undiagnosed: list[int] = field(default_factory=list)
    """Symptoms that arrived after the newest diagnosis."""
    drill: DrillId | None = None
    """The drill that led to it; known for its account, not for its diagnosis."""
    excused: bool = False
    """A stall that turned out to be no fault: the shell makes the job's deadlines more patient."""
    granted: IncidentState | None = None
    """A person approved what it waited for before it went on in this state; spent with the next diagnosis."""
    asks: str = ""
    """What that word is about, see decision.Wait.asks: an answer counts for its own question only."""
    grants: int = 0
    """Words of a person that it went on by."""
    checkpoint_s: float | None = None
    """When the newest committed checkpoint was written, as it was known when this was opened."""
    ranks: int = 0
    """Size of the job when it was opened."""
    setback: str = ""
    """Why the verification sent it back, where no symptom says so."""
    failed_orders: dict[str, int] = field(default_factory=dict)
    """Intent kind -> how often it failed in this incident."""
    last_failure: str = ""
    waits_for: str = ""
    resume_at: IncidentState | None = None
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds spent per state."""
    timeline: list[tuple[str, float]] = field(default_factory=list)
    """(state, when it was entered), in order."""
    progress: list[tuple[int, float]] = field(default_factory=list)
    """(step, when) of the steps seen while verifying."""
    loss_after: float | None = None
    closed_s: float | None = None
    verdict: str = ""
    lost_steps: int = 0
    downtime_s: float = 0.0
    """From the first evidence to the first new step that all ranks completed; to its end where it was not recovered."""

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The newest; None before the first."""
        return next((a.diagnosis for a in reversed(self.attempts) if a.diagnosis is not None), None)

    @property
    def attempt(self) -> Attempt:
        return self.attempts[-1]

    @property
    def open(self) -> bool:
        return self.state not in TERMINAL
