"""Intents: orders for the outside. Owns their shapes; must not say how they are carried out.

Every intent has a number (its envelope, :class:`Order`), is idempotent and at-least-once: the receiver keeps the last
answers by number and repeats the answer instead of the act. An order of an older generation is answered ``Failed``.
"""

from typing import Literal

from msgspec import Struct

from keepstep.core.drill import DrillKind
from keepstep.core.ids import DrillId, IncidentId, JobId, NodeId, ResourceId, Session


class Fence(Struct, frozen=True, kw_only=True, tag=True):
    """End everything of ``job`` up to ``generation`` on ``node`` and prove it. Answer: Fenced or Failed.

    Goes to the launcher while its session is heard, else to whoever can prove the end without it (the host's process
    table, the BMC, the passing of the self-fence deadline).
    """

    job: JobId
    node: NodeId
    session: Session
    generation: int
    grace_s: float = 0.0
    """Time between SIGTERM and SIGKILL; 0 sends SIGKILL at once."""
    via: Literal["launcher", "witness"] = "launcher"


class RankPlace(Struct, frozen=True, kw_only=True):
    rank: int
    local_rank: int
    slot: int


class Restore(Struct, frozen=True, kw_only=True):
    """Which state a generation starts from. All ranks start from this one, or none does."""

    step: int
    tier: Literal["ram", "disk"]
    key: str
    generation: int
    """The generation that wrote it."""
    world_size: int
    """Ranks at the time it was written."""
    peers: tuple[str, ...] = ()
    """host:port of the snapshot servers that hold parts of it."""


class Launch(Struct, frozen=True, kw_only=True, tag=True):
    """Start ranks of one generation on one node. Answer: Launched or Failed."""

    job: JobId
    node: NodeId
    session: Session
    generation: int
    argv: tuple[str, ...]
    ranks: tuple[RankPlace, ...]
    world_size: int
    group_rank: int
    group_world_size: int
    store: str
    """host:port of the rendezvous store of this generation."""
    restore: Restore | None = None
    peers: tuple[str, ...] = ()
    """host:port of the snapshot servers of this generation, to mirror to."""
    checkpoint_dir: str = ""


class CollectStacks(Struct, frozen=True, kw_only=True, tag=True):
    """Look at the ranks of a generation from outside. Answer: StacksTaken or Failed."""

    job: JobId
    node: NodeId
    session: Session
    generation: int


class VerifyCheckpoint(Struct, frozen=True, kw_only=True, tag=True):
    """Read the parts that this node holds and compare digests. Answer: CheckpointVerified / CheckpointRejected / Failed.

    ``ram``: check the digests in ``held``. ``disk``: read the manifest named by ``restore.key`` and everything in it.
    """

    job: JobId
    node: NodeId
    session: Session
    restore: Restore
    held: tuple[str, ...] = ()


class AskWitness(Struct, frozen=True, kw_only=True, tag=True):
    """Ask whoever can see a silent launcher without it. Answer: Done; what was seen comes as Witnessed."""

    job: JobId
    node: NodeId
    session: Session
    boot_id: str
    pid: int
    pid_start: int


class Quarantine(Struct, frozen=True, kw_only=True, tag=True):
    """Tell the node to refuse work on a resource, whatever arrives later. Answer: Done."""

    job: JobId
    node: NodeId
    session: Session
    resource: ResourceId
    reason: str


class Release(Struct, frozen=True, kw_only=True, tag=True):
    """Open the node's own gate for a resource again. Answer: Done."""

    job: JobId
    node: NodeId
    session: Session
    resource: ResourceId


class ResetDevice(Struct, frozen=True, kw_only=True, tag=True):
    """Rung of the remediation ladder: reset a device on which nothing runs. Answer: Done or Failed."""

    job: JobId
    node: NodeId
    session: Session
    resource: ResourceId


class RunGate(Struct, frozen=True, kw_only=True, tag=True):
    """Run the validation gate. Answer: Done when it has begun and ended; its verdict comes as GateFinished."""

    job: JobId
    node: NodeId
    session: Session
    resource: ResourceId


class PowerOff(Struct, frozen=True, kw_only=True, tag=True):
    """Power-fence a node out of band. Destructive: needs policy or approval. Answer: Fenced(powered_off) or Failed."""

    job: JobId
    node: NodeId
    session: Session
    generation: int


class Inject(Struct, frozen=True, kw_only=True, tag=True):
    """A drill: do the fault to the ranks of a generation, for real. Answer: Done when it is done or about to be, or Failed.

    Carried out once. ``lose-node`` ends the launcher itself, so its answer may never arrive.
    """

    job: JobId
    node: NodeId
    session: Session
    generation: int
    drill: DrillId
    kind: DrillKind
    rank: int | None = None
    """None for the whole node."""
    for_s: float = 0.0
    """A stopped rank goes on after so long, where nobody ended it. 0: never, as launchers of before took it."""


class OpenRepair(Struct, frozen=True, kw_only=True, tag=True):
    """Open a repair order for a part. Answer: Done with the order's reference."""

    resource: ResourceId
    serial: str
    incident: IncidentId
    reason: str


class EndJob(Struct, frozen=True, kw_only=True, tag=True):
    """Tell the node's launcher that the job is over; it ends its ranks and exits. Answer: Done."""

    job: JobId
    node: NodeId
    session: Session
    exit_code: int
    message: str


class Notify(Struct, frozen=True, kw_only=True, tag=True):
    """Tell people. Answer: Done."""

    subject: str
    level: Literal["info", "warning", "page"]
    message: str


Intent = (
    Fence
    | Launch
    | CollectStacks
    | VerifyCheckpoint
    | AskWitness
    | Quarantine
    | Release
    | ResetDevice
    | RunGate
    | PowerOff
    | Inject
    | OpenRepair
    | EndJob
    | Notify
)


class Order(Struct, frozen=True, kw_only=True):
    """An intent with its number, as it is journalled and sent."""

    number: int
    intent: Intent
