"""Facts: what somebody observed. Owns their shapes; must not judge them.

A fact never carries a wall-clock time of another machine: the journal stamps it with the server's clock when it arrives.
Durations are measured by whoever reports them. Everything here crosses the wire and the journal, so a field is only ever
added, with a default.
"""

from typing import Literal

from msgspec import Struct

from keepstep.core.ids import IncidentId, JobId, NodeId, ResourceId, Session
from keepstep.core.site_facts import (
    Approved,
    CertificateIssued,
    CertificateRevoked,
    Compacted,
    CurveNoted,
    CurvePoint,
    DrillRequested,
    HoldLifted,
    HoldRequested,
    PolicySet,
    RequestRefused,
    ServerStarted,
    TokenIssued,
    TokenRevoked,
)

__all__ = (
    "Approved", "CertificateIssued", "CertificateRevoked", "Compacted", "CurveNoted", "CurvePoint", "DrillRequested",
    "HoldLifted", "HoldRequested", "PolicySet", "RequestRefused", "ServerStarted", "TokenIssued", "TokenRevoked",
)  # fmt: skip
"""Of those that stand in another file, to be found here with the rest."""

DEFAULT_TENANT = "default"


class Elasticity(Struct, frozen=True, kw_only=True):
    """What the job declares about its size. Never guessed."""

    min_nodes: int
    max_nodes: int
    """Equal to ``min_nodes`` for a fixed job."""
    step: int = 1


class JobSpec(Struct, frozen=True, kw_only=True):
    """What was asked for. ``argv`` is the script and its arguments."""

    argv: tuple[str, ...]
    nproc_per_node: int
    elasticity: Elasticity
    checkpoint_dir: str = ""
    capacity_wait_s: float | None = None
    """How long to wait for a healthy node before the job ends; None takes it from policy."""
    labels: dict[str, str] = {}
    """What its owner calls it by: ``model``, ``team``, ``experiment``, …; reviews group by them."""
    tenant: str = DEFAULT_TENANT
    """Who it belongs to. The server sets it from the identity of whoever submits; what a launcher writes here is not
    trusted."""


class Device(Struct, frozen=True, kw_only=True):
    """A training device as its node reports it."""

    slot: int
    serial: str
    model: str = "cpu"
    firmware: str = ""


STARTER_LOST = "ZygoteLost"
"""Kind of the error of a rank that ended because the launcher's own process did that starts ranks."""


class ErrorRecord(Struct, frozen=True, kw_only=True):
    """The last error of a rank, bounded in size by the launcher."""

    kind: str
    """Exception class, or the class of a native failure (``CUDA error``, ``NCCL``, ``out of memory``)."""
    message: str
    traceback: str = ""
    signature: str = ""
    """Equal for two errors that are the same bug: kind and the innermost frames, without addresses or numbers."""
    victim: bool = False
    """The error only says that a peer went away (connection reset, broken pipe, collective timed out)."""


# ---- jobs and nodes


class JobSubmitted(Struct, frozen=True, kw_only=True, tag=True):
    job: JobId
    spec: JobSpec
    by: str = ""
    run: str = ""
    """Names one call of ``keepstep run``. A run that was never seen starts an ended job again; every launcher of a run
    says the same, so that one which comes late to a finished job does not."""


class JobStopRequested(Struct, frozen=True, kw_only=True, tag=True):
    """A person (Ctrl-C, ``keepstep stop``) wants the job to end."""

    job: JobId
    by: str
    reason: str = ""


class NodeJoined(Struct, frozen=True, kw_only=True, tag=True):
    """A launcher said hello: the first time, or again after a broken connection or a server restart (same session)."""

    job: JobId
    node: NodeId
    session: Session
    boot_id: str
    devices: tuple[Device, ...]
    address: str
    """Where other nodes reach this node's store and snapshot server."""
    rack: str = ""
    pid: int = 0
    pid_start: int = 0
    """Start time of the launcher process in clock ticks since boot: (pid, pid_start) is never reused within a boot."""
    running_generation: int = 0
    """The generation whose ranks live there now; 0 for none."""
    store: str = ""
    """host:port of a rendezvous store that is up and has never been used."""
    snapshots: str = ""
    """host:port at which this node's snapshot server answers its peers."""
    inventory: "Inventory | None" = None
    spare: bool = False
    """It is meant to stand by: placed last."""


class NodeLeft(Struct, frozen=True, kw_only=True, tag=True):
    """The launcher leaves on purpose, after it has ended its ranks."""

    job: JobId
    node: NodeId
    session: Session
    reason: str = ""


class NodeUnreachable(Struct, frozen=True, kw_only=True, tag=True):
    """Nothing was heard from the launcher for a lease. Silence is *unknown*, never *dead*."""

    job: JobId
    node: NodeId
    session: Session
    silent_s: float
    connection_lost: bool = False


class NodeReachable(Struct, frozen=True, kw_only=True, tag=True):
    job: JobId
    node: NodeId
    session: Session


class Witnessed(Struct, frozen=True, kw_only=True, tag=True):
    """What an independent witness says of a node's launcher or machine."""

    job: JobId
    node: NodeId
    session: Session
    witness: Literal["host", "peer", "scheduler", "bmc", "person"]
    verdict: Literal["alive", "process_gone", "host_off", "rebooted", "no_answer"]
    detail: str = ""


# ---- ranks


class RankExited(Struct, frozen=True, kw_only=True, tag=True):
    """A rank ended, or reported the exception that is about to end it."""

    job: JobId
    node: NodeId
    session: Session
    generation: int
    rank: int
    slot: int
    exit_code: int | None = None
    signal: int | None = None
    error: ErrorRecord | None = None
    step: int = -1
    """The last step it completed; -1 if it never completed one."""
    phase: str = ""
    pid: int = 0


class JobStalled(Struct, frozen=True, kw_only=True, tag=True):
    """No rank made progress for longer than the learned deadline. Derived by ``detect`` from vitals."""

    job: JobId
    generation: int
    phase: str
    step: int
    stalled_s: float
    deadline_s: float
    stopped: tuple[int, ...] = ()
    """Ranks in job-control stop while others are not."""
    behind: tuple[int, ...] = ()
    """Ranks whose step is lower, or whose phase is earlier, than that of the others."""


class StepsAdvanced(Struct, frozen=True, kw_only=True, tag=True):
    """All ranks of a generation completed a step. Derived, and journalled only where it changes a verdict."""

    job: JobId
    generation: int
    step: int
    ranks: int
    loss: float | None = None
    step_time_s: float | None = None


class StepsSlower(Struct, frozen=True, kw_only=True, tag=True):
    """Steps take longer than they did, or than those of the other ranks, and have for a while. Derived by ``detect``; evidence
    for whoever looks for the reason, and never a reason to act by itself."""

    job: JobId
    generation: int
    ranks: tuple[int, ...]
    """The slow ones; empty where the whole job became slower."""
    ratio: float
    """To the median of the other ranks, or to the job's own time before."""
    against: Literal["peers", "self"]
    step: int


class RankStack(Struct, frozen=True, kw_only=True):
    """One rank as an outsider sees it. ``frames`` are ``file:line function``, innermost first."""

    rank: int
    frames: tuple[str, ...] = ()
    process_state: str = ""
    """The letter of /proc/<pid>/stat: R S D T t Z."""
    waiting: bool = False
    """It sits in a collective, a barrier or a wait on peers."""
    cpu_s: float = 0.0
    """CPU time used while it was watched."""


# ---- checkpoints


class RamOffer(Struct, frozen=True, kw_only=True):
    """Sealed snapshots of one step that a node holds in memory."""

    step: int
    generation: int
    world_size: int
    parts: dict[int, tuple[str, ...]]
    """Rank -> digests of the groups that make up its state. Includes ranks of other nodes that were mirrored here."""
    held: tuple[str, ...]
    """Digests whose bytes are here."""


class DiskOffer(Struct, frozen=True, kw_only=True):
    """A committed checkpoint in the job's directory."""

    step: int
    generation: int
    world_size: int
    key: str
    """Names the commit record."""


class Inventory(Struct, frozen=True, kw_only=True):
    """Everything a node could restore from."""

    ram: tuple[RamOffer, ...] = ()
    disk: tuple[DiskOffer, ...] = ()


class CheckpointCommitted(Struct, frozen=True, kw_only=True, tag=True):
    job: JobId
    generation: int
    step: int
    key: str
    world_size: int
    duration_s: float = 0.0
    size_bytes: int = 0


class CheckpointFailed(Struct, frozen=True, kw_only=True, tag=True):
    """A save did not become a checkpoint. An event, not the end of the run."""

    job: JobId
    node: NodeId
    generation: int
    step: int
    reason: str


# ---- devices, people, gate


class SignalSeen(Struct, frozen=True, kw_only=True, tag=True):
    """A hardware, host, network or dependency signal; ``signal`` is a key of the catalogue."""

    resource: ResourceId
    """What it is about: a device or a node that is known; a part of no kind of its own stands for its node."""
    signal: str
    boot_id: str = ""
    detail: str = ""
    part: str = ""
    """The part as its source names it, see ``core.observation``; empty for the resource itself."""
    attributes: dict[str, str] = {}
    count: int = 1
    source: str = ""
    """The adapter that saw it."""
    session: Session = Session("")
    """Of the agent that tells it; empty where a launcher does, or the server's own look at a BMC."""
    age_s: float = 0.0
    """How long ago it was seen when it was sent, by the clock of the agent that kept it: a duration, never a time of day."""


class NodePart(Struct, frozen=True, kw_only=True):
    """A part of a node as its agent finds it; all of its names, so that evidence of any source meets."""

    names: tuple[str, ...]
    """``kind/name``, for a GPU: PCI address, UUID, index."""
    serial: str = ""
    model: str = ""
    firmware: str = ""
    slot: int | None = None
    """Slot of the device that launchers of the node give to ranks; None for anything else."""


class AgentJoined(Struct, frozen=True, kw_only=True, tag=True):
    """A node's agent said hello: the first time, or again."""

    node: NodeId
    session: Session
    boot_id: str
    parts: tuple[NodePart, ...] = ()
    domains: dict[str, str] = {}
    """What it shares with others: ``rack``, ``switch``, ``power``, ``driver``, ``image`` -> name."""


class AgentSilent(Struct, frozen=True, kw_only=True, tag=True):
    """Nothing was heard from an agent for a lease. Says nothing about the node."""

    node: NodeId
    session: Session
    silent_s: float


class AgentHeard(Struct, frozen=True, kw_only=True, tag=True):
    node: NodeId
    session: Session


class CoverageChanged(Struct, frozen=True, kw_only=True, tag=True):
    """What an agent can see of a kind, from now on. What nobody looks at must not count as well."""

    node: NodeId
    session: Session
    source: str
    state: Literal["seen", "absent", "failing"]
    detail: str = ""


class BmcSeen(Struct, frozen=True, kw_only=True, tag=True):
    """What the server's own look at a node's BMC says; journalled where it changes."""

    node: NodeId
    power: Literal["on", "off", "unknown"]
    reachable: bool
    health: str = ""
    detail: str = ""


class ProbeFailed(Struct, frozen=True, kw_only=True, tag=True):
    """A status call timed out or erred. Recorded; never evidence of a fault by itself."""

    source: str
    job: JobId
    detail: str = ""


class GateFinished(Struct, frozen=True, kw_only=True, tag=True):
    """A validation gate ran to its end. ``passed`` is None where the tool itself failed: that is not a pass."""

    resource: ResourceId
    serial: str
    boot_id: str
    firmware: str
    passed: bool | None
    detail: str = ""
    run: int = 0
    """Number of the RunGate order that it answers; 0 from a launcher that does not say."""


# ---- answers to intents


class Done(Struct, frozen=True, kw_only=True, tag=True):
    detail: str = ""


class Failed(Struct, frozen=True, kw_only=True, tag=True):
    reason: str


class Fenced(Struct, frozen=True, kw_only=True, tag=True):
    """Nothing of the job up to ``generation`` lives on the node any more."""

    generation: int
    proof: Literal["killed", "nothing_ran", "process_gone", "rebooted", "powered_off", "self_fenced"]
    killed: int = 0
    inventory: Inventory | None = None
    store: str = ""
    """A fresh rendezvous store, see NodeJoined.store."""


class Launched(Struct, frozen=True, kw_only=True, tag=True):
    pids: dict[int, int]
    """Rank -> pid."""
    warm: bool = True
    why_cold: str = ""


class StacksTaken(Struct, frozen=True, kw_only=True, tag=True):
    stacks: tuple[RankStack, ...]


class CheckpointVerified(Struct, frozen=True, kw_only=True, tag=True):
    key: str


class CheckpointRejected(Struct, frozen=True, kw_only=True, tag=True):
    key: str
    reason: str


Outcome = Done | Failed | Fenced | Launched | StacksTaken | CheckpointVerified | CheckpointRejected


class Answered(Struct, frozen=True, kw_only=True, tag=True):
    """The outcome of one intent; ``intent`` echoes its number."""

    intent: int
    outcome: Outcome


class Overdue(Struct, frozen=True, kw_only=True, tag=True):
    """An intent got no answer in time. Derived by ``detect``; says nothing about what really happened outside."""

    intent: int
    waited_s: float


Fact = (
    JobSubmitted
    | JobStopRequested
    | NodeJoined
    | NodeLeft
    | NodeUnreachable
    | NodeReachable
    | Witnessed
    | RankExited
    | JobStalled
    | StepsAdvanced
    | StepsSlower
    | CheckpointCommitted
    | CheckpointFailed
    | SignalSeen
    | AgentJoined
    | AgentSilent
    | AgentHeard
    | CoverageChanged
    | BmcSeen
    | ProbeFailed
    | HoldRequested
    | HoldLifted
    | Approved
    | GateFinished
    | DrillRequested
    | ServerStarted
    | PolicySet
    | TokenIssued
    | TokenRevoked
    | CertificateIssued
    | CertificateRevoked
    | RequestRefused
    | CurveNoted
    | Compacted
    | Answered
    | Overdue
)

Subject = IncidentId | JobId | ResourceId
