"""The read side of resources and holds: nodes and devices one by one. Beside ``queries``; must not change anything."""

from collections.abc import Collection

from keepstep.core.ids import NodeId, ResourceId
from keepstep.core.resource import Hold, Resource, ResourceState
from keepstep.server import views
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.paging import LIMIT_MAX, page


def resources(
    desk: Desk, node: str = "", state: str = "", q: str = "", cursor: str = "", limit: int = LIMIT_MAX
) -> views.Resources:
    """In the order in which they were first seen. ``q``: part of the id or of the serial number."""
    known: Collection[Resource] = desk.world.resources.values()
    if node:
        known = desk.world.resources_of(NodeId(node))
    if state:
        wanted = _state(state)
        known = [item for item in known if item.state is wanted]
    if q:
        word = q.lower()
        known = [item for item in known if word in item.id or word in item.serial.lower() or word in item.id.lower()]
    found = page(known, len(known), cursor, limit)
    return views.Resources(
        resources=tuple(_view(desk, item) for item in found.items), next=found.next, total=found.total
    )


def _state(text: str) -> ResourceState:
    try:
        return ResourceState(text)
    except ValueError:
        raise ValueError(f"there is no state {text!r}; there are {', '.join(s.value for s in ResourceState)}") from None


def resource(desk: Desk, id: str) -> views.ResourceView:
    found = desk.world.resources.get(ResourceId(id))
    if found is None:
        raise UnknownSubject(f"there is no resource {id!r}; see `keepstep resources`")
    return _view(desk, found)


def holds(desk: Desk, source: str = "", cursor: str = "", limit: int = LIMIT_MAX) -> views.Holds:
    """Every hold on every resource. ``source``: only those whose source begins so (``person:``)."""
    held = [item for item in desk.world.resources.values() if item.holds]
    lines = [(item, hold) for item in held for hold in item.holds.values() if hold.source.startswith(source)]
    found = page(lines, len(lines), cursor, limit)
    return views.Holds(holds=tuple(map(_hold_line, found.items)), next=found.next, total=found.total)


def _hold_line(held: tuple[Resource, Hold]) -> views.HoldLine:
    item, hold = held
    return views.HoldLine(
        resource=item.id,
        node=item.node,
        state=item.state.value,
        source=hold.source,
        reason=hold.reason,
        since_s=hold.since_s,
    )


def _view(desk: Desk, item: Resource) -> views.ResourceView:
    return views.ResourceView(
        id=item.id,
        node=item.node,
        state=item.state.value,
        allocatable=desk.world.takes_work(item),
        serial=item.serial,
        holds=tuple(
            views.HoldView(source=hold.source, reason=hold.reason, since_s=hold.since_s) for hold in item.holds.values()
        ),
        failures=len(item.failures),
        incident=item.incident,
        model=item.model,
        firmware=item.firmware,
    )
