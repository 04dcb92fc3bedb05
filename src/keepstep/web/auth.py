"""Who asks, and whether they may: the gate in front of every route. Owns the checks of host, credential, origin and role.

A route says what it takes by ``opt``: ``{"action": Action.X}`` (READ where nothing is said), or ``{"public": True}``.
"""

from typing import Any
from urllib.parse import quote, urlsplit

from litestar.connection import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from keepstep.core.access import Action, Principal, refusal
from keepstep.server.authentication import identify_bearer
from keepstep.server.desk import Desk
from keepstep.server.site import Site
from keepstep.web.options import WebOptions
from keepstep.web.problems import ProblemError
from keepstep.web.sessions import COOKIE, unseal

SAFE = ("GET", "HEAD", "OPTIONS")
OWN_HEADER = "x-keepstep-request"
"""A page of ours sets it; a form or an image on somebody else's page cannot."""
HOW = "send `Authorization: Bearer TOKEN`; `keepstep token create` makes one, the state directory's token file is the owner's"


class Gate:
    """ASGI middleware. ``request.user`` is the Principal behind it, None on public routes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            raise ProblemError(404, "there are no web sockets here; live changes are at /api/v1/events")
        request: Request[Any, Any, Any] = Request(scope)
        site, options = request.app.state.site, request.app.state.options
        _check_host(request, site, options)
        opt = scope["route_handler"].opt
        scope["auth"], scope["user"] = None, None
        if not opt.get("public"):
            scope["user"] = self._let_in(request, site, options, opt.get("action", Action.READ))
        await self.app(scope, receive, send)

    def _let_in(
        self, request: Request[Any, Any, Any], site: Site, options: WebOptions, action: Action | None
    ) -> Principal:
        principal, by_cookie = identify(request, site.desk(), options)
        if principal is None:
            raise _unknown(request, site)
        why = _forged(request) if by_cookie else ""
        why = why or (refusal(principal, action) if action is not None else "")
        if why:
            site.note_refusal(principal.name, deed_of(request), why)
            raise ProblemError(403, why)
        return principal


def identify(request: Request[Any, Any, Any], desk: Desk, options: WebOptions) -> tuple[Principal | None, bool]:
    """Who it is, and whether the cookie says so. A header, where there is one, is the only thing that counts."""
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, secret = header.partition(" ")
        good = scheme.lower() == "bearer" and secret.strip()
        known = identify_bearer(desk.registry, options.owner_token, secret.strip(), desk.now_s) if good else None
        return known, False
    cookie = request.cookies.get(COOKIE)
    known = unseal(cookie, desk.registry, options.owner_token, desk.now_s) if cookie else None
    return known, known is not None


def _check_host(request: Request[Any, Any, Any], site: Site, options: WebOptions) -> None:
    """Against DNS rebinding: a page of somebody else, whose name now points here, does not get in."""
    name = host_of(request.headers.get("host", ""))
    if not options.known_host(name):
        why = f"this server is not called {name[:100]!r}"
        note_stranger(request, site, why)
        raise ProblemError(421, f"{why}; name it with --host, or ask by its own name")


def note_stranger(request: Request[Any, Any, Any], site: Site, why: str) -> None:
    """For the journal: somebody was refused of whom nothing is known but where the request came from."""
    client = request.client.host if request.client is not None else "a socket"
    site.note_refusal(f"(unknown) at {client}", deed_of(request), why)


def deed_of(request: Request[Any, Any, Any]) -> str:
    """What is asked, for the journal: the route, of which there are only so many, and not its address."""
    return f"{request.method} {request.scope['path_template']}"


def host_of(header: str) -> str:
    """Without the port."""
    return header.rpartition(":")[0] if ":" in header.rpartition("]")[2] else header


def same_origin(request: Request[Any, Any, Any]) -> bool:
    """Whether the page that asks is ours, as the browser says; without a word of it, no browser is there."""
    origin = request.headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
    return request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def _forged(request: Request[Any, Any, Any]) -> str:
    if request.method in SAFE:
        return ""
    if OWN_HEADER not in request.headers or not same_origin(request):
        return "a change by cookie needs the header X-Keepstep-Request and the server's own origin; use a token instead"
    return ""


def _unknown(request: Request[Any, Any, Any], site: Site) -> ProblemError:
    wrong = "authorization" in request.headers
    to_login = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if wrong or not to_login:  # whoever opens the dashboard without a session is shown the way, not refused
        none = "the session is unknown, or over" if COOKIE in request.cookies else "no credential"
        note_stranger(request, site, "no such token" if wrong else none)
    if to_login:
        following = quote(request.url.path + (f"?{request.url.query}" if request.url.query else ""), safe="/")
        return ProblemError(303, "log in first", {"Location": f"/login?next={following}"})
    return ProblemError(
        401, f"nobody is known by that credential: {HOW}", {"WWW-Authenticate": 'Bearer realm="keepstep"'}
    )
