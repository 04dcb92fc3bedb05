"""The list of jobs: those that live, then those that are over, page by page."""

from litestar import Response, get
from msgspec import Struct

from keepstep.review.records import JobRecord
from keepstep.server.desk import Desk
from keepstep.web.pages.asking import PER_PAGE, Asked, Look, param, respond, tenant_filter
from keepstep.web.pages.now import JobLine, job_line

LIVE_MAX = 200


class Listing(Struct, frozen=True, kw_only=True):
    live: tuple[JobLine, ...]
    more_live: int
    ended: tuple[JobRecord, ...]
    next: str
    total: int
    """Ended ones that match, on all pages."""
    q: str
    is_first: bool


def listing(desk: Desk, q: str = "", cursor: str = "") -> Listing:
    """Raises ValueError for a cursor that is none."""
    live = [desk.world.jobs[id] for id in reversed(desk.world.live_jobs) if desk.sees(id) and q.lower() in id.lower()]
    page = desk.archive.list(
        "job", {**({"q": q} if q else {}), **tenant_filter(desk)}, cursor=cursor, limit=PER_PAGE
    )  # fmt: skip
    return Listing(
        live=tuple(job_line(desk, job) for job in live[:LIVE_MAX]) if not cursor else (),
        more_live=max(0, len(live) - LIVE_MAX),
        ended=tuple(r for r in page.records if isinstance(r, JobRecord) and r.id not in desk.world.live_jobs),
        next=page.next,
        total=page.total,
        q=q,
        is_first=not cursor,
    )


@get("/jobs", include_in_schema=False)
async def show_jobs(request: Asked) -> Response[str]:
    look, q = Look(request), param(request, "q")
    try:
        found = await look.at(lambda desk: listing(desk, q, param(request, "cursor")))
    except ValueError:  # no cursor of ours: from the beginning
        found = await look.at(lambda desk: listing(desk, q))
    return respond(request, "jobs.html", look.frame("Jobs", "/jobs"), {"list": found})
