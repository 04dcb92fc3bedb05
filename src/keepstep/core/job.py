"""The job: its states, its one transition table, its record."""

import enum

from msgspec import Struct, field

from keepstep.core.facts import DEFAULT_TENANT, DiskOffer, Inventory, JobSpec, StepsSlower
from keepstep.core.ids import IncidentId, JobId, NodeId, ResourceId, Session, node_of, slot_of
from keepstep.core.intents import RankPlace, Restore


class JobState(enum.Enum):
    SUBMITTED = "submitted"
    """Known; not enough nodes have joined yet."""
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    ENDING = "ending"
    """Its launchers are being told to end."""
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


J = JobState

TRANSITIONS: dict[JobState, tuple[JobState, ...]] = {
    J.SUBMITTED: (J.STARTING, J.ENDING),
    J.STARTING: (J.RUNNING, J.RECOVERING, J.ENDING),
    J.RUNNING: (J.RECOVERING, J.ENDING),
    J.RECOVERING: (J.RUNNING, J.ENDING),
    J.ENDING: (J.FINISHED, J.FAILED, J.STOPPED),
    J.FINISHED: (J.SUBMITTED,),
    J.FAILED: (J.SUBMITTED,),
    J.STOPPED: (J.SUBMITTED,),
}
"""An ended job moves only when somebody runs it again."""

TERMINAL = (J.FINISHED, J.FAILED, J.STOPPED)

OWNER: dict[JobState, str] = {
    J.SUBMITTED: "place",
    J.STARTING: "the start (an incident without a fault)",
    J.RUNNING: "detect",
    J.RECOVERING: "its incident",
    J.ENDING: "the engine",
    J.FINISHED: "nobody",
    J.FAILED: "nobody",
    J.STOPPED: "nobody",
}


class Launcher(Struct, kw_only=True):
    """One launcher of a job: a node that offers itself."""

    node: NodeId
    session: Session
    boot_id: str
    slots: tuple[int, ...]
    address: str = ""
    rack: str = ""
    pid: int = 0
    pid_start: int = 0
    store: str = ""
    snapshots: str = ""
    reachable: bool = True
    silent_since_s: float | None = None
    gone: str = ""
    """Why it is known to be gone (a witness's word); empty while it lives or is unknown."""
    left: bool = False
    fenced: int = 0
    """Everything up to this generation is proven dead here."""
    running: int = 0
    """The generation that was ordered to run here and is not proven dead; 0 for none."""
    inventory: Inventory | None = None
    joined_s: float = 0.0
    spare: bool = False
    told_to_end: bool = False
    seen_alive_s: float | None = None
    """When a witness last saw it alive although it was silent."""
    replaces: Session | None = None
    """The session that ran here before and is not proven dead."""
    older: tuple[Session, ...] = ()
    """Sessions that ran here before this one: their words are stale (bounded)."""
    confirmed: int = 0
    """The newest generation whose launch this session confirmed."""
    emptied: bool = False
    """It is heard, and says itself that the ranks which it had confirmed are gone."""
    fenced_s: float | None = None
    """When the newest proof of death came in."""


class Past(Struct, kw_only=True):
    """What is still known of the incidents of a job that have left the World."""

    faults: int = 0
    downtime_s: float = 0.0
    lost_steps: int = 0
    redone_s: float = 0.0


class RetiredJob(Struct, frozen=True, kw_only=True):
    """What must never be forgotten of a job, however long it is over."""

    generation: int
    """A run that comes later goes on from here: generations only grow."""
    runs: tuple[str, ...]
    invalid: tuple[str, ...]
    tainted: tuple[int, ...]
    tenant: str = DEFAULT_TENANT
    """Its name stays this one's: nobody else goes on under it."""


class Placement(Struct, frozen=True, kw_only=True):
    """Where the ranks of one generation live."""

    generation: int
    world_size: int
    nodes: dict[NodeId, tuple[RankPlace, ...]]
    """In group-rank order."""

    def node_of_rank(self, rank: int) -> NodeId | None:
        for node, ranks in self.nodes.items():
            if any(place.rank == rank for place in ranks):
                return node
        return None


class RankEnd(Struct, frozen=True, kw_only=True):
    """How a rank of the present generation ended."""

    exit_code: int | None
    signal: int | None
    entry: int


class Failure(Struct, frozen=True, kw_only=True):
    """What is remembered of a failure for telling a deterministic bug from bad luck."""

    signature: str
    step: int
    key: str
    resources: tuple[ResourceId, ...]
    at_s: float


class Job(Struct, kw_only=True):
    id: JobId
    spec: JobSpec
    state: JobState = JobState.SUBMITTED
    entered_s: float = 0.0
    generation: int = 0
    """The newest generation ever ordered. Only grows."""
    placement: Placement | None = None
    restored: Restore | None = None
    store: str = ""
    """host:port of the rendezvous store of the present generation."""
    launchers: dict[NodeId, Launcher] = field(default_factory=dict)
    ended: dict[int, RankEnd] = field(default_factory=dict)
    """Ranks of the present generation that ended."""
    incident: IncidentId | None = None
    """The incident that leads the job now; at most one."""
    failures: list[Failure] = field(default_factory=list)
    step: int = -1
    """The newest step that all ranks were seen to complete, as the last fact that carried it said."""
    loss: float | None = None
    step_time_s: float | None = None
    invalid: list[str] = field(default_factory=list)
    """Keys of states that were refused when they were verified or restored."""
    tainted: list[int] = field(default_factory=list)
    """Generations that went on from a state which was refused afterwards: what they saved is no better."""
    committed_step: int = -1
    committed_key: str = ""
    committed: list[DiskOffer] = field(default_factory=list)
    """The last commits that were reported: inventories that nodes sent earlier do not know them."""
    committed_s: float | None = None
    commit_every_s: float | None = None
    """Time between the last two commits."""
    save_failures: int = 0
    """Failed saves since the last committed one."""
    slower: StepsSlower | None = None
    """The newest word that steps take longer than they should."""
    stop_requested: str = ""
    exit_code: int | None = None
    message: str = ""
    runs: list[str] = field(default_factory=list)
    """The calls of ``keepstep run`` that it was submitted by."""
    submitted_s: float = 0.0
    running_since_s: float | None = None
    finished_s: float | None = None
    incidents_kept: int = 0
    """Incidents of it in the World, closed ones too."""
    past: Past = field(default_factory=Past)


def uses(job: Job, resource: ResourceId, *, or_used: bool = False) -> bool:
    """Whether ranks of the job's present generation live on the resource (``or_used``: or did before they were fenced)."""
    if job.placement is None:
        return False
    node = node_of(resource)
    ranks = job.placement.nodes.get(node)
    if not ranks or not (job.launchers[node].running or or_used):
        return False
    slot = slot_of(resource)
    return slot is None or any(place.slot == slot for place in ranks)
