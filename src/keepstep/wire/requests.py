"""What a person may ask of the server, over the wire and over HTTP alike. Owns the shapes; server.requests judges them."""

from typing import Literal

from msgspec import Struct

from keepstep.core.drill import DrillKind


class StopJob(Struct, frozen=True, kw_only=True, tag=True):
    """End a job: SIGTERM, then SIGKILL."""

    job: str
    reason: str = ""


class BeginDrill(Struct, frozen=True, kw_only=True, tag=True):
    """Inject a fault into a job that is steady, and score how it is recovered from."""

    job: str
    kind: DrillKind
    rank: int | None = None
    """Whom to hit; None leaves it to the server."""


class Hold(Struct, frozen=True, kw_only=True, tag=True):
    """Keep new work off a node or a device until whoever asked lifts it again."""

    resource: str
    reason: str = ""


class Unhold(Struct, frozen=True, kw_only=True, tag=True):
    """Lift one's own hold."""

    resource: str


class Decide(Struct, frozen=True, kw_only=True, tag=True):
    """Answer what an incident or a resource waits for."""

    subject: str
    granted: bool


class SetPolicy(Struct, frozen=True, kw_only=True, tag=True):
    """TOML, see docs/reference/policy.md; empty for the built-in policy."""

    overrides: str


API_TOKEN_LIFE_S = 90 * 86_400.0
"""Of an API token for which nothing else is asked."""


class IssueToken(Struct, frozen=True, kw_only=True, tag=True):
    """The digest of a secret that the asker has made: the secret itself never travels here."""

    digest: str
    kind: Literal["api", "join"]
    role: str
    name: str = ""
    tenants: tuple[str, ...] = ()
    expires_in_s: float | None = None
    """None: never."""


class RevokeToken(Struct, frozen=True, kw_only=True, tag=True):
    id: str


class EndSession(Struct, frozen=True, kw_only=True, tag=True):
    """Log a browser out. Whoever asks holds its cookie: only that says which session it is."""

    session: str


class RevokeCertificate(Struct, frozen=True, kw_only=True, tag=True):
    serial: str
    reason: str = ""


class NoteCompacted(Struct, frozen=True, kw_only=True, tag=True):
    """Entries up to ``upto`` are in an archive file now, and a snapshot covers them; as facts.Compacted."""

    upto: int
    hash: str
    archive: str
    digest: str


Request = (
    StopJob
    | BeginDrill
    | Hold
    | Unhold
    | Decide
    | SetPolicy
    | IssueToken
    | RevokeToken
    | EndSession
    | RevokeCertificate
    | NoteCompacted
)


class Accepted(Struct, frozen=True, kw_only=True):
    """It is in the journal."""

    entry: int
    """Number of the journal entry."""
    subject: str
    """What it is about: a job, a resource, an incident, the id of a token, a serial."""
    repeated: bool = False
    """The same request with the same key had been accepted before; nothing was done again."""
