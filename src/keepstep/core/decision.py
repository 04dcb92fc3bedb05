"""Decisions: what the engine decided, why, and what follows. Owns their shapes; must not apply them (see apply.py).

Together with the facts they are the journal: folding both in order gives the World, without deciding anything again.
"""

from typing import Literal

from msgspec import Struct

from keepstep.core.catalog.row import Verdict
from keepstep.core.drill import DrillKind, DrillState, Mark
from keepstep.core.facts import Fact
from keepstep.core.fault import Nature
from keepstep.core.ids import DrillId, FaultId, IncidentId, JobId, NodeId, ResourceId
from keepstep.core.incident import Diagnosis, IncidentState, Judged
from keepstep.core.intents import Intent, Restore
from keepstep.core.job import Failure, JobState, Placement
from keepstep.core.resource import ResourceState


class MoveIncident(Struct, frozen=True, kw_only=True, tag=True):
    incident: IncidentId
    to: IncidentState


class MoveJob(Struct, frozen=True, kw_only=True, tag=True):
    job: JobId
    to: JobState


class MoveResource(Struct, frozen=True, kw_only=True, tag=True):
    resource: ResourceId
    to: ResourceState


class Open(Struct, frozen=True, kw_only=True, tag=True):
    """A new incident; it leads its job from now on."""

    incident: IncidentId
    job: JobId
    kind: Literal["start", "fault"]
    symptoms: tuple[int, ...]


class Join(Struct, frozen=True, kw_only=True, tag=True):
    """More evidence for an open incident."""

    incident: IncidentId
    symptoms: tuple[int, ...]


class Ask(Struct, frozen=True, kw_only=True, tag=True):
    """More evidence has been asked for; said so that it is asked once."""

    incident: IncidentId
    witnesses: tuple[NodeId, ...] = ()
    stacks: bool = False


class Excuse(Struct, frozen=True, kw_only=True, tag=True):
    """A stall was no fault; the job's deadlines become more patient."""

    incident: IncidentId


class Resume(Struct, frozen=True, kw_only=True, tag=True):
    """What was joined during a recovery changes nothing about it: it goes on where it was."""

    incident: IncidentId


class Setback(Struct, frozen=True, kw_only=True, tag=True):
    """A recovery did not hold although nothing was seen to fail. ``refuse`` names a state not to restore again."""

    incident: IncidentId
    reason: str
    refuse: str = ""


class Grant(Struct, frozen=True, kw_only=True, tag=True):
    """A person approved what the incident waits for."""

    incident: IncidentId
    by: str


class Dismiss(Struct, frozen=True, kw_only=True, tag=True):
    """A symptom that concerns nobody (any more)."""

    entry: int
    queue: Literal["inbox"]


class OpenFault(Struct, frozen=True, kw_only=True, tag=True):
    """A root cause that was not known. ``members`` are faults that it explains: they join it."""

    fault: FaultId
    node: NodeId | None
    part: str
    nature: Nature
    seen_on: NodeId | None = None
    """The node that told of it, also where it is a domain's or a dependency's."""
    entries: tuple[int, ...] = ()
    signal: str = ""
    members: tuple[FaultId, ...] = ()


class JoinFault(Struct, frozen=True, kw_only=True, tag=True):
    """More evidence for an open fault; ``nature`` where it is judged anew."""

    fault: FaultId
    entry: int
    node: NodeId | None = None
    signal: str = ""
    nature: Nature | None = None


class HoldForFault(Struct, frozen=True, kw_only=True, tag=True):
    """Names what was isolated because of a fault."""

    fault: FaultId
    resource: ResourceId


class ClearNode(Struct, frozen=True, kw_only=True, tag=True):
    """One of the nodes that saw a fault says that it is well again there."""

    fault: FaultId
    node: NodeId


class CloseFault(Struct, frozen=True, kw_only=True, tag=True):
    fault: FaultId
    outcome: str


class Symptom(Struct, frozen=True, kw_only=True):
    """A signal that a running job must act on now: it goes to the job's incident."""

    job: JobId
    judged: Judged


class Due(Struct, frozen=True, kw_only=True, tag=True):
    """A job saved its state since a fault that it is to leave at its next checkpoint: the moment has come."""

    job: JobId
    judged: Judged


class Defer(Struct, frozen=True, kw_only=True, tag=True):
    """The oldest signal is suspicious only because nothing was heard that takes it back: it is judged again later."""

    entry: int
    until_s: float


class Reconsider(Struct, frozen=True, kw_only=True, tag=True):
    """A signal that was deferred is the oldest one again."""

    entry: int


class Assess(Struct, frozen=True, kw_only=True, tag=True):
    """The oldest signal is judged. ``shadow`` is what rules would have done that are not trusted yet."""

    entry: int
    verdict: Verdict
    shadow: tuple[str, ...] = ()
    symptoms: tuple[Symptom, ...] = ()


class Diagnose(Struct, frozen=True, kw_only=True, tag=True):
    """A diagnosis. ``new_attempt`` where the last attempt had already started a generation."""

    incident: IncidentId
    diagnosis: Diagnosis
    new_attempt: bool
    failure: Failure | None = None


class PlaceHold(Struct, frozen=True, kw_only=True, tag=True):
    resource: ResourceId
    source: str
    reason: str
    incident: IncidentId | None = None


class DropHold(Struct, frozen=True, kw_only=True, tag=True):
    resource: ResourceId
    source: str


class ProveFenced(Struct, frozen=True, kw_only=True, tag=True):
    """A proof that needs no answer: the self-fence deadline has passed for a launcher that nobody hears."""

    job: JobId
    node: NodeId
    generation: int
    proof: Literal["self_fenced"] = "self_fenced"


class Suspect(Struct, frozen=True, kw_only=True, tag=True):
    """A failure that could be the device's own is counted against it."""

    resource: ResourceId


class Choose(Struct, frozen=True, kw_only=True, tag=True):
    """The state to restore from; None starts from nothing. Not yet verified."""

    incident: IncidentId
    restore: Restore | None
    asked: tuple[NodeId, ...] = ()
    """Nodes that verify it."""


class Place(Struct, frozen=True, kw_only=True, tag=True):
    """A new generation and where it lives."""

    incident: IncidentId
    job: JobId
    placement: Placement
    store_node: NodeId | None


class Wait(Struct, frozen=True, kw_only=True, tag=True):
    """What an incident waits for, and where it goes on."""

    incident: IncidentId
    waits_for: str
    resume_at: IncidentState
    asks: str = ""
    """What an approval allows, where several things wait in one state: ``breaker`` or ``power_off``."""


class Remediate(Struct, frozen=True, kw_only=True, tag=True):
    """One more reset or gate run of a resource."""

    resource: ResourceId
    resets: int
    gate_tries: int


class End(Struct, frozen=True, kw_only=True, tag=True):
    """How a job ends."""

    job: JobId
    exit_code: int
    message: str


class Close(Struct, frozen=True, kw_only=True, tag=True):
    """The review of an incident: what it cost and how sure the cure is."""

    incident: IncidentId
    verdict: str
    lost_steps: int
    stage_s: dict[str, float]
    downtime_s: float


class OpenDrill(Struct, frozen=True, kw_only=True, tag=True):
    """The schedule wants a drill."""

    drill: DrillId
    job: JobId
    kind: DrillKind
    by: str


class MoveDrill(Struct, frozen=True, kw_only=True, tag=True):
    """With what is known then: the target when it is injected, marks and the reason at its end."""

    drill: DrillId
    to: DrillState
    node: NodeId | None = None
    rank: int | None = None
    generation: int = 0
    marks: tuple[Mark, ...] = ()
    reason: str = ""


class LinkDrill(Struct, frozen=True, kw_only=True, tag=True):
    """The incident that a drill led to."""

    drill: DrillId
    incident: IncidentId


class Retire(Struct, frozen=True, kw_only=True, tag=True):
    """What has been over for long leaves the World; it is in the archive."""

    incidents: tuple[IncidentId, ...] = ()
    faults: tuple[FaultId, ...] = ()
    jobs: tuple[JobId, ...] = ()


Change = (
    MoveIncident
    | MoveJob
    | MoveResource
    | Open
    | Join
    | Ask
    | Excuse
    | Resume
    | Setback
    | Grant
    | Dismiss
    | OpenFault
    | JoinFault
    | HoldForFault
    | ClearNode
    | CloseFault
    | Due
    | Defer
    | Reconsider
    | Assess
    | Diagnose
    | PlaceHold
    | DropHold
    | ProveFenced
    | Suspect
    | Choose
    | Place
    | Wait
    | Remediate
    | End
    | Close
    | OpenDrill
    | MoveDrill
    | LinkDrill
    | Retire
)


class Decision(Struct, frozen=True, kw_only=True, tag=True):
    """One decision of one stage. ``changes`` are applied in order; ``intents`` get the numbers from ``first_order`` on."""

    stage: str
    subject: str
    reason: str
    changes: tuple[Change, ...] = ()
    intents: tuple[Intent, ...] = ()
    first_order: int = 0


Record = Fact | Decision


class Entry(Struct, frozen=True, kw_only=True):
    """One journal entry. ``at_s`` is the server's clock; hashes are hex."""

    seq: int
    at_s: float
    record: Record
    prev: str = ""
    hash: str = ""
