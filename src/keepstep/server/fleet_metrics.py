"""Figures of the fleet: resources by state, holds, breaker, agents, forecasts, hardware. Pure reading of a desk.

One scan of the resources a time, no scan of history. A node has series of its own only while it wants attention; of all others
only their distribution is told.
"""

from collections.abc import Iterable
from functools import lru_cache

from keepstep.core.ids import IncidentId, NodeId, ResourceId
from keepstep.core.isolate import breaker
from keepstep.core.policy import Policy
from keepstep.core.resource import Resource, ResourceState
from keepstep.core.world import World
from keepstep.review.estimates import nearest
from keepstep.server.desk import Desk
from keepstep.server.policy_file import read_policy
from keepstep.telemetry import Family

NODES_MAX = 200
"""Nodes with series of their own."""
DEVICES_MAX = 400
_NOBODYS = (ResourceState.NEW, ResourceState.RETIRED)
"""States in which nobody has to look."""
QUANTILES = (0.5, 0.9, 0.99, 1.0)
HORIZONS = ("1h", "6h", "24h")
HW_STATE: dict[ResourceState, str] = {
    ResourceState.SUSPECT: "degraded",
    ResourceState.QUARANTINED: "failed",
    ResourceState.DRAINING: "failed",
    ResourceState.FENCED: "failed",
    ResourceState.REMEDIATING: "failed",
    ResourceState.VALIDATING: "degraded",
    ResourceState.PROBATION: "degraded",
    ResourceState.REPAIR: "failed",
    ResourceState.LOST: "failed",
}
"""What the semantic conventions call it; states that are missing here are ``ok`` or not in use."""


def fleet(desk: Desk) -> Iterable[Family]:
    counts, wanting = _scan(desk.world)
    entities = Family(
        name="keepstep_entities",
        kind="gauge",
        labels=("kind", "state"),
        help="Nodes and devices by state of their life.",
    )
    for (kind, state), count in counts.items():
        entities.add(count, kind, state.value)
    yield entities
    yield _holds(desk.world, wanting)
    yield from _nodes(desk.world, wanting)
    yield from _hardware(desk, wanting)
    yield from _breaker(desk)
    yield from _agents(desk, wanting)
    yield from _health(desk)
    yield _faults(desk.world)


def _scan(world: World) -> tuple[dict[tuple[str, ResourceState], int], list[Resource]]:
    """How many of each kind are in each state, and those that somebody should look at."""
    nodes = dict.fromkeys(ResourceState, 0)
    devices = dict.fromkeys(ResourceState, 0)
    wanting: list[Resource] = []
    fine = ResourceState.IN_SERVICE
    fine_nodes = fine_devices = 0
    for resource in world.resources.values():
        is_device = resource.id[0] == "d"
        if resource.state is fine:  # nearly all are: hashing a state costs more than looking at it
            fine_devices += is_device
            fine_nodes += not is_device
            if resource.holds:
                wanting.append(resource)
            continue
        table = devices if is_device else nodes
        table[resource.state] += 1
        if resource.state not in _NOBODYS or resource.holds:
            wanting.append(resource)
    nodes[fine], devices[fine] = fine_nodes, fine_devices
    told = {("node", state): count for state, count in nodes.items()}
    return told | {("device", state): count for state, count in devices.items()}, wanting


def _holds(world: World, wanting: list[Resource]) -> Family:
    family = Family(
        name="keepstep_holds", kind="gauge", labels=("source", "class"),
        help="Holds that keep work off nodes and devices, by who placed them and the failure class.",
    )  # fmt: skip
    counts: dict[tuple[str, str], int] = {}
    for resource in wanting:
        for source in resource.holds:
            who, _, why = source.partition(":")
            key = (who, _class_of(world, why) if who == "keepstep" else "")
            counts[key] = counts.get(key, 0) + 1
    for key, count in counts.items():
        family.add(count, *key)
    return family


def _class_of(world: World, subject: str) -> str:
    """The failure class of a fault, or the cause of an incident."""
    fault = world.faults.get(subject)  # type: ignore[call-overload]
    if fault is not None:
        return str(fault.nature.failure_class)
    incident = world.incidents.get(IncidentId(subject))
    diagnosis = incident.attempt.diagnosis if incident is not None and incident.attempts else None
    return diagnosis.cause.value if diagnosis is not None else "unknown"


def _nodes(world: World, wanting: list[Resource]) -> Iterable[Family]:
    states = Family(
        name="keepstep_node_state", kind="gauge", labels=("node", "state"),
        help="1 for each node that is not simply in service, or that has such a device; the worst of their states.",
    )  # fmt: skip
    nodes: dict[NodeId, Resource] = {}
    for resource in wanting:
        known = nodes.get(resource.node)
        if known is None or (known.state is ResourceState.IN_SERVICE):
            nodes[resource.node] = resource
    for node, resource in list(nodes.items())[:NODES_MAX]:
        state = "held" if resource.state is ResourceState.IN_SERVICE else resource.state.value
        states.add(1, node, state)
    yield states
    left_out = Family(
        name="keepstep_nodes_untold", kind="gauge",
        help="Nodes that want attention and have no series of their own, because there are too many.",
    )  # fmt: skip
    left_out.add(max(0, len(nodes) - NODES_MAX))
    yield left_out


def _hardware(desk: Desk, wanting: list[Resource]) -> Iterable[Family]:
    status = Family(
        name="hw_status", kind="gauge", labels=("hw_id", "hw_type", "hw_state"),
        help="1 for the state (degraded, failed) of hardware that is not ok; OpenTelemetry's hw.status.",
    )  # fmt: skip
    for resource in wanting[:DEVICES_MAX]:
        state = HW_STATE.get(resource.state)
        if state is not None:
            status.add(1, _hw_id(resource), "gpu" if resource.id.startswith("device/") else "host", state)
    yield status
    errors = Family(
        name="hw_errors", kind="counter", labels=("hw_type", "error_type"),
        help="Faults of hardware and what it stands on, by kind of part and failure class; OpenTelemetry's hw.errors.",
    )  # fmt: skip
    for labels, count in desk.tallies.errors.items():
        errors.add(count, *labels)
    yield errors


def _hw_id(resource: Resource) -> str:
    return resource.serial or ResourceId(resource.id)


@lru_cache(maxsize=4)
def _policy(overrides: str) -> Policy:
    return read_policy(overrides)


def policy_of(desk: Desk) -> Policy:
    """As it was set in the journal; else the built-in one."""
    return _policy(desk.registry.policy.overrides if desk.registry.policy is not None else "")


def breaker_state(desk: Desk) -> tuple[str, float]:
    """Why no more may be isolated automatically (empty where it may), and how much of the limit is used."""
    policy = policy_of(desk)
    limit = max(policy.breaker.absolute, int(policy.breaker.fraction * len(desk.world.resources)))
    recent = 0
    for at_s, _ in reversed(desk.world.isolations):
        if desk.now_s - at_s >= policy.breaker.window_s:
            break
        recent += 1
    return breaker(desk.world, policy, 1, desk.now_s), recent / limit if limit else 0.0


def _breaker(desk: Desk) -> Iterable[Family]:
    why, used = breaker_state(desk)
    state = Family(
        name="keepstep_breaker_state", kind="gauge", labels=("domain",),
        help="1 while the breaker stops automatic isolation, 0 while it lets it through.",
    )  # fmt: skip
    state.add(1 if why else 0, "fleet")
    yield state
    utilization = Family(
        name="keepstep_breaker_utilization", kind="gauge", labels=("domain",),
        help="Recent isolations over the breaker's limit.",
    )  # fmt: skip
    utilization.add(used, "fleet")
    yield utilization
    isolations = Family(name="keepstep_isolations", kind="counter", help="Nodes and devices that were quarantined.")
    isolations.add(desk.tallies.isolations)
    yield isolations


def _agents(desk: Desk, wanting: list[Resource]) -> Iterable[Family]:
    known = desk.vitals.agents if desk.vitals is not None else {}
    agents = Family(name="keepstep_agents", kind="gauge", labels=("state",), help="Agents of nodes: heard, or silent.")
    silent = [agent.node for agent in desk.world.agents.values() if agent.silent_since_s is not None]
    agents.add(len(desk.world.agents) - len(silent), "heard")
    agents.add(len(silent), "silent")
    yield agents
    spread = Family(
        name="keepstep_agent_last_seen_seconds", kind="gauge", labels=("quantile",),
        help="Time since an agent was heard, over all agents; quantile 1 is the longest.",
    )  # fmt: skip
    for quantile, value in quantiles([desk.now_s - agent.heard_s for agent in known.values()]):
        spread.add(value, quantile)
    yield spread
    each = Family(
        name="keepstep_node_agent_last_seen_seconds", kind="gauge", labels=("node",),
        help="Time since the agent was heard, of nodes that want attention or whose agent is silent.",
    )  # fmt: skip
    for node in list(dict.fromkeys([*silent, *(resource.node for resource in wanting)]))[:NODES_MAX]:
        if (agent := known.get(node)) is not None:
            each.add(desk.now_s - agent.heard_s, node)
    yield each


def _health(desk: Desk) -> Iterable[Family]:
    known = desk.vitals.health if desk.vitals is not None else {}
    spread = Family(
        name="keepstep_health_score", kind="gauge", labels=("horizon", "quantile"),
        help="Forecast probability that a node fails within the horizon, over all nodes; quantile 1 is the riskiest.",
    )  # fmt: skip
    for index, horizon in enumerate(HORIZONS):
        for quantile, value in quantiles([report.forecast.within[index] for report in known.values()]):
            spread.add(value, horizon, quantile)
    yield spread
    each = Family(
        name="keepstep_node_health_score", kind="gauge", labels=("node", "horizon"),
        help="The same of each of the 20 riskiest nodes.",
    )  # fmt: skip
    riskiest = sorted(known.items(), key=lambda item: (-item[1].forecast.within[2], item[0]))[:20]
    for node, report in riskiest:
        for index, horizon in enumerate(HORIZONS):
            each.add(report.forecast.within[index], node, horizon)
    yield each


def _faults(world: World) -> Family:
    family = Family(
        name="keepstep_faults_open", kind="gauge", labels=("class", "scope"),
        help="Root causes on resources and domains that are open.",
    )  # fmt: skip
    counts: dict[tuple[str, str], int] = {}
    for fault in world.open_faults:
        nature = world.faults[fault].nature
        key = (nature.failure_class, nature.scope.value)
        counts[key] = counts.get(key, 0) + 1
    for key, count in counts.items():
        family.add(count, *key)
    return family


def quantiles(values: list[float]) -> list[tuple[str, float]]:
    """(quantile, value) of QUANTILES; empty where there is nothing."""
    values.sort()
    return [(f"{q:g}", nearest(values, q)) for q in QUANTILES] if values else []
