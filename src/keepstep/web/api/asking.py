"""From a request to a question of the read side, or to a request of a person, and what becomes of its answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from litestar import Request
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from msgspec import Struct

from keepstep.ports import JournalUnavailable
from keepstep.server.aside import answer_aside
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.http_views import FieldError
from keepstep.server.queries import answer
from keepstep.server.requests import Forbidden
from keepstep.server.site import NoLeader, Site
from keepstep.server.visibility import refusal_to_ask
from keepstep.web.auth import deed_of
from keepstep.web.problems import ProblemError, refused
from keepstep.wire import requests as r

View = TypeVar("View", bound=Struct)
Asked = Request[Any, Any, Any]

PAGE = 100
NAMED_MAX = 10
NAMED_CHARS = 100
"""Of what an asker got wrong, so much is said back."""
Limit = Annotated[int, QueryParameter(ge=1, le=500, description="Items of one page.")]
CursorText = Annotated[
    str, QueryParameter(max_length=2000, description="`next` of the page before; empty for the first one.")
]
Name = Annotated[str, PathParameter(max_length=300)]
Slot = Annotated[int, PathParameter(ge=0, le=4096)]
Word = Annotated[str, QueryParameter(max_length=200)]
StateWord = Annotated[str, QueryParameter(name="state", max_length=200)]
Key = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        max_length=200,
        description="The same key with the same request does nothing a second time; a request may then be repeated safely.",
    ),
]


def site_of(request: Asked) -> Site:
    found: Site = request.app.state.site
    return found


def desk_of(request: Asked) -> Desk:
    """Shows only what the asker may see."""
    return site_of(request).desk().seen_by(request.user)


async def ask(request: Asked, what: str, kind: type[View], **args: Any) -> View:
    """The answer to a question of ``server.queries``."""
    check_may_ask(request, what)
    with telling():
        return _of(kind, await answer_aside(lambda: desk_of(request), lambda desk: answer(desk, what, args)))


def check_may_ask(request: Asked, what: str) -> None:
    why = refusal_to_ask(request.user, what)
    if why:
        site_of(request).note_refusal(request.user.name, deed_of(request), why)
        raise ProblemError(403, why)


@contextmanager
def telling() -> Iterator[None]:
    """What a question raises becomes a problem."""
    try:
        yield
    except (UnknownSubject, ValueError, JournalUnavailable) as error:
        raise refused(error) from error


def _of(kind: type[View], found: Struct) -> View:
    if not isinstance(found, kind):
        raise TypeError(f"the answer is a {type(found).__name__}, not a {kind.__name__}")
    return found


async def act(request: Asked, wanted: r.Request, key: str | None) -> r.Accepted:
    """Durable when it returns."""
    site = site_of(request)
    try:
        return await site.submit(wanted, request.user, key or "")
    except (Forbidden, UnknownSubject, ValueError, NoLeader, JournalUnavailable) as error:
        if isinstance(error, Forbidden) or (isinstance(error, UnknownSubject) and request.user.tenants):
            site.note_refusal(request.user.name, deed_of(request), str(error))
        raise refused(error) from error


async def check_request(request: Asked) -> None:
    """Before a route reads anything. Raises ProblemError."""
    _check_query(request)
    _check_body(request)


def _check_query(request: Asked) -> None:
    """A filter that is spelled wrong must not read as none: the answer would be everything."""
    if not request.query_params:
        return
    known = query_names(request.scope["route_handler"])
    wrong = [name for name in request.query_params if name not in known]
    if wrong:
        named = ", ".join(repr(name[:NAMED_CHARS]) for name in wrong[:NAMED_MAX])
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        errors = [
            FieldError(field=name[:NAMED_CHARS], message="there is no such parameter") for name in wrong[:NAMED_MAX]
        ]
        raise ProblemError(400, f"this route has no parameter {named}; {takes}", errors=errors)


def query_names(route: Any) -> list[str]:
    """Of the parameters that a route takes in its query."""
    taken = route.parsed_fn_signature.parameters.items()
    return sorted(
        field.kwarg_definition.name or name
        for name, field in taken
        if isinstance(field.kwarg_definition, QueryParameter)
    )


def _check_body(request: Asked) -> None:
    """A form of somebody else's page can send no JSON; and nothing that calls itself something else is taken for it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    there = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if request.method not in ("GET", "HEAD") and there and kind != "application/json":
        raise ProblemError(415, f"the body is {kind or 'of no type'}; send application/json")
