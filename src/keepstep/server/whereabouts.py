"""From a rank to the card and the rack that it lives on: one answer of the read side. Must not change anything."""

from msgspec import Struct

from keepstep.core.facts import Launched
from keepstep.core.ids import NodeId, device_resource
from keepstep.core.intents import Launch
from keepstep.core.job import Job
from keepstep.server.desk import Desk


class RankPlaceView(Struct, frozen=True, kw_only=True):
    rank: int
    pid: int
    """0 where its launcher has not told yet."""
    node: str
    device: str
    """The resource: ``device/<node>/<slot>``."""
    serial: str
    names: tuple[str, ...]
    """Every name of the card that its agent knows: PCI address, UUID, index."""
    domains: dict[str, str]
    """What its node shares with others: rack, switch, power, driver …"""
    faults: tuple[str, ...]
    """Open faults of the card or its node."""


class Whereabouts(Struct, frozen=True, kw_only=True):
    job: str
    generation: int
    ranks: tuple[RankPlaceView, ...]


def whereabouts(desk: Desk, job: str) -> Whereabouts:
    """Of the present generation; no ranks where none is placed."""
    found = desk.job(job)
    pids = _pids(desk, found)
    placed = found.placement.nodes if found.placement is not None else {}
    ranks = [_view(desk, node, place.rank, place.slot, pids) for node, places in placed.items() for place in places]
    return Whereabouts(job=found.id, generation=found.generation, ranks=tuple(sorted(ranks, key=lambda x: x.rank)))


def _pids(desk: Desk, job: Job) -> dict[int, int]:
    pids: dict[int, int] = {}
    for order in desk.history.orders.values():
        intent, outcome = order.intent, order.outcome
        if not (isinstance(intent, Launch) and isinstance(outcome, Launched)):
            continue
        if intent.job == job.id and intent.generation == job.generation:
            pids.update(outcome.pids)
    return pids


def _view(desk: Desk, node: NodeId, rank: int, slot: int, pids: dict[int, int]) -> RankPlaceView:
    world, device = desk.world, device_resource(node, slot)
    resource = world.resources.get(device)
    names = [name for (host, name), known in world.slots.items() if host == node and known == device]
    open_here = (world.faults[x] for x in world.open_faults)
    own = {world.parts.canonical(node, name) for name in names}
    return RankPlaceView(
        rank=rank,
        pid=pids.get(rank, 0),
        node=node,
        device=device,
        serial=resource.serial if resource is not None else "",
        names=tuple(names),
        domains=dict(world.domains.get(node, {})),
        faults=tuple(x.id for x in open_here if node in x.nodes and (not x.part or x.part in own or device in x.held)),
    )
