"""What both clients do alike: whom they talk to, when a try is repeated, what an answer means, and reading a stream of events.

Does no I/O but reading the state directory.
"""

import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from keepstep.client.calls import Call
from keepstep.client.errors import BY_STATUS, ApiError
from keepstep.server.http_views import Problem
from keepstep.server.state_dir import StateDir, default_state_dir

if TYPE_CHECKING:
    import httpx

Answer = TypeVar("Answer")

TRIES = 5
PAUSE_S = 0.1
PAUSE_MAX_S = 5.0
TIMEOUT_S = 10.0
SILENCE_S = 45.0
"""Three heartbeats of a stream of events: after it, the connection counts as broken."""
PAGE = 200


class Event(Struct, frozen=True, kw_only=True):
    """Something is in the journal that was not; ask again for what you show of it."""

    kind: str
    """``change``, or ``reset``: too much was missed, read all anew."""
    seq: int
    """Newest journal entry."""
    subjects: tuple[str, ...]
    """What the new entries are about; empty: too many to say."""


class _Body(Struct, frozen=True):
    seq: int
    subjects: tuple[str, ...]


def where(url: str | None, token: str | None, state_dir: str | Path | None) -> tuple[str, dict[str, str], Any]:
    """Base URL, headers, and what certificates are checked against. Raises ValueError where nothing says whom to ask."""
    state = StateDir(Path(state_dir) if state_dir is not None else default_state_dir())
    if url is None:
        url = state.http_served()
    if url is None and state.http() is not None:
        raise ValueError(
            f"the server that wrote {state.http_file} does not run any more: start it again, or name a url"
        )
    if url is None:
        raise ValueError(f"no server writes its HTTP address to {state.path}; name its url, or its state_dir")
    if token is None:
        if not state.token_file.exists():
            raise ValueError(
                f"there is no token file in {state.path}; pass a token, as `keepstep token create` makes one"
            )
        token = state.token()
    authority = state.path / "ca" / "authority.pem"
    verify: Any = str(authority) if url.startswith("https:") and authority.exists() else True
    return url.rstrip("/"), {"Authorization": f"Bearer {token}", "User-Agent": "keepstep-client"}, verify


def prepared(call: Call[Any]) -> dict[str, Any]:
    """Arguments of httpx's ``request``. A write gets a key, so that it may be tried again."""
    headers = dict(call.headers)
    content = None
    if call.method != "GET":
        headers["Idempotency-Key"] = secrets.token_hex(16)
    if call.body is not None:
        headers["Content-Type"], content = "application/json", msgspec.json.encode(call.body)
    return {
        "method": call.method, "url": call.path, "params": call.params, "headers": headers, "content": content,
    }  # fmt: skip


def read(response: "httpx.Response", kind: type[Answer]) -> Answer:
    """The answer. Raises ApiError."""
    if response.is_success:
        return msgspec.json.decode(response.content, type=kind)
    raise error_of(response.status_code, response.content)


def error_of(status: int, body: bytes) -> ApiError:
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.DecodeError:
        return ApiError(status, f"the server answered {status}, and not as Keepstep does: {body[:200]!r}")
    return BY_STATUS.get(status, ApiError)(status, problem.detail or problem.title, problem.errors)


def pause_s(attempt: int, retry_after: str = "") -> float:
    """Before the next try: twice as long each time, spread so that many clients do not come back as one."""
    told = float(retry_after) if retry_after.isdecimal() else 0.0
    return min(PAUSE_MAX_S, max(told, PAUSE_S * float(2**attempt))) * random.uniform(0.75, 1.25)


class EventReader:
    """Lines of a stream of events -> events. Remembers the last one, to go on from there."""

    def __init__(self) -> None:
        self.last = ""
        self._kind, self._data, self._id = "", "", ""

    def headers(self) -> dict[str, str]:
        return {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.last} if self.last else {})

    def begin(self) -> None:
        """Of a new connection: what was half read is gone."""
        self._kind, self._data, self._id = "", "", ""

    def line(self, text: str) -> Iterator[Event]:
        """The event that ends with this line, if one does."""
        field, _, value = text.partition(": ")
        match field:
            case "id":
                self._id = value
            case "event":
                self._kind = value
            case "data":
                self._data = value
            case "" if not text and self._data:
                body = msgspec.json.decode(self._data, type=_Body)
                event = Event(kind=self._kind, seq=body.seq, subjects=body.subjects)
                self.last = self._id or self.last
                self.begin()
                yield event
