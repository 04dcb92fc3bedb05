"""Headers of every answer: what a browser may do with it, and whether it may be kept. Owns tags of content too."""

import hashlib
from typing import Any

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

CSP = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with none at all, a browser hides the origin of our own login form from us
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
HSTS = "max-age=31536000"


async def guard_headers(message: Message, scope: Scope) -> None:
    """A hook before every message is sent; what a route has set itself stays."""
    if message["type"] != "http.response.start":
        return
    headers = MutableScopeHeaders.from_message(message)
    for name, value in SECURITY.items():
        headers.setdefault(name, value)
    if scope["app"].state.options.secure:
        headers.setdefault("strict-transport-security", HSTS)


def tag_of(body: bytes) -> str:
    """Weak: the same content, whatever its coding."""
    return f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def matches(header: str, tag: str) -> bool:
    """Of If-Match and If-None-Match, compared weakly."""
    wanted = {part.strip().removeprefix("W/") for part in header.split(",")}
    return "*" in wanted or tag.removeprefix("W/") in wanted


class Tagged:
    """ASGI middleware of reads: an ETag of the content, and 304 where the asker has it already."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or scope["method"] not in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        asked = dict(scope["headers"]).get(b"if-none-match", b"").decode("latin-1")
        held: list[Any] = []

        async def tag(message: Message) -> None:
            if message["type"] == "http.response.start":
                held.append(message)
                return
            if held:
                start = held.pop()
                message = _tagged(start, message, asked)
                await send(start)
            await send(message)

        await self.app(scope, receive, tag)


def _tagged(start: Any, message: Any, asked: str) -> Any:
    """Sets the tag on the start of the answer; gives the rest of it."""
    if start["status"] != 200 or message.get("more_body"):
        return message
    headers = MutableScopeHeaders.from_message(start)
    tag = tag_of(message.get("body", b""))
    headers["etag"] = tag
    headers["cache-control"] = "private, no-cache"
    if not asked or not matches(asked, tag):
        return message
    start["status"] = 304
    for name in ("content-length", "content-type"):
        if name in headers:
            del headers[name]
    return {"type": "http.response.body", "body": b"", "more_body": False}
