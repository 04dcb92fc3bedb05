"""One node or one device: its state, holds, gates, counters, what runs there, and its history by slot and by serial number."""

from collections.abc import Sequence

from litestar import Response, get
from litestar.params import FromPath
from msgspec import Struct

from keepstep.core import facts as f
from keepstep.core.access import Action, refusal
from keepstep.core.ids import NodeId, ResourceId, device_resource, node_resource
from keepstep.review.records import IncidentRecord
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.fleet_queries import fleet_device, fleet_node
from keepstep.web.pages.acts import Act, of_resource
from keepstep.web.pages.asking import Asked, Look, respond, tenant_filter
from keepstep.web.pages.entries import EntryLine, entry_line

HISTORY = 100
INCIDENTS_MAX = 10


class Count(Struct, frozen=True, kw_only=True):
    """How often a signal was told in the history that is shown."""

    signal: str
    count: int
    last_s: float


class History(Struct, frozen=True, kw_only=True):
    entries: tuple[EntryLine, ...]
    """Newest first."""
    refused: str
    """Why the entries may not be read; gates and counts are everybody's."""
    is_whole: bool
    gates: tuple[tuple[float, f.GateFinished], ...]
    counts: tuple[Count, ...]


def history(desk: Desk, subjects: Sequence[str]) -> History:
    """What the journal says of any of the subjects: resources by their ids, parts by their serial numbers."""
    named = [subject for subject in subjects if subject]
    entries = desk.journal.mentioning(named, limit=HISTORY) if desk.journal is not None else []
    why = refusal(desk.principal, Action.READ_JOURNAL) if desk.principal is not None else ""
    counts: dict[str, Count] = {}
    for entry in entries:
        if isinstance(entry.record, f.SignalSeen):
            signal = entry.record.signal
            known = counts.get(signal)
            counts[signal] = Count(
                signal=signal,
                count=entry.record.count + (known.count if known is not None else 0),
                last_s=known.last_s if known is not None else entry.at_s,
            )
    return History(
        entries=() if why else tuple(entry_line(entry) for entry in entries),
        refused=why,
        is_whole=len(entries) < HISTORY,
        gates=tuple((e.at_s, e.record) for e in entries if isinstance(e.record, f.GateFinished)),
        counts=tuple(sorted(counts.values(), key=lambda c: -c.count)),
    )


def _acts(desk: Desk, id: ResourceId) -> tuple[Act, ...]:
    return of_resource(desk.world.resources[id], desk.principal) if desk.principal is not None else ()


def _incidents(desk: Desk, node: str) -> tuple[IncidentRecord, ...]:
    page = desk.archive.list("incident", {"node": node, "kind": "fault", **tenant_filter(desk)}, limit=INCIDENTS_MAX)
    return tuple(record for record in page.records if isinstance(record, IncidentRecord))


@get("/fleet/nodes/{node:str}", include_in_schema=False)
async def show_node(request: Asked, node: FromPath[str]) -> Response[str]:
    look = Look(request)
    try:
        shown = await look.at(lambda desk: _node(desk, node))
    except UnknownSubject as error:
        return look.not_found(str(error), "/fleet")
    return respond(request, "node.html", look.frame(f"Node {node}", "/fleet"), shown)


def _node(desk: Desk, node: str) -> dict[str, object]:
    shown, id = fleet_node(desk, node), node_resource(NodeId(node))
    return {
        "node": shown,
        "acts": _acts(desk, id),
        "history": history(desk, (id,)),
        "incidents": _incidents(desk, node),
    }


@get("/fleet/devices/{node:str}/{slot:int}", include_in_schema=False)
async def show_device(request: Asked, node: FromPath[str], slot: FromPath[int]) -> Response[str]:
    look = Look(request)
    try:
        shown = await look.at(lambda desk: _device(desk, node, slot))
    except UnknownSubject as error:
        return look.not_found(str(error), "/fleet")
    return respond(request, "device.html", look.frame(f"Device {node}/{slot}", "/fleet"), shown)


def _device(desk: Desk, node: str, slot: int) -> dict[str, object]:
    id = device_resource(NodeId(node), slot)
    shown = fleet_device(desk, id)
    return {
        "device": shown, "acts": _acts(desk, id), "history": history(desk, (id, shown.device.serial)),
        "incidents": [r for r in _incidents(desk, node) if id in r.resources],
    }  # fmt: skip
