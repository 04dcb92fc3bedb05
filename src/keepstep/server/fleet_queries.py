"""The read side of the fleet: the map, the capacity, a node, a device, and what bears a name. Must not change anything.

The map is told in columns of letters and numbers, a thousand nodes at a time: a fleet of 10,000 nodes is some hundred
kilobytes, and no answer takes long.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from keepstep.core import silence
from keepstep.core.fault import Fault
from keepstep.core.health.report import explain
from keepstep.core.ids import IncidentId, NodeId, ResourceId, node_resource, slot_of
from keepstep.core.resource import Resource, ResourceState
from keepstep.server import fleet_views as views
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.views import HoldView

PART_NODES = 1000
PAGE_LINES = 100
FINDS_MAX = 50

STATES = tuple(ResourceState)
_LETTER = {state.value: chr(ord("a") + place) for place, state in enumerate(STATES)}
"""By its word: to hash a state takes longer than all the rest of a cell."""


def fleet_map(desk: Desk, after: int = 0, limit: int = PART_NODES, nodes: tuple[str, ...] = ()) -> views.FleetMap:
    """Nodes from place ``after`` on, in the order in which they became known; or the ``nodes`` that are named, as far as
    they exist."""
    world = desk.world
    size = max(1, min(limit, PART_NODES))
    named = [NodeId(name) for name in nodes[:size] if name in world.by_node]
    chosen = named if nodes else list(islice(world.by_node, after, after + size))
    racks: dict[str, int] = {}
    rack: list[int] = []
    own: list[str] = []
    devices: list[str] = []
    for node in chosen:
        name = rack_of(desk, node)
        rack.append(racks.setdefault(name, len(racks)) if name else -1)
        letters = _letters(world.resources[resource] for resource in world.by_node[node])
        own.append(letters[0])
        devices.append(letters[1])
    ends = after + len(chosen)
    return views.FleetMap(
        entry=world.seq,
        total=len(world.by_node),
        next=0 if nodes or ends >= len(world.by_node) else ends,
        states=tuple(state.value for state in STATES),
        racks=tuple(racks),
        names=tuple(chosen),
        rack=tuple(rack),
        node="".join(own),
        devices=tuple(devices),
        score=tuple(_score(desk, node) for node in chosen),
    )


def _letters(resources: Iterable[Resource]) -> tuple[str, str]:
    own, devices = _LETTER[ResourceState.NEW.value], ""
    for item in resources:
        letter = _LETTER[item.state._value_]
        if item.holds:
            letter = letter.upper()
        if item.id[0] == "n":
            own = letter
        else:
            devices += letter
    return own, devices


def _score(desk: Desk, node: NodeId) -> int:
    known = desk.vitals.health.get(node) if desk.vitals is not None else None
    return round(known.index) if known is not None else -1


def rack_of(desk: Desk, node: NodeId) -> str:
    """As its agent says, else as a launcher did; empty where nobody does."""
    told = desk.world.domains.get(node, {}).get("rack", "")
    if told:
        return told
    for job in desk.world.live_jobs:
        launcher = desk.world.jobs[job].launchers.get(node)
        if launcher is not None and launcher.rack:
            return launcher.rack
    return ""


def capacity(desk: Desk) -> views.Capacity:
    return desk.capacity.of(desk.world)


def fleet_list(
    desk: Desk, state: str = "", node: str = "", q: str = "", after: int = 0, limit: int = PAGE_LINES
) -> views.ResourceLines:
    """Nodes and devices in the order in which they became known, from place ``after`` on. ``state``: one of theirs, or
    ``attention`` for whatever is not simply in service; ``q``: part of an id, a serial number or a model."""
    if state and state != "attention" and state not in [known.value for known in STATES]:
        raise ValueError(f"there is no state {state!r}; there are {', '.join(s.value for s in STATES)}, attention")
    lines: list[views.ResourceLine] = []
    wanted, place = q.lower(), after
    for item in islice(_of(desk, node), after, None):
        if len(lines) == limit:
            return views.ResourceLines(resources=tuple(lines), next=place)
        place += 1
        if _fits(item, state, wanted):
            lines.append(line_of(desk, item))
    return views.ResourceLines(resources=tuple(lines), next=0)


def _of(desk: Desk, node: str) -> Iterable[Resource]:
    return desk.world.resources_of(NodeId(node)) if node else desk.world.resources.values()


def _fits(item: Resource, state: str, wanted: str) -> bool:
    if state == "attention" and item.state is ResourceState.IN_SERVICE and not item.holds:
        return False
    if state not in ("", "attention") and item.state._value_ != state:
        return False
    return not wanted or wanted in f"{item.id} {item.serial} {item.model}".lower()


def line_of(desk: Desk, item: Resource) -> views.ResourceLine:
    return views.ResourceLine(
        id=item.id,
        node=item.node,
        rack=rack_of(desk, item.node),
        slot=slot_of(item.id),
        state=item.state.value,
        since_s=item.entered_s,
        allocatable=desk.world.takes_work(item),
        serial=item.serial,
        model=item.model,
        holds=tuple(HoldView(source=h.source, reason=h.reason, since_s=h.since_s) for h in item.holds.values()),
        failures=len(item.failures),
        incident=item.incident or "",
    )


# ---- one node, one device


def fleet_node(desk: Desk, node: str) -> views.NodeDetail:
    world, name = desk.world, NodeId(node)
    if node_resource(name) not in world.resources:
        raise UnknownSubject(f"there is no node {node!r}; look for it on the fleet's list")
    means = silence.of_node(name, world)
    agent, bmc = world.agents.get(name), world.bmcs.get(name)
    health = desk.vitals.health.get(name) if desk.vitals is not None else None
    items = world.resources_of(name)
    return views.NodeDetail(
        node=line_of(desk, world.resources[node_resource(name)]),
        devices=tuple(line_of(desk, item) for item in items if slot_of(item.id) is not None),
        domains=dict(world.domains.get(name, {})),
        means=means.name,
        means_text=means.text,
        agent="none" if agent is None else "heard" if agent.silent_since_s is None else "silent",
        power="" if bmc is None else bmc.seen.power if bmc.seen.reachable else "dark",
        bmc_health=bmc.seen.health if bmc is not None else "",
        coverage=tuple((s, state, detail) for s, (state, detail) in agent.coverage.items()) if agent else (),
        faults=tuple(_fault(x) for x in _open_on(desk, name)),
        runs=tuple(_runs(desk, name, None)),
        index=health.index if health is not None else None,
        within=health.forecast.within if health is not None else None,
        explained=tuple(explain(health)) if health is not None else (),
    )


def fleet_device(desk: Desk, id: str) -> views.DeviceDetail:
    world = desk.world
    item = world.resources.get(ResourceId(id))
    if item is None or slot_of(item.id) is None:
        raise UnknownSubject(f"there is no device {id!r}; devices are called device/NODE/SLOT")
    names = [name for (node, name), known in world.slots.items() if known == item.id and node == item.node]
    own = {world.parts.canonical(item.node, name) for name in names}
    return views.DeviceDetail(
        device=line_of(desk, item),
        firmware=item.firmware,
        boot_id=item.boot_id,
        names=tuple(names),
        gated=item.gated,
        node_takes_work=world.node_usable(item.node),
        gate_verdict=item.gate_verdict,
        gate_tries=item.gate_tries,
        gate_passed_s=item.gate_passed_s if item.gate_passed_s >= 0 else None,
        resets=item.resets,
        failures_s=tuple(item.failures),
        faults=tuple(_fault(x) for x in _open_on(desk, item.node) if x.part in own or item.id in x.held),
        runs=tuple(_runs(desk, item.node, slot_of(item.id))),
    )


def _open_on(desk: Desk, node: NodeId) -> Iterator[Fault]:
    return (fault for fault in map(desk.world.faults.__getitem__, desk.world.open_faults) if node in fault.nodes)


def _fault(item: Fault) -> views.OpenFault:
    nature = item.nature
    return views.OpenFault(
        id=item.id, part=item.resource, failure_class=nature.failure_class, cause=nature.cause.value,
        verdict=nature.verdict.value, text=nature.text, confidence=nature.confidence, count=item.count,
        opened_s=item.opened_s, last_s=item.last_s,
    )  # fmt: skip


def _runs(desk: Desk, node: NodeId, slot: int | None) -> Iterator[views.RunsHere]:
    for id in desk.world.live_jobs:
        job = desk.world.jobs[id]
        places = job.placement.nodes.get(node, ()) if job.placement is not None else ()
        ranks = tuple(place.rank for place in places if slot is None or place.slot == slot)
        if ranks:
            yield views.RunsHere(job=desk.job_name(id), ranks=ranks, generation=job.generation)


# ---- by name


def find(desk: Desk, q: str) -> views.Finds:
    """Whatever has ``q`` in its name or its serial number; exact ones first."""
    wanted = q.strip().lower()
    if not wanted:
        return views.Finds(finds=(), more=False)
    found = sorted(islice(_finds(desk, wanted), FINDS_MAX + 1), key=lambda x: wanted not in _exact(x))
    return views.Finds(finds=tuple(found[:FINDS_MAX]), more=len(found) > FINDS_MAX)


def _exact(found: views.Found) -> tuple[str, ...]:
    return (found.id.lower(), found.id.lower().partition("/")[2], *found.about.lower().split())


def _finds(desk: Desk, wanted: str) -> Iterator[views.Found]:
    world = desk.world
    for job in world.jobs.values():
        if wanted in job.id.lower() and desk.sees(job.id):
            yield views.Found(kind="job", id=job.id, about=job.state.value)
    yield from _incident(desk, wanted)
    for fault in map(world.faults.__getitem__, world.open_faults):
        if wanted == fault.id.lower():
            yield views.Found(kind="fault", id=fault.id, about=fault.resource)
    for item in world.resources.values():
        if wanted in f"{item.id} {item.serial}".lower():
            kind = "node" if slot_of(item.id) is None else "device"
            yield views.Found(kind=kind, id=item.id, about=" ".join(filter(None, (item.serial, item.model))))


def _incident(desk: Desk, id: str) -> Iterator[views.Found]:
    """By the whole id: those that are over are many."""
    known = desk.world.incidents.get(IncidentId(id))
    if known is not None and desk.sees(known.job):
        yield views.Found(kind="incident", id=id, about=known.state.value)
    elif known is None and desk.archived("incident", id) is not None:
        yield views.Found(kind="incident", id=id, about="closed")
