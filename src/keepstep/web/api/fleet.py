"""Routes of the fleet: nodes, devices, holds, forecasts; and holding a resource."""

from litestar import get, post

from keepstep.core.access import Action
from keepstep.core.ids import NodeId, device_resource, node_resource
from keepstep.server import fault_views, views
from keepstep.server.health_views import Health
from keepstep.server.http_views import Reason
from keepstep.server.journal_views import Entries
from keepstep.web.api.asking import PAGE, Asked, CursorText, Key, Limit, Name, Slot, StateWord, Word, act, ask
from keepstep.web.api.incidents import Before
from keepstep.web.api.jobs import OptionalReason
from keepstep.wire.requests import Accepted, Hold, Unhold

NODE = "/resources/node/{node:str}"
DEVICE = "/resources/device/{node:str}/{slot:int}"


@get("/nodes", operation_id="listNodes", tags=["fleet"])
async def list_nodes(request: Asked, q: Word = "", cursor: CursorText = "", limit: Limit = PAGE) -> fault_views.Nodes:
    """Nodes: who hears them and what that means, what their agents can see, open faults."""
    return await ask(request, "nodes", fault_views.Nodes, q=q, cursor=cursor, limit=limit)


@get("/nodes/{node:str}", operation_id="getNode", tags=["fleet"])
async def get_node(request: Asked, node: Name) -> fault_views.NodeView:
    """One node."""
    return await ask(request, "node", fault_views.NodeView, node=node)


@get("/resources", operation_id="listResources", tags=["fleet"])
async def list_resources(
    request: Asked,
    node: Word = "",
    in_state: StateWord = "",
    q: Word = "",
    cursor: CursorText = "",
    limit: Limit = PAGE,
) -> views.Resources:
    """Nodes and devices as resources: state, holds, serial numbers. `q`: part of the id or of the serial number."""
    return await ask(request, "resources", views.Resources, node=node, state=in_state, q=q, cursor=cursor, limit=limit)


@get(NODE, operation_id="getNodeResource", tags=["fleet"])
async def get_node_resource(request: Asked, node: Name) -> views.ResourceView:
    """A node as a resource."""
    return await _resource(request, node)


@get(DEVICE, operation_id="getDevice", tags=["fleet"])
async def get_device(request: Asked, node: Name, slot: Slot) -> views.ResourceView:
    """A device."""
    return await _resource(request, node, slot)


@get(
    DEVICE + "/journal", operation_id="getDeviceJournal", tags=["fleet", "journal"], opt={"action": Action.READ_JOURNAL}
)
async def get_device_journal(
    request: Asked, node: Name, slot: Slot, before: Before = None, limit: Limit = PAGE
) -> Entries:
    """What the journal has about a slot, and about the device that sits in it wherever it sat before; newest first."""
    found = await _resource(request, node, slot)
    about = [found.id, *([found.serial] if found.serial else [])]
    return await ask(request, "journal", Entries, about=about, before=before, limit=limit)


@get(NODE + "/journal", operation_id="getNodeJournal", tags=["fleet", "journal"], opt={"action": Action.READ_JOURNAL})
async def get_node_journal(request: Asked, node: Name, before: Before = None, limit: Limit = PAGE) -> Entries:
    """What the journal has about a node and its devices, newest first."""
    return await ask(
        request, "journal", Entries, about=[(await _resource(request, node)).id], before=before, limit=limit
    )


@get("/holds", operation_id="listHolds", tags=["fleet"])
async def list_holds(request: Asked, source: Word = "", cursor: CursorText = "", limit: Limit = PAGE) -> views.Holds:
    """Every hold on every resource. `source`: only those whose source begins so, as `person:`."""
    return await ask(request, "holds", views.Holds, source=source, cursor=cursor, limit=limit)


@get("/health", operation_id="getHealth", tags=["fleet"])
async def get_health(request: Asked, node: Word = "") -> Health:
    """The forecast of each node whose agent tells one, the riskiest first. It is no verdict."""
    return await ask(request, "health", Health, node=node or None)


HOLD = {"action": Action.HOLD}


@post(NODE + "/hold", operation_id="holdNode", tags=["fleet"], status_code=202, opt=HOLD)
async def hold_node(request: Asked, node: Name, data: OptionalReason = None, key: Key = None) -> Accepted:
    """Keep new work off a node until whoever asks lifts it again."""
    return await _hold(request, node, None, data, key)


@post(DEVICE + "/hold", operation_id="holdDevice", tags=["fleet"], status_code=202, opt=HOLD)
async def hold_device(request: Asked, node: Name, slot: Slot, data: OptionalReason = None, key: Key = None) -> Accepted:
    """Keep new work off a device until whoever asks lifts it again."""
    return await _hold(request, node, slot, data, key)


@post(NODE + "/unhold", operation_id="unholdNode", tags=["fleet"], status_code=202, opt=HOLD)
async def unhold_node(request: Asked, node: Name, key: Key = None) -> Accepted:
    """Lift one's own hold; those of others, and Keepstep's own, stay."""
    return await act(request, Unhold(resource=_id(node)), key)


@post(DEVICE + "/unhold", operation_id="unholdDevice", tags=["fleet"], status_code=202, opt=HOLD)
async def unhold_device(request: Asked, node: Name, slot: Slot, key: Key = None) -> Accepted:
    """Lift one's own hold; those of others, and Keepstep's own, stay."""
    return await act(request, Unhold(resource=_id(node, slot)), key)


async def _hold(request: Asked, node: Name, slot: int | None, data: Reason | None, key: str | None) -> Accepted:
    return await act(request, Hold(resource=_id(node, slot), reason=data.reason if data else ""), key)


def _id(node: str, slot: int | None = None) -> str:
    return node_resource(NodeId(node)) if slot is None else device_resource(NodeId(node), slot)


async def _resource(request: Asked, node: str, slot: int | None = None) -> views.ResourceView:
    return await ask(request, "resource", views.ResourceView, id=_id(node, slot))


ROUTES = [
    list_nodes, get_node, list_resources, get_node_resource, get_device, get_device_journal, get_node_journal, list_holds,
    get_health, hold_node, hold_device, unhold_node, unhold_device,
]  # fmt: skip
