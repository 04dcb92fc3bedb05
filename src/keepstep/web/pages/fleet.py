"""The fleet: the map, its data in parts, and the same as a list. Owns which addresses they have."""

import msgspec
from litestar import Response, get
from litestar.enums import MediaType

from keepstep.server.fleet_queries import PAGE_LINES, STATES, capacity, find, fleet_list, fleet_map
from keepstep.web.pages.asking import Asked, Look, desk_for, frame, param, respond, whole

NAMED_MAX = 500


@get("/fleet", sync_to_thread=False, include_in_schema=False)
def show_fleet(request: Asked) -> Response[str]:
    desk = desk_for(request)
    around = frame(request, desk, "Fleet", "/fleet")
    states = tuple(state.value for state in STATES)
    return respond(request, "fleet.html", around, {"capacity": capacity(desk), "states": states})


@get("/fleet/list", sync_to_thread=False, include_in_schema=False)
def show_list(request: Asked) -> Response[str]:
    desk = desk_for(request)
    filters = {name: param(request, name) for name in ("state", "node", "q")}
    after, mistake = whole(request, "after"), ""
    try:
        lines = fleet_list(desk, **filters, after=after, limit=PAGE_LINES)
    except ValueError as error:
        mistake, lines = str(error), fleet_list(desk, limit=0)
    context = {
        "lines": lines, "filters": filters, "after": after, "mistake": mistake, "states": [s.value for s in STATES],
        "total": len(desk.world.resources),
    }  # fmt: skip
    return respond(
        request, "fleet_list.html", frame(request, desk, "Fleet list", "/fleet"), context, 400 if mistake else 200
    )


@get("/fleet/map", sync_to_thread=False, include_in_schema=False)
def show_map(request: Asked) -> Response[bytes]:
    """Part of the map as JSON: from ``after`` on, or the ``nodes`` that are named."""
    names = tuple(filter(None, str(request.query_params.get("nodes", "")).split(",")))[:NAMED_MAX]
    part = fleet_map(desk_for(request), after=whole(request, "after"), nodes=names)
    return Response(msgspec.json.encode(part), media_type=MediaType.JSON, headers={"Cache-Control": "no-store"})


@get("/find", include_in_schema=False)
async def show_finds(request: Asked) -> Response[str]:
    look, q = Look(request), param(request, "q")
    finds = await look.at(lambda desk: find(desk, q))
    return respond(request, "find.html", look.frame("Find", ""), {"q": q, "finds": finds})
