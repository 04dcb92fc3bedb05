"""Logging in and out of the dashboard, and the two routes by which a supervisor sees that the server lives."""

from html import escape
from typing import Annotated, Any

from litestar import MediaType, Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.enums import RequestEncodingType
from litestar.params import Body
from msgspec import Struct

from keepstep.server.authentication import identify_bearer
from keepstep.server.registry import SESSION_LIFE_S
from keepstep.web.api.asking import act
from keepstep.web.auth import note_stranger, same_origin
from keepstep.web.problems import ProblemError
from keepstep.web.sessions import COOKIE, seal, session_of
from keepstep.wire.requests import EndSession

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Keepstep: log in</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="/static/keepstep.svg" type="image/svg+xml">
<script src="/static/early.js"></script><link rel="stylesheet" href="/static/keepstep.css">
<script type="module" src="/login.js"></script></head>
<body class="bare"><main><h1>Keepstep</h1>
<form method="post" action="/login"><p id="said" role="alert">{said}</p>
<label>Token <input name="token" type="password" autocomplete="current-password" required autofocus></label>
<input type="hidden" name="next" value="{next}"><button>Log in</button></form>
<p>On the server's machine <code>keepstep dashboard</code> logs you in. Elsewhere an administrator makes a token with
<code>keepstep token create</code>.</p></main></body></html>
"""

SCRIPT = """// A login link carries its token behind the #, which no server and no log of a proxy ever sees.
const secret = location.hash.slice(1);
if (secret) {
  history.replaceState(null, "", location.pathname + location.search);
  document.querySelector("input[name=token]").value = secret;
  document.querySelector("form").submit();
}
"""


class Credentials(Struct, frozen=True, kw_only=True):
    token: str
    next: str = "/"


class Readiness(Struct, frozen=True, kw_only=True):
    ready: bool
    leads: bool


PUBLIC: dict[str, Any] = {"public": True}


@get("/healthz", opt=PUBLIC, media_type=MediaType.TEXT, include_in_schema=False)
async def healthz() -> str:
    """The server's event loop turns."""
    return "ok\n"


@get("/readyz", opt=PUBLIC, include_in_schema=False)
async def readyz(request: Request[Any, Any, Any]) -> Readiness:
    """Questions are answered; whether it leads is beside the point, since a follower passes requests on."""
    return Readiness(ready=True, leads=request.app.state.site.leads)


@get("/login", opt=PUBLIC, media_type=MediaType.HTML, include_in_schema=False)
async def login_page(request: Request[Any, Any, Any]) -> str:
    return page("", request.query_params.get("next", "/"))


@get("/login.js", opt=PUBLIC, media_type="text/javascript", include_in_schema=False)
async def login_script() -> str:
    return SCRIPT


@post("/login", opt=PUBLIC, include_in_schema=False, media_type=MediaType.HTML)
async def log_in(
    request: Request[Any, Any, Any], data: Annotated[Credentials, Body(media_type=RequestEncodingType.URL_ENCODED)]
) -> Response[str]:
    """A form with a token; gives a cookie that stands for it."""
    site, options = request.app.state.site, request.app.state.options
    if not same_origin(request):
        note_stranger(request, site, "the login form is on somebody else's page")
        raise ProblemError(403, "log in from the server's own page")
    desk = site.desk()
    principal = identify_bearer(desk.registry, options.owner_token, data.token.strip(), desk.now_s)
    if principal is None:
        note_stranger(request, site, "no such token")
        return Response(page("That token is unknown, expired or revoked.", data.next), status_code=401)
    value = seal(principal, options.owner_token, desk.now_s)
    cookie = Cookie(
        key=COOKIE,
        value=value,
        path="/",
        max_age=int(SESSION_LIFE_S),
        httponly=True,
        samesite="strict",
        secure=options.secure,
    )
    return Response("", status_code=303, headers={"Location": own_path(data.next)}, cookies=[cookie])


@post("/logout", opt={"action": None}, include_in_schema=False, status_code=303)
async def log_out(request: Request[Any, Any, Any]) -> Response[None]:
    """Ends the session for good: a copy of its cookie opens nothing any more, at no server."""
    session = session_of(request.cookies.get(COOKIE, ""), request.app.state.options.owner_token)
    if session is not None:
        await act(request, EndSession(session=session), None)
    gone = Cookie(key=COOKIE, value="", path="/", max_age=0, httponly=True, samesite="strict")
    return Response(None, status_code=303, headers={"Location": "/login"}, cookies=[gone])


def own_path(text: str) -> str:
    """Where to go on after the login: a page of ours, never somebody else's."""
    own = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and text.isascii()
    return text if own else "/"


def page(said: str, following: str) -> str:
    return PAGE.format(said=escape(said), next=escape(own_path(following)))


ROUTES = [healthz, readyz, login_page, login_script, log_in, log_out]
