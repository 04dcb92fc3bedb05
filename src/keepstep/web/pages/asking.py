"""Who looks, at what, and how the answer is sent. Owns what all pages share; computes nothing of its own.

The frame of a page (who is signed in, which server speaks, as of which entry) is part of each answer. With ``?fragment=1`` the
same page comes without it: that is what a page that is open asks for again and again.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from litestar import Request, Response
from litestar.datastructures import State
from litestar.enums import MediaType
from msgspec import Struct

from keepstep import __version__
from keepstep.core.access import Principal
from keepstep.ports import JournalUnavailable
from keepstep.server.aside import answer_aside
from keepstep.server.desk import Desk
from keepstep.server.site import Site
from keepstep.web.pages.rendering import render

Asked = Request[Principal, Any, State]
Made = TypeVar("Made")

VIEWS = (("/", "Now"), ("/incidents", "Incidents"), ("/jobs", "Jobs"), ("/fleet", "Fleet"), ("/review", "Review"))

PER_PAGE = 50


class Frame(Struct, frozen=True, kw_only=True):
    """What stands around every page."""

    title: str
    here: str
    """Address of the view that is marked in the navigation."""
    who: str
    role: str
    server: str
    version: str
    leads: bool
    leader: str
    """Another server that leads, and where; empty where this one does, or nobody."""
    is_led: bool
    """False: no server leads, so that the page shows how things were."""
    entry: int
    """Newest journal entry that the page knows."""
    now_s: float
    missing: str = ""
    """Why what is over is not on the page; empty where it is."""
    still: bool = False
    """It does not update by itself: it would cost too much, and says nothing of now."""
    views: tuple[tuple[str, str], ...] = VIEWS


def site_of(request: Asked) -> Site:
    site: Site = request.app.state.site
    return site


def desk_for(request: Asked) -> Desk:
    """With what the viewer may see."""
    return site_of(request).desk().seen_by(request.user)


class Look:
    """At the books, and at the database as far as it can be read: where it cannot, a page is made without, and says so."""

    def __init__(self, request: Asked) -> None:
        self._request = request
        self._missing = ""

    async def at(self, make: Callable[[Desk], Made]) -> Made:
        """What is made of the desk; the database is read in a thread meanwhile."""
        return await answer_aside(lambda: desk_for(self._request), make, self._note)

    def _note(self, error: JournalUnavailable) -> None:
        self._missing = str(error)

    def frame(self, title: str, here: str) -> Frame:
        return frame(self._request, desk_for(self._request), title, here, missing=self._missing)

    def not_found(self, said: str, here: str) -> Response[str]:
        """A page for what is not there, or belongs to somebody else."""
        around = self.frame("Not found", here)
        return respond(self._request, "missing.html", around, {"said": said}, 503 if around.missing else 404)


def frame(
    request: Asked, desk: Desk, title: str, here: str, *, missing: str = "", still: bool = False
) -> Frame:  # fmt: skip
    site, seat = site_of(request), desk.seat
    leader = "" if seat.leads or not seat.leader else f"{seat.leader} at {seat.address or 'no address'}"
    return Frame(
        title=title, here=here, who=request.user.name, role=request.user.role.value, server=site.identity,
        version=__version__, leads=site.leads, leader=leader, is_led=site.is_led, entry=desk.world.seq, now_s=desk.now_s,
        missing=missing, still=still,
    )  # fmt: skip


def respond(
    request: Asked, template: str, around: Frame, context: Mapping[str, Any], status: int = 200
) -> Response[str]:
    layout = "fragment.html" if "fragment" in request.query_params else "page.html"
    html = render(template, layout=layout, frame=around, now_s=around.now_s, **context)
    headers = {"Cache-Control": "no-store", "Vary": "Cookie"}
    return Response(html, media_type=MediaType.HTML, headers=headers, status_code=status)


def param(request: Asked, name: str) -> str:
    return str(request.query_params.get(name, "")).strip()[:200]


def whole(request: Asked, name: str, default: int = 0) -> int:
    """A number of the query that is not negative; the default where it is none."""
    text = param(request, name)
    return int(text) if text.isdecimal() and len(text) < 10 else default


def tenant_filter(desk: Desk) -> dict[str, str]:
    """For the archive; empty where all tenants are seen."""
    return {"tenant": ",".join(desk.tenants)} if desk.tenants else {}
