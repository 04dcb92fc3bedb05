"""The read side of faults and nodes. Beside ``queries``, which has the list of questions; must not change anything."""

from collections.abc import Collection
from functools import partial

import msgspec

from keepstep.core import silence
from keepstep.core.fault import Fault, FaultState
from keepstep.core.ids import FaultId, NodeId
from keepstep.server import fault_views as views
from keepstep.server.desk import Desk, UnknownSubject, action_view
from keepstep.server.paging import LIMIT_MAX, Closed, page, page_of_all


def faults(desk: Desk, closed: bool = False, q: str = "", cursor: str = "", limit: int = LIMIT_MAX) -> views.Faults:
    """Open ones; ``closed`` includes those that are over or that a wider one explains. ``q``: part of id or resource."""
    wanted = (FaultState.OPEN, FaultState.GROUPED) if closed else (FaultState.OPEN,)
    fitting = [x for x in reversed(desk.world.faults.values()) if x.state in wanted and _fits(x, q)]
    over = Closed(kind="fault", where={"q": q} if q else {}) if closed else None
    found = page_of_all(
        [partial(_view, item) for item in fitting],
        desk.archive, over, lambda record: partial(_over, desk, record.id), cursor=cursor, limit=limit,
    )  # fmt: skip
    made = tuple(make() for make in found.items)
    return views.Faults(faults=made, next=found.next, total=found.total, note=desk.note_of(found.missing))


def _fits(item: Fault, q: str) -> bool:
    return not q or q.lower() in f"{item.id} {item.resource}".lower()


def _over(desk: Desk, id: str) -> views.FaultView:
    return fault(desk, id).fault


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


def nodes(desk: Desk, q: str = "", cursor: str = "", limit: int = LIMIT_MAX) -> views.Nodes:
    """Every node that an agent or a launcher ever spoke for. ``q``: part of the name."""
    known: Collection[NodeId] = desk.world.by_node
    if q:
        known = [node for node in known if q.lower() in node.lower()]
    found = page(known, len(known), cursor, limit)
    return views.Nodes(nodes=tuple(_node(desk, node) for node in found.items), next=found.next, total=found.total)


def node(desk: Desk, node: str) -> views.NodeView:
    if NodeId(node) not in desk.world.by_node:
        raise UnknownSubject(f"there is no node {node!r}; see `keepstep nodes`")
    return _node(desk, NodeId(node))


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
