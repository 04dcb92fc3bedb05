"""Puts the HTTP side together: routes, gate, headers, errors. Owns that list and nothing else."""

from collections.abc import Sequence
from typing import Any

from litestar import Litestar, Request, Response, Router, get
from litestar.datastructures import State
from litestar.middleware import DefineMiddleware

from keepstep.core.access import Action
from keepstep.server.metrics import metrics_text
from keepstep.server.site import Site
from keepstep.web import login, problems
from keepstep.web.api import access, drills, fleet, incidents, installation, jobs, reviews
from keepstep.web.api.asking import check_request
from keepstep.web.auth import Gate
from keepstep.web.events import Readers, stream_events
from keepstep.web.headers import Tagged, guard_headers
from keepstep.web.openapi import openapi_json
from keepstep.web.options import WebOptions

API = "/api/v1"


@get("/metrics", opt={"action": Action.READ_METRICS}, include_in_schema=False)
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """For Prometheus."""
    body, content_type = metrics_text(request.app.state.site, request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})


def api_routes() -> list[Router]:
    """What the description of the API describes."""
    of = (jobs, incidents, drills, fleet, installation, access, reviews)
    reads = [route for part in of for route in part.ROUTES]
    asked = Router(API, route_handlers=reads, middleware=[Tagged], before_request=check_request)
    return [asked, Router(API, route_handlers=[stream_events], before_request=check_request)]


def make_app(site: Site, options: WebOptions, extra_routes: Sequence[Any] = ()) -> Litestar:
    """``extra_routes``: handlers and routers of the dashboard. Made in the event loop that it runs in."""
    routes = api_routes()
    about = Router(API, route_handlers=[openapi_json], middleware=[Tagged], before_request=check_request)
    state = {"site": site, "options": options, "readers": Readers(options.readers_max), "routes": routes}
    return Litestar(
        route_handlers=[*routes, about, metrics, *login.ROUTES, *extra_routes],
        middleware=[DefineMiddleware(Gate)],
        before_send=[guard_headers],
        exception_handlers=problems.HANDLERS,
        openapi_config=None,
        request_max_body_size=options.request_max_bytes,
        state=State(state),
        logging_config=None,
    )
