"""The dashboard: pages that the server writes, and the few scripts beside them. One module a view.

A view builds a context from the desk and renders it; it decides nothing, and what its buttons ask goes to the API.
"""

from collections.abc import Sequence
from pathlib import Path

from litestar import get
from litestar.datastructures import CacheControlHeader
from litestar.static_files import create_static_files_router
from litestar.types import ControllerRouterHandler

from keepstep.review import plots
from keepstep.web.pages import fleet, incident, incidents, job, jobs, now, resource, review

STATIC = Path(__file__).parent.parent / "static"


@get("/plots.css", opt={"public": True}, media_type="text/css", sync_to_thread=False, include_in_schema=False)
def show_plot_style() -> str:
    """What plots are drawn with, which reports carry inside."""
    return plots.STYLE


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
        create_static_files_router(
            path="/static",
            directories=[STATIC],
            opt={"public": True},
            include_in_schema=False,
            cache_control=CacheControlHeader(no_cache=True),
        ),
    ]
