"""The read side of faults and nodes. Beside ``queries``, which has the list of questions; must not change anything."""

import msgspec

from keepstep.core import silence
from keepstep.core.fault import Fault, FaultState
from keepstep.core.ids import FaultId, NodeId
from keepstep.server import fault_views as views
from keepstep.server.desk import Desk, UnknownSubject, action_view


def faults(desk: Desk, closed: bool = False) -> views.Faults:
    """Open ones, newest last; ``closed`` includes those that are over or that a wider one explains."""
    found = [x for x in desk.world.faults.values() if closed or x.state is FaultState.OPEN]
    return views.Faults(faults=tuple(map(_view, found)))


def fault(desk: Desk, id: str) -> views.FaultReport:
    found = desk.world.faults.get(FaultId(id))
    kept = desk.archive.get("fault", id) if found is None else None
    if kept is not None:
        return msgspec.msgpack.decode(kept, type=views.FaultReport)
    if found is None:
        known = ", ".join(list(desk.world.faults)[-5:]) or "none"
        raise UnknownSubject(f"there is no fault {id!r}; the newest are: {known}")
    return fault_report(desk, found)


def fault_report(desk: Desk, found: Fault) -> views.FaultReport:
    steps = desk.history.steps.get(found.id, [])
    return views.FaultReport(
        fault=_view(found),
        entries=tuple(found.entries),
        actions=tuple(action_view(desk, found.opened_s, step) for step in steps),
    )


def _view(item: Fault) -> views.FaultView:
    nature = item.nature
    return views.FaultView(
        id=item.id,
        state=item.state.value,
        resource=item.resource,
        cause=nature.cause.value,
        failure_class=nature.failure_class,
        scope=nature.scope.value,
        verdict=nature.verdict.value,
        urgency=nature.urgency.value,
        confidence=nature.confidence,
        text=nature.text,
        resource_action=nature.resource_action,
        job_action=nature.job_action,
        opened_s=item.opened_s,
        last_s=item.last_s,
        closed_s=item.closed_s,
        outcome=item.outcome,
        count=item.count,
        signals=tuple(item.signals),
        nodes=tuple(item.nodes),
        held=tuple(item.held),
        incidents=tuple(item.incidents),
        group=item.group,
        members=tuple(item.members),
    )


def nodes(desk: Desk) -> views.Nodes:
    """Every node that an agent or a launcher ever spoke for."""
    return views.Nodes(nodes=tuple(_node(desk, node) for node in desk.world.by_node))


def _node(desk: Desk, node: NodeId) -> views.NodeView:
    world = desk.world
    agent, bmc = world.agents.get(node), world.bmcs.get(node)
    means = silence.of_node(node, world)
    power = "" if bmc is None else bmc.seen.power if bmc.seen.reachable else "dark"
    open_here = [f.id for f in (world.faults[x] for x in world.open_faults) if node in f.nodes]
    coverage = agent.coverage if agent is not None else {}
    return views.NodeView(
        node=node,
        means=means.name,
        text=means.text,
        agent="none" if agent is None else "heard" if agent.silent_since_s is None else "silent",
        power=power,
        domains=dict(world.domains.get(node, {})),
        coverage=tuple(
            views.CoverageView(source=source, state=state, detail=detail)
            for source, (state, detail) in coverage.items()
        ),
        faults=tuple(open_here),
    )
