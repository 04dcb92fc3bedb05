"""The description of the API, OpenAPI 3.1, made from the routes. Owns what routes cannot say: errors, credentials, examples,
and what the fields mean, which stands in the source beside them."""

import ast
import asyncio
import inspect
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.openapi import OpenAPIConfig

from keepstep import __version__
from keepstep.core import preemptions
from keepstep.review import figures, postmortem
from keepstep.server import (
    access_views,
    fault_views,
    health_views,
    http_views,
    journal_views,
    precision,
    site,
    views,
    whereabouts,
)
from keepstep.web.problems import MEDIA_TYPE
from keepstep.wire import requests

ABOUT = """Questions about jobs, incidents and the fleet, and requests of people. Times are seconds since the epoch by the
server's clock, durations seconds. Lists come in pages: `next` of one page is the `cursor` of the following one. Reads carry an
`ETag`; `If-None-Match` saves the transfer. A write with an `Idempotency-Key` may be repeated. Fields are only ever added."""

CONFIG = OpenAPIConfig(
    title="Keepstep",
    version=__version__,
    description=ABOUT,
    use_handler_docstrings=True,
)

ERRORS = {
    "400": "What was sent is not what the route takes.",
    "401": "No credential, or one that nobody is known by.",
    "403": "The role, or the tenant, does not allow it.",
    "404": "There is no such thing, or it is another tenant's.",
    "409": "Not in the present state of its subject.",
    "412": "The policy was changed since it was read.",
    "413": "The request is too large.",
    "415": "The body must be application/json.",
    "421": "The server is not called by that name.",
    "422": "Understood, and wrong: the detail says how.",
    "428": "If-Match is missing.",
    "503": "Nobody leads now, the journal cannot be written, or too many read; Retry-After says when to ask again.",
}
OF_WRITES = ("409", "413", "415")
OF_POLICY = ("412", "428")

EXAMPLES: dict[str, Any] = {
    "Problem": {"title": "Not Found", "status": 404, "detail": "there is no job 'gtp'; the newest are: gpt, bert"},
    "Reason": {"reason": "fan of the chassis is loud"},
    "NewToken": {"name": "grafana", "role": "viewer", "expires_in_s": 2592000},
    "PolicyText": {"overrides": "[approvals]\nwait_s = 7200\n"},
    "Accepted": {"entry": 4711, "subject": "inc-0042", "repeated": False},
    "Change": {"seq": 4711, "subjects": ["inc-0042", "gpt", "node/n7"]},
}


SHAPES: tuple[ModuleType, ...] = (
    access_views, fault_views, health_views, http_views, journal_views, precision, preemptions, requests, site, views,
    whereabouts, figures, postmortem,
)  # fmt: skip
"""Where the answers and the requests are written down."""


@get("/openapi.json", include_in_schema=False, opt={"action": None})
async def openapi_json(request: Request[Any, Any, Any]) -> Response[bytes]:
    """This description. It is made once, and not on the event loop."""
    state = request.app.state
    if "described" not in state:
        state.described = await asyncio.to_thread(lambda: msgspec.json.encode(describe(state.routes)))
    return Response(state.described, media_type="application/json")


def describe(routes: Sequence[Any]) -> dict[str, Any]:
    """Of routers; needs no site."""
    schema = Litestar(routes, openapi_config=CONFIG, logging_config=None).openapi_schema.to_schema()
    schema["servers"] = [{"url": "/"}]
    components = schema.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "description": "An API token."}}
    schema["security"] = [{"token": []}]
    shapes = components.setdefault("schemas", {})
    shapes["Problem"] = _problem()
    shapes["Change"] = msgspec.json.schema_components([site.Change])[1]["Change"]
    components["responses"] = {
        code: {
            "description": text,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for code, text in ERRORS.items()
    }  # fmt: skip
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _complete(path, method, operation)
    events = schema["paths"]["/api/v1/events"]["get"]["responses"]["200"]["content"]
    events["text/event-stream"] = {
        "schema": {"type": "string", "description": "`data` of each event is a Change, as JSON."}
    }
    for name, meanings in _meanings(shapes):
        for field, text in meanings.items():
            if field in shapes[name].get("properties", {}):
                shapes[name]["properties"][field] = _with_text(shapes[name]["properties"][field], text)
    for name, example in EXAMPLES.items():
        if name in shapes:
            shapes[name]["examples"] = [example]
    return schema


def _problem() -> dict[str, Any]:
    error = {
        "type": "object",
        "required": ["field", "message"],
        "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
    }
    return {
        "type": "object",
        "title": "Problem",
        "description": "What went wrong, and what to do about it (RFC 9457).",
        "required": ["title", "status"],
        "properties": {
            "type": {"type": "string", "description": "Left out: about:blank."},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "For a person."},
            "errors": {"type": "array", "items": error, "description": "Which parts of the request are wrong."},
        },
    }


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    codes = ["400", "401", "403", "404", "421", "422", "503"]
    if method != "get":
        codes += OF_WRITES
    if method == "put":
        codes += OF_POLICY
    for code in sorted(codes):
        operation["responses"][code] = {"$ref": f"#/components/responses/{code}"}
    if method == "get" and path != "/api/v1/events":
        operation["responses"]["304"] = {"description": "The asker has it already: If-None-Match named its ETag."}


def _with_text(shape: dict[str, Any], text: str) -> dict[str, Any]:
    return {"allOf": [shape], "description": text} if "$ref" in shape else shape | {"description": text}


def _meanings(shapes: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Shape -> field -> what the source says of it, in the line below."""
    for module in SHAPES:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef) and node.name in shapes:
                yield node.name, dict(_of_fields(node))


def _of_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, following in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            yield field.target.id, " ".join(str(following.value.value).split())
