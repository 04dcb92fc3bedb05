"""What only HTTP says and hears: bodies of requests, and answers beside those of the read side. Computes nothing."""

from typing import Annotated

from msgspec import Meta, Struct

from keepstep.core.drill import DrillKind
from keepstep.wire.requests import API_TOKEN_LIFE_S, Accepted

NAME_MAX = 200


class FieldError(Struct, frozen=True, kw_only=True):
    field: str
    message: str


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong, and what to do about it (RFC 9457)."""

    title: str
    status: int
    detail: str = ""
    type: str = "about:blank"
    errors: tuple[FieldError, ...] = ()
    """Which parts of the request are wrong."""


class ServerView(Struct, frozen=True, kw_only=True):
    identity: str
    """Names this life of the server."""
    version: str
    leads: bool
    """False: it follows; it answers questions and passes requests on."""
    is_led: bool
    """False: nobody leads, as far as it knows: nothing is decided, requests are refused, and answers show how things were."""
    leader: str = ""
    """The server that leads, by its `identity`; empty: nobody does."""
    leader_address: str = ""
    """Where launchers, agents and tools reach it."""
    term: int
    """Under which the leader leads; grows with each new one."""
    entry: int
    """Newest journal entry that it knows."""
    now_s: float


class Reason(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=2000)] = ""
    """For the record."""


class NewDrill(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
    kind: DrillKind
    """See docs/how-to/drills.md."""
    rank: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """Whom to hit; of ``lose-node``, a rank on the node. None leaves it to the server."""


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
    """Who or what it is for."""
    role: str
    """See docs/reference/access.md."""
    tenants: tuple[Annotated[str, Meta(min_length=1, max_length=NAME_MAX)], ...] = ()
    """Whose jobs it may see; empty: all."""
    expires_in_s: Annotated[float, Meta(gt=0, le=1e10)] | None = API_TOKEN_LIFE_S
    """90 days where it is left out; null: never."""


class TokenMade(Struct, frozen=True, kw_only=True):
    accepted: Accepted
    """Its ``subject`` is the id of the token."""
    secret: str
    """Shown this once: the server keeps a digest only."""


class PolicyText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    overrides: Annotated[str, Meta(max_length=200_000)]
    """TOML, see docs/reference/policy.md; empty for the built-in policy."""
