"""Routes of the installation itself: the journal, the report, and which server this is."""

from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from keepstep import __version__
from keepstep.core.access import Action
from keepstep.server import views
from keepstep.server.http_views import ServerView
from keepstep.server.journal_views import Entries
from keepstep.web.api.asking import PAGE, Asked, Limit, ask, site_of
from keepstep.web.api.incidents import Before

Subject = Annotated[
    str,
    QueryParameter(
        max_length=200, description="An id, a serial, `node/NAME`, `fact:TYPE`, `order:NUMBER`; empty: all."
    ),
]


@get("/server", operation_id="getServer", tags=["installation"], opt={"action": None})
async def get_server(request: Asked) -> ServerView:
    """Which server answers, and who leads."""
    site = site_of(request)
    desk = site.desk()
    return ServerView(
        identity=site.identity,
        version=__version__,
        leads=site.leads,
        is_led=site.is_led,
        leader=desk.seat.leader,
        leader_address=desk.seat.address,
        term=desk.registry.term,
        entry=desk.world.seq,
        now_s=desk.now_s,
    )


@get("/journal", operation_id="listJournal", tags=["journal"], opt={"action": Action.READ_JOURNAL})
async def list_journal(
    request: Asked,
    subject: Subject = "",
    before: Before = None, limit: Limit = PAGE,
) -> Entries:  # fmt: skip
    """Journal entries with their hashes, newest first."""
    return await ask(request, "journal", Entries, about=[subject] if subject else [], before=before, limit=limit)


@get("/report", operation_id="getReport", tags=["jobs"])
async def get_report(request: Asked) -> views.Report:
    """What faults cost all jobs that the server has at hand."""
    return await ask(request, "report", views.Report)


ROUTES = [get_server, list_journal, get_report]
