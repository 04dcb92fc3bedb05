"""The World: everything that the journal says, folded. Owns the shape and the look-ups; apply.py and fold.py change it.

Changed in place (a copy of a large fleet costs milliseconds an event). Iteration is over dicts, in insertion order, so that
two processes decide alike; no sets of strings.
"""

from collections import deque

from msgspec import Struct, field

from keepstep.core.drill import Drill
from keepstep.core.facts import BmcSeen
from keepstep.core.fault import Fault
from keepstep.core.ids import (
    DrillId,
    FaultId,
    IncidentId,
    JobId,
    NodeId,
    ResourceId,
    Session,
    device_resource,
    node_resource,
    slot_of,
)
from keepstep.core.incident import Incident, Seen
from keepstep.core.intents import Fence, Intent, Launch
from keepstep.core.job import TERMINAL, Job, Launcher, RetiredJob
from keepstep.core.observation import Observation
from keepstep.core.parts import Parts
from keepstep.core.resource import Resource
from keepstep.core.signal import OwnAction


class Pending(Struct, kw_only=True):
    """An order without an answer."""

    number: int
    intent: Intent
    decided_s: float
    incident: IncidentId | None
    overdue: bool = False


class Agent(Struct, kw_only=True):
    """What is known of a node's agent."""

    node: NodeId
    session: Session
    boot_id: str
    silent_since_s: float | None = None
    coverage: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Source -> (state, detail): what nobody looks at does not count as well."""
    older: tuple[Session, ...] = ()


class BmcState(Struct, kw_only=True):
    """The newest word of a node's BMC, and when it came."""

    seen: BmcSeen
    at_s: float


class World(Struct, kw_only=True):
    seq: int = 0
    """Entries folded so far."""
    next_order: int = 1
    next_incident: int = 1
    jobs: dict[JobId, Job] = field(default_factory=dict)
    resources: dict[ResourceId, Resource] = field(default_factory=dict)
    by_node: dict[NodeId, list[ResourceId]] = field(default_factory=dict)
    incidents: dict[IncidentId, Incident] = field(default_factory=dict)
    orders: dict[int, Pending] = field(default_factory=dict)
    inbox: deque[Seen] = field(default_factory=deque)
    """Symptoms that no incident has taken yet."""
    signals: deque[Seen] = field(default_factory=deque)
    """Hardware signals whose verdict on the resource is still to be taken, whether or not a job runs there."""
    deferred: deque[tuple[float, Seen]] = field(default_factory=deque)
    """(when they are judged again, signals) whose verdict waits for what may take them back."""
    reconsidered: dict[int, None] = field(default_factory=dict)
    """Entries of signals that were deferred and stand in ``signals`` again."""
    open_incidents: dict[IncidentId, None] = field(default_factory=dict)
    live_jobs: dict[JobId, None] = field(default_factory=dict)
    busy_resources: dict[ResourceId, None] = field(default_factory=dict)
    """Resources that are neither in service nor out for good: the ones that want attention."""
    lost_resources: dict[ResourceId, None] = field(default_factory=dict)
    order_queue: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    """Intent kind -> (decided, number), oldest first: one time-out per kind makes this a heap for free."""
    powering_off: dict[NodeId, int] = field(default_factory=dict)
    """Node -> the order to power it off that has no answer yet."""
    approvals: dict[str, Seen] = field(default_factory=dict)
    """Subject -> the newest word of a person about it."""
    isolations: deque[tuple[float, ResourceId]] = field(default_factory=deque)
    """Recent quarantines, for the breaker."""
    next_fault: int = 1
    faults: dict[FaultId, Fault] = field(default_factory=dict)
    open_faults: dict[FaultId, None] = field(default_factory=dict)
    fault_at: dict[tuple[str, str], FaultId] = field(default_factory=dict)
    """(node or "", part) -> the open fault there."""
    next_drill: int = 1
    drills: dict[DrillId, Drill] = field(default_factory=dict)
    """Open ones, and the last of those that are over."""
    open_drills: dict[DrillId, None] = field(default_factory=dict)
    recent: dict[NodeId, deque[Observation]] = field(default_factory=dict)
    """Signals of each node, oldest first, bounded: what combination rules look at."""
    parts: Parts = field(default_factory=Parts)
    """Which names are one part."""
    slots: dict[tuple[NodeId, str], ResourceId] = field(default_factory=dict)
    """(node, name of a part) -> the device that ranks are placed on."""
    agents: dict[NodeId, Agent] = field(default_factory=dict)
    bmcs: dict[NodeId, BmcState] = field(default_factory=dict)
    powered_off: dict[NodeId, None] = field(default_factory=dict)
    """Nodes whose reachable BMC said Off last."""
    domains: dict[NodeId, dict[str, str]] = field(default_factory=dict)
    """Node -> kind of domain -> its name."""
    members: dict[tuple[str, str], dict[NodeId, None]] = field(default_factory=dict)
    """(kind, name) of a domain -> its nodes."""
    own_actions: deque[OwnAction] = field(default_factory=deque)
    """What we did lately that prints fatal-looking codes."""
    closed_incidents: dict[IncidentId, float] = field(default_factory=dict)
    """When they were closed, oldest first: the ones that will leave."""
    closed_faults: dict[FaultId, float] = field(default_factory=dict)
    ended_jobs: dict[JobId, float] = field(default_factory=dict)
    retired_jobs: dict[JobId, RetiredJob] = field(default_factory=dict)
    retired_s: float = -1e18
    """When something last left."""
    stale: int = 0
    """Facts of an older generation, session or order: recorded, never acted on."""
    server: str = ""

    def job_of(self, incident: Incident) -> Job:
        return self.jobs[incident.job]

    def leading(self, job: Job) -> Incident | None:
        """The incident that leads the job, if any."""
        return self.incidents[job.incident] if job.incident is not None else None

    def pending_for(self, incident: IncidentId) -> list[Pending]:
        return [pending for pending in self.orders.values() if pending.incident == incident]

    def resources_of(self, node: NodeId) -> list[Resource]:
        """The node itself and its devices."""
        return [self.resources[resource] for resource in self.by_node.get(node, [])]

    def orders_on(self, resource: ResourceId) -> list[Pending]:
        """Unanswered orders that act on a resource."""
        return [p for p in self.orders.values() if getattr(p.intent, "resource", None) == resource]

    def hearing_agent(self, node: NodeId) -> Agent | None:
        """The agent of a node, while it is heard."""
        agent = self.agents.get(node)
        return agent if agent is not None and agent.silent_since_s is None else None

    def node_usable(self, node: NodeId) -> bool:
        """In service, held by nobody, and not about to lose its power: such an order cannot be taken back."""
        resource = self.resources.get(node_resource(node))
        if resource is None or not resource.allocatable:
            return False
        return node not in self.powering_off

    def takes_work(self, resource: Resource) -> bool:
        """Whether new work may be placed on it: a device takes none while its node does not."""
        is_node = slot_of(resource.id) is None
        return resource.allocatable and (is_node or self.node_usable(resource.node))

    def free_slots(self, launcher: Launcher) -> list[int]:
        """Slots of a launcher's node that may take work."""
        slots = []
        for slot in launcher.slots:
            device = self.resources.get(device_resource(launcher.node, slot))
            if device is not None and device.allocatable:
                slots.append(slot)
        return slots

    def fence_pending(self, incident: IncidentId, generation: int) -> dict[NodeId, Pending]:
        """Unanswered fences of a generation; those of an earlier attempt that never were answered do not count."""
        found = self.pending_for(incident)
        return {p.intent.node: p for p in found if isinstance(p.intent, Fence) and p.intent.generation == generation}

    def launch_pending(self, incident: IncidentId, generation: int) -> dict[NodeId, Pending]:
        """Unanswered launches of a generation."""
        found = self.pending_for(incident)
        return {p.intent.node: p for p in found if isinstance(p.intent, Launch) and p.intent.generation == generation}


def live(job: Job) -> bool:
    return job.state not in TERMINAL
