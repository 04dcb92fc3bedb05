"""Live events: that something is in the journal that was not, as server-sent events. Owns the stream; says nothing of its own.

A reader learns what changed and asks again; nothing is lost where it is slow or away, since an event is no content.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from litestar import get
from litestar.params import HeaderParameter
from litestar.response import Stream

from keepstep.core.access import Principal
from keepstep.core.mentions import subjects
from keepstep.ports import JournalCorrupt, JournalUnavailable
from keepstep.server.desk import Desk
from keepstep.server.site import Bulletin, Change
from keepstep.server.visibility import sees_incident, sees_job
from keepstep.web.api.asking import Asked, site_of
from keepstep.web.auth import identify
from keepstep.web.problems import ProblemError

HEARTBEAT_S = 15.0
CATCH_UP_MAX = 200
"""Entries that a reader may have missed and still be told about one by one; beyond it, it starts anew."""

FLEET = ("node/", "device/", "fact:", "stage:", "order:")
"""How subjects begin that are no tenant's."""

LastSeen = Annotated[
    str | None,
    HeaderParameter(name="Last-Event-ID", max_length=40, description="Number of the newest event that was seen."),
]


class Readers:
    """Those who listen now; ``closing`` ends them all."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._count = 0
        self.closing = asyncio.Event()

    def enter(self) -> None:
        """Raises ProblemError where there are too many."""
        if self._count >= self._at_most:
            raise ProblemError(
                503, f"{self._at_most} readers listen already; ask again later, or poll", {"Retry-After": "5"}
            )
        self._count += 1

    def leave(self) -> None:
        self._count -= 1


@get("/events", operation_id="streamEvents", tags=["events"], media_type="text/event-stream")
async def stream_events(request: Asked, last: LastSeen = None) -> Stream:
    """Server-sent events. `change`: entries are in the journal; data is a Change. `reset`: too much was missed, read all anew.
    A comment comes every 15 s, so that a broken connection is noticed."""
    readers: Readers = request.app.state.readers
    readers.enter()
    return Stream(
        _events(request, last, readers),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(request: Asked, last: str | None, readers: Readers) -> AsyncIterator[bytes]:
    site, principal = site_of(request), request.user
    try:
        changes = site.changes()
        following = asyncio.ensure_future(anext(changes))
        closing = asyncio.ensure_future(readers.closing.wait())
        try:
            await asyncio.sleep(0)  # the reader is entered before anything is said about what there is
            yield _first(site.desk(), principal, last)
            while not closing.done():
                done, _ = await asyncio.wait(
                    (following, closing), timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED
                )
                if not _still_known(request, site.desk()):
                    return
                if following in done:
                    yield _event("change", _visible(following.result(), site.desk(), principal))
                    following = asyncio.ensure_future(anext(changes))
                elif not done:
                    yield b": still here\n\n"
        finally:
            for task in (following, closing):
                task.cancel()
            await asyncio.gather(following, closing, return_exceptions=True)
            await changes.aclose()  # type: ignore[attr-defined]
    finally:
        readers.leave()


def _still_known(request: Asked, desk: Desk) -> bool:
    """Whether the credential that opened the stream would open it now: it may have been revoked, or have expired."""
    principal, _ = identify(request, desk, request.app.state.options)
    same: bool = principal == request.user
    return same


def _first(desk: Desk, principal: Principal, last: str | None) -> bytes:
    """What a reader that comes (back) is told: where the journal stands, and what it has missed."""
    now = desk.world.seq
    if last is None:
        return b"retry: 2000\n" + _event("change", Change(seq=now, subjects=()))
    missed = now - int(last) if last.isdecimal() else -1
    if missed == 0:
        return b"retry: 2000\n\n"
    about = _about(desk, missed) if 0 < missed <= CATCH_UP_MAX else None
    if about is None:
        return b"retry: 2000\n" + _event("reset", Change(seq=now, subjects=()))
    return b"retry: 2000\n" + _event("change", _visible(Change(seq=now, subjects=about), desk, principal))


def _about(desk: Desk, missed: int) -> tuple[str, ...] | None:
    """None where the journal cannot say it."""
    if desk.journal is None:
        return None
    try:
        entries = desk.journal.mentioning((), limit=missed)
    except (JournalCorrupt, JournalUnavailable):
        return None
    about = dict.fromkeys(subject for entry in reversed(entries) for subject in subjects(entry.record))
    return tuple(about) if len(about) <= Bulletin.SUBJECTS_MAX else ()


def _visible(change: Change, desk: Desk, principal: Principal) -> Change:
    """Without jobs and incidents of other tenants. What the World does not know (any more) might be one."""
    if not principal.tenants:
        return change
    return Change(seq=change.seq, subjects=tuple(s for s in change.subjects if _may_hear(s, desk, principal)))


def _may_hear(subject: str, desk: Desk, principal: Principal) -> bool:
    world = desk.world
    if subject in world.jobs:
        return sees_job(principal, world, subject)
    if subject in world.incidents:
        return sees_incident(principal, world, subject)
    return subject in world.faults or subject in world.resources or subject.startswith(FLEET)


def _event(kind: str, change: Change) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (change.seq, kind.encode(), msgspec.json.encode(change))
