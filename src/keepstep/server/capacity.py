"""Nodes and devices by state, and the spares: counted once for all who look. Must not change anything.

A count looks at every resource, some milliseconds for a fleet of 10,000 nodes. It depends on nothing but the World, so it is
good until the journal grows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from keepstep.core.ids import NodeId
from keepstep.core.resource import Resource, ResourceState
from keepstep.core.world import World
from keepstep.server.fleet_views import Capacity, StateCount


class Capacities:
    """The newest count."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._seq = -1
        self._counted = Capacity(states=(), nodes=0, devices=0, held=0, spares=0)

    def of(self, world: World) -> Capacity:
        if world is not self._world or world.seq != self._seq:
            self._counted = _count(world)
            self._world, self._seq = world, world.seq
        return self._counted


def _count(world: World) -> Capacity:
    nodes, devices, held = _counts(world.resources.values())
    return Capacity(
        states=tuple(
            StateCount(state=state.value, nodes=nodes[state.value], devices=devices[state.value])
            for state in ResourceState
            if nodes[state.value] or devices[state.value]
        ),
        nodes=sum(nodes.values()),
        devices=sum(devices.values()),
        held=held,
        spares=sum(1 for _ in _spares(world)),
    )


def _counts(resources: Iterable[Resource]) -> tuple[Counter[str], Counter[str], int]:
    """Nodes and devices by state, and how many a person holds. Nearly all are in service: those are counted by the way."""
    nodes: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    fine, held, fine_nodes, fine_devices = ResourceState.IN_SERVICE, 0, 0, 0
    for item in resources:
        if item.holds and any(source.startswith("person:") for source in item.holds):
            held += 1
        is_node = item.id[0] == "n"
        if item.state is not fine:
            (nodes if is_node else devices)[item.state._value_] += 1
        elif is_node:
            fine_nodes += 1
        else:
            fine_devices += 1
    nodes[fine.value], devices[fine.value] = fine_nodes, fine_devices
    return nodes, devices, held


def _spares(world: World) -> Iterator[NodeId]:
    """Each once, however many jobs it stands by for."""
    placed = {n for j in world.live_jobs if (p := world.jobs[j].placement) is not None for n in p.nodes}
    known: dict[NodeId, None] = {}
    for job in world.live_jobs:
        for launcher in world.jobs[job].launchers.values():
            if launcher.reachable and not launcher.left and not launcher.gone and launcher.node not in placed:
                known[launcher.node] = None
    return (node for node in known if world.node_usable(node))
