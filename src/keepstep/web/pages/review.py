"""The review of a week, or of another time: what it cost, what failed, how recovery went, whom to trust, what to repair.

The figures are ``keepstep.review``'s. They are gathered while the server does other things, and computed in a thread.
"""

import asyncio
from collections.abc import Sequence

import msgspec
from litestar import Response, get
from litestar.enums import MediaType
from msgspec import Struct

from keepstep.ports import JournalUnavailable
from keepstep.review.compute import review as compute
from keepstep.review.figures import Rate, Review
from keepstep.review.questions import Answer, answers
from keepstep.server.desk import Desk
from keepstep.server.review_queries import gather, whose
from keepstep.web.pages.asking import Asked, desk_for, frame, param, respond
from keepstep.web.pages.exports import review_csv
from keepstep.web.pages.incidents import day_s
from keepstep.web.pages.pictures import Picture, pictures
from keepstep.web.pages.units import utc
from keepstep.web.problems import refused

DAY_S = 86_400.0
SPANS = ((7, "7 days"), (28, "28 days"), (90, "90 days"))
DEFAULT_DAYS = 7
JOBS_SHOWN = 20
RULES_SHOWN = 50
WORST_SHOWN = 10


class Span(Struct, frozen=True, kw_only=True):
    since_s: float
    until_s: float
    days: int
    """0 where it was given by two days."""
    since: str
    until: str


class Table(Struct, frozen=True, kw_only=True):
    """Times to failure, the worst first."""

    title: str
    rates: tuple[Rate, ...]
    unit: str
    more: int
    """That are better than those."""
    too_few: int
    """Of which there are too few failures to say anything."""


class ReviewPage(Struct, frozen=True, kw_only=True):
    review: Review
    span: Span
    spans: tuple[tuple[int, str], ...]
    answers: tuple[Answer, ...]
    pictures: dict[str, Picture]
    rates: tuple[Table, ...]


def span_of(now_s: float, days: str, since: str, until: str) -> Span:
    """Two days (UTC), the last one included; else so many days until now. Raises ValueError for no time at all."""
    if since or until:
        start_s, end_s = day_s(since), day_s(until, after=1)
        end_s = min(now_s, end_s if end_s is not None else now_s)
        start_s = start_s if start_s is not None else end_s - DEFAULT_DAYS * DAY_S
        if start_s >= end_s:
            raise ValueError("that is no time at all: the first day must come before the last one, and before tomorrow")
        return Span(
            since_s=start_s, until_s=end_s, days=0, since=since or utc(start_s)[:10], until=until or utc(end_s)[:10]
        )
    count = int(days) if days.isdecimal() and 0 < int(days) <= 3660 else DEFAULT_DAYS
    return Span(
        since_s=now_s - count * DAY_S,
        until_s=now_s,
        days=count,
        since=utc(now_s - count * DAY_S)[:10],
        until=utc(now_s)[:10],
    )


def review_page(review: Review, span: Span) -> ReviewPage:
    failures = review.failures
    return ReviewPage(
        review=review,
        span=span,
        spans=SPANS,
        answers=answers(review),
        pictures=pictures(review),
        rates=(
            _table("By device model", failures.by_device_model, "GPU-h"),
            _table("By size of the job", failures.by_size, "job-h"),
            _table("By domain", failures.by_domain, "GPU-h"),
            _table("By model that is trained", failures.by_label, "GPU-h"),
        ),
    )


def _table(title: str, rates: Sequence[Rate], unit: str) -> Table:
    told = sorted((rate for rate in rates if rate.mttf_h is not None), key=lambda rate: rate.mttf_h or 0.0)
    shown = tuple(told[:WORST_SHOWN])
    return Table(
        title=title, rates=shown, unit=unit, more=len(told) - len(shown), too_few=len(rates) - len(told)
    )  # fmt: skip


async def _review(request: Asked) -> tuple[Desk, Span, Review, str]:
    """What is wrong with the question is the last one; then it is answered for the default."""
    desk, mistake = desk_for(request), ""
    try:
        span = span_of(desk.now_s, param(request, "days"), param(request, "since"), param(request, "until"))
    except ValueError as error:
        span, mistake = span_of(desk.now_s, "", "", ""), str(error)
    material = await gather(lambda: desk_for(request), span.since_s, span.until_s)
    computed = await asyncio.to_thread(compute, material, whose(desk, ""))
    return desk_for(request), span, computed, mistake


@get("/review", include_in_schema=False)
async def show_review(request: Asked) -> Response[str]:
    try:
        desk, span, computed, mistake = await _review(request)
    except JournalUnavailable as error:
        around = frame(request, desk_for(request), "Review", "/review", missing=str(error))
        return respond(request, "missing.html", around, {"said": "There is no review without what is over"}, 503)
    context = {
        "page": review_page(computed, span),
        "mistake": mistake,
        "jobs_shown": JOBS_SHOWN,
        "rules_shown": RULES_SHOWN,
        "worst": WORST_SHOWN,
    }
    return respond(
        request, "review.html", frame(request, desk, "Review", "/review", still=True), context, 400 if mistake else 200
    )


@get("/review/export", include_in_schema=False)
async def export_review(request: Asked) -> Response[bytes]:
    """``format``: csv, else json."""
    try:
        _, span, computed, mistake = await _review(request)
    except JournalUnavailable as error:
        raise refused(error) from error
    if mistake:
        return Response(mistake.encode(), status_code=400, media_type=MediaType.TEXT)
    as_csv = param(request, "format") == "csv"
    body = review_csv(computed).encode() if as_csv else msgspec.json.format(msgspec.json.encode(computed), indent=1)
    kind = "csv" if as_csv else "json"
    headers = {
        "Content-Disposition": f'attachment; filename="review-{span.since}-{span.until}.{kind}"',
        "Cache-Control": "no-store",
    }
    media = "text/csv; charset=utf-8" if as_csv else MediaType.JSON
    return Response(body, media_type=media, headers=headers)
