"""Routes of reviews: what a span of time, or one incident, teaches. Computed in a thread, from pages of the archive."""

from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from keepstep.review.figures import Review
from keepstep.review.postmortem import Postmortem
from keepstep.server.review_queries import review_aside
from keepstep.web.api.asking import Asked, Name, Word, ask, check_may_ask, desk_of, telling

Moment = Annotated[float | None, QueryParameter(ge=0, le=1e11, description="Seconds since the epoch.")]


@get("/review", operation_id="getReview", tags=["review"])
async def get_review(
    request: Asked, since_s: Moment = None, until_s: Moment = None, tenant: Word = "", job: Word = ""
) -> Review:
    """Goodput and its losses, failures, recovery times, rules and lemons: of the last seven days, of a span, or of a job."""
    check_may_ask(request, "review")
    with telling():
        return await review_aside(lambda: desk_of(request), since_s, until_s, tenant, job)


@get("/incidents/{incident:str}/postmortem", operation_id="getPostmortem", tags=["review", "incidents"])
async def get_postmortem(request: Asked, incident: Name) -> Postmortem:
    """From the fault to the first step after it, with evidence, decisions, cost and the curves around it."""
    return await ask(request, "postmortem", Postmortem, id=incident)


ROUTES = [get_review, get_postmortem]
