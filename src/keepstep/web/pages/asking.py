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
from keepstep.server.desk import Desk
from keepstep.server.site import Site
from keepstep.web.ahead import answer_ahead
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
    is_led: bool
    """False: no server leads, so that the page shows how things were."""
    entry: int
    """Newest journal entry that the page knows."""
    now_s: float
    still: bool = False
    """It does not update by itself: it would cost too much, and says nothing of now."""
    views: tuple[tuple[str, str], ...] = VIEWS


def site_of(request: Asked) -> Site:
    site: Site = request.app.state.site
    return site


def desk_for(request: Asked) -> Desk:
    """With what the viewer may see."""
    return site_of(request).desk().seen_by(request.user)


async def ahead(request: Asked, make: Callable[[Desk], Made]) -> Made:
    """What is made of the desk; a search of the archive that it needs is made in a thread meanwhile."""
    return await answer_ahead(lambda: desk_for(request), make)


def frame(request: Asked, desk: Desk, title: str, here: str, *, still: bool = False) -> Frame:
    site = site_of(request)
    return Frame(
        title=title, here=here, who=request.user.name, role=request.user.role.value, server=site.identity,
        version=__version__, leads=site.leads, is_led=site.is_led, entry=desk.world.seq, now_s=desk.now_s, still=still,
    )  # fmt: skip


def respond(
    request: Asked, template: str, around: Frame, context: Mapping[str, Any], status: int = 200
) -> Response[str]:
    layout = "fragment.html" if "fragment" in request.query_params else "page.html"
    html = render(template, layout=layout, frame=around, now_s=around.now_s, **context)
    headers = {"Cache-Control": "no-store", "Vary": "Cookie"}
    return Response(html, media_type=MediaType.HTML, headers=headers, status_code=status)


def missing(request: Asked, desk: Desk, said: str, here: str) -> Response[str]:
    """A page for what is not there, or belongs to somebody else."""
    return respond(request, "missing.html", frame(request, desk, "Not found", here), {"said": said}, 404)


def param(request: Asked, name: str) -> str:
    return str(request.query_params.get(name, "")).strip()[:200]


def whole(request: Asked, name: str, default: int = 0) -> int:
    """A number of the query that is not negative; the default where it is none."""
    text = param(request, name)
    return int(text) if text.isdecimal() and len(text) < 10 else default


def tenant_filter(desk: Desk) -> dict[str, str]:
    """For the archive; empty where all tenants are seen."""
    return {"tenant": ",".join(desk.tenants)} if desk.tenants else {}
