"""The dashboard: pages that the server writes, and the few scripts beside them. One module a view.

A view builds a context from the desk and renders it; it decides nothing, and what its buttons ask goes to the API.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from litestar import Response, get
from litestar.exceptions import NotFoundException
from litestar.params import PathParameter
from litestar.types import ControllerRouterHandler

from keepstep.review import plots
from keepstep.web.headers import Tagged
from keepstep.web.pages import fleet, incident, incidents, job, jobs, now, resource, review

STATIC = Path(__file__).parent.parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@get("/plots.css", opt={"public": True}, media_type="text/css", sync_to_thread=False, include_in_schema=False)
def show_plot_style() -> str:
    """What plots are drawn with, which reports carry inside."""
    return plots.STYLE


@cache
def _files() -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in TYPES}


@get("/static/{name:str}", opt={"public": True}, middleware=[Tagged], sync_to_thread=False, include_in_schema=False)
def show_static(name: Annotated[str, PathParameter()]) -> Response[bytes]:
    """From memory: they are few and small, and no file is left open by a reader who goes away while it is being opened."""
    if name not in _files():
        raise NotFoundException()
    return Response(_files()[name], media_type=TYPES[Path(name).suffix])


def routes() -> Sequence[ControllerRouterHandler]:
    """All pages, and ``/static`` for whoever asks: it holds nothing of the fleet."""
    return [
        now.show_now,
        incidents.show_incidents,
        incident.show_incident,
        jobs.show_jobs,
        job.show_job,
        fleet.show_fleet,
        fleet.show_list,
        fleet.show_map,
        fleet.show_finds,
        resource.show_node,
        resource.show_device,
        review.show_review,
        review.export_review,
        show_plot_style,
        show_static,
    ]
