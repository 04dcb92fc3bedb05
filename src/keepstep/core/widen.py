"""What members of a domain have in common: many faults of one kind within a rack, a switch or a driver version are one. Pure.

Beside ``assess``, which asks with each new member. It holds nothing, and judges no signal.
"""

from collections.abc import Sequence

from keepstep.core import decision as d
from keepstep.core.catalog.row import Scope
from keepstep.core.explains import explains
from keepstep.core.fault import Fault, FaultState, Nature
from keepstep.core.ids import FaultId, NodeId
from keepstep.core.policy import Policy
from keepstep.core.root_cause import DOMAIN_MIN, shared_domain
from keepstep.core.world import World

_PART_OF_DOMAIN = (Scope.CARD, Scope.NIC, Scope.DISK, Scope.NODE, Scope.RACK, Scope.FABRIC)


def one_trouble(one: str, other: str) -> bool:
    """The same, or one of them what the other one looks like."""
    return one == other or explains(one, other) or explains(other, one)


def widened(
    nature: Nature, node: NodeId, fresh: FaultId | None, world: World, policy: Policy, now_s: float
) -> list[d.Change]:
    """The wider fault, where one more node makes a domain's members fail alike; nothing else.

    Faults of narrower domains count with their nodes: a switch that restarts is first seen as a rack's trouble.
    """
    if nature.scope not in _PART_OF_DOMAIN:
        return []
    alike = [
        fault
        for fault in (world.faults[x] for x in world.open_faults)
        if fault.state is FaultState.OPEN
        and (fault.node is not None or _domain_of(fault, world) is not None)
        and now_s - fault.opened_s <= policy.correlation.together_s
        and one_trouble(fault.nature.failure_class, nature.failure_class)
    ]
    nodes = [*dict.fromkeys([*(name for fault in alike for name in fault.nodes), node])]
    shared = _widest(
        nodes, nature.failure_class, [x for x in (_domain_of(f, world) for f in alike) if x is not None], world
    )
    if shared is None:
        return []
    kind, name = shared
    inside = [f for f in alike if all(world.domains.get(x, {}).get(kind) == name for x in f.nodes)]
    scope = Scope.FABRIC if kind == "switch" else Scope.RACK if kind in ("rack", "power") else Scope.FLEET
    hit = [x for x in nodes if world.domains.get(x, {}).get(kind) == name]
    new = (fresh,) if fresh is not None else ()
    wide = d.OpenFault(
        fault=FaultId(f"flt-{world.next_fault + len(new):04d}"),
        node=None,
        part=f"{kind}/{name}",
        nature=_with(nature, scope, f"the same on {len(hit)} nodes of {kind} {name}: {_plain(nature.text)}"),
        members=(*(fault.id for fault in inside), *new),
    )
    return [wide]


def _domain_of(fault: Fault, world: World) -> tuple[str, str] | None:
    """(kind, name) of the domain whose fault it is."""
    kind, _, name = fault.part.partition("/")
    return (kind, name) if fault.node is None and (kind, name) in world.members else None


def _widest(
    nodes: Sequence[NodeId], failure_class: str, known: Sequence[tuple[str, str]], world: World
) -> tuple[str, str] | None:
    """The widest domain that is new and of which no narrower one says nearly all: half of a power feed that is one rack is
    that rack, and two racks of one driver version are that version."""
    found: tuple[str, str] | None = None
    narrower = list(known)
    while True:
        shared = shared_domain(nodes, world.domains, world.members, failure_class, narrower)
        if shared is None or ("", "/".join(shared)) in world.fault_at:
            return found
        hit = [x for x in nodes if x in world.members[shared]]
        if any(sum(x not in world.members[domain] for x in hit) < DOMAIN_MIN for domain in narrower):
            return found
        found = shared
        narrower.append(shared)


def _plain(text: str) -> str:
    """Without what a narrower domain has put before it."""
    return text.rpartition(": ")[2] if text.startswith("the same on ") else text


def _with(nature: Nature, scope: Scope, text: str) -> Nature:
    return Nature(
        cause=nature.cause,
        failure_class=nature.failure_class,
        scope=scope,
        verdict=nature.verdict,
        urgency=nature.urgency,
        confidence=nature.confidence,
        text=text,
        resource_action="notify_owner",
        job_action=nature.job_action,
    )
