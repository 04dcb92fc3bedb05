"""Errors as application/problem+json (RFC 9457): every one of them, and never a stack trace. Owns what status each gets."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from keepstep.ports import JournalUnavailable
from keepstep.server.desk import UnknownSubject
from keepstep.server.http_views import FieldError, Problem
from keepstep.server.requests import Conflict, Forbidden
from keepstep.server.site import KeyReused, NoLeader

log = logging.getLogger("keepstep.web")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


class ProblemError(Exception):
    """Raised by a handler or a middleware to answer with a problem."""

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] = {}, errors: Sequence[FieldError] = ()
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.errors = status, detail, dict(headers), tuple(errors)


def problem_body(status: int, detail: str, errors: tuple[FieldError, ...] = ()) -> bytes:
    return msgspec.json.encode(Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=errors))


def respond(
    status: int, detail: str, headers: Mapping[str, str] = {}, errors: tuple[FieldError, ...] = ()
) -> Response[bytes]:
    return Response(
        problem_body(status, detail, errors), status_code=status, media_type=MEDIA_TYPE, headers=dict(headers)
    )


STATUS: dict[type[Exception], int] = {
    Forbidden: 403,
    UnknownSubject: 404,
    Conflict: 409,
    KeyReused: 422,
    ValueError: 422,
    NoLeader: 503,
    JournalUnavailable: 503,
}


def refused(error: Exception) -> ProblemError:
    """What a question or a request of the server said no with; ``error`` is of a type in STATUS."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    return ProblemError(status, str(error), headers)


def _on_problem(_: Request[Any, Any, Any], error: ProblemError) -> Response[bytes]:
    return respond(error.status, error.detail, error.headers, error.errors)


def _on_http(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    if error.status_code >= 500:
        log.error("%s", error, exc_info=error)
        return respond(error.status_code, "the server failed; its log says more")
    found = error.extra if isinstance(error.extra, list) else []
    errors = tuple(
        FieldError(field=str(item.get("key", "")), message=str(item.get("message", "")))
        for item in found
        if isinstance(item, dict)
    )
    return respond(error.status_code, error.detail, error.headers or {}, errors)


def _on_bug(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    log.error("a request failed: %s", error, exc_info=error)
    return respond(500, "the server failed; its log says more")


HANDLERS: dict[int | type[Exception], Any] = {ProblemError: _on_problem, HTTPException: _on_http, Exception: _on_bug}
