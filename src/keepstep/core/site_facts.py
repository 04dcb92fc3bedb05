"""Facts of people, identities and the installation itself. Owns their shapes; ``core.facts`` has them in its union, and there
everybody finds them.
"""

from typing import Literal

from msgspec import Struct

from keepstep.core.drill import DrillKind
from keepstep.core.ids import IncidentId, JobId, ResourceId


class HoldRequested(Struct, frozen=True, kw_only=True, tag=True):
    resource: ResourceId
    source: str
    by: str
    reason: str = ""


class HoldLifted(Struct, frozen=True, kw_only=True, tag=True):
    resource: ResourceId
    source: str
    by: str


class Approved(Struct, frozen=True, kw_only=True, tag=True):
    """A person's answer to an incident or a resource that waits for one."""

    subject: str
    by: str
    granted: bool


class DrillRequested(Struct, frozen=True, kw_only=True, tag=True):
    """A person wants to see a fault of this kind recovered from."""

    job: JobId
    kind: DrillKind
    by: str
    rank: int | None = None
    """Whom to hit; of ``lose-node``, a rank on the node. None leaves it to chance, which is a counter."""


class ServerStarted(Struct, frozen=True, kw_only=True, tag=True):
    """A server took the journal over. Sessions are confirmed again from here."""

    server: str
    version: str
    term: int = 0
    """Of its leadership; grows with every server that leads. Orders carry it: those of an older term are refused."""


class PolicySet(Struct, frozen=True, kw_only=True, tag=True):
    """From now on the policy is the built-in one with these overrides (TOML, see docs/reference/policy.md), nothing else."""

    overrides: str
    by: str


class TokenIssued(Struct, frozen=True, kw_only=True, tag=True):
    """A secret was handed out; the journal has its digest only."""

    id: str
    digest: str
    """Hex of BLAKE2b-256 over the secret (256 random bits, so a plain hash is enough)."""
    kind: Literal["api", "join"]
    """``join``: used up by the first certificate that it buys."""
    role: str
    """See core.access."""
    tenants: tuple[str, ...] = ()
    """Empty: all."""
    name: str = ""
    """Of a person, a program, or (``join``) the node that may call itself so; empty for any node."""
    expires_s: float | None = None
    """By the server's clock; None: never."""
    by: str = ""


class TokenRevoked(Struct, frozen=True, kw_only=True, tag=True):
    id: str
    by: str


class CertificateIssued(Struct, frozen=True, kw_only=True, tag=True):
    """The built-in authority signed one: for a join token, or in exchange for one that was about to expire."""

    serial: str
    """Hex."""
    role: str
    name: str
    tenants: tuple[str, ...] = ()
    expires_s: float = 0.0
    token: str = ""
    """Id of the join token that it used up; empty for a renewal."""
    replaces: str = ""
    """Serial of the certificate that it renews."""


class CertificateRevoked(Struct, frozen=True, kw_only=True, tag=True):
    serial: str
    by: str
    reason: str = ""


class RequestRefused(Struct, frozen=True, kw_only=True, tag=True):
    """Somebody asked for what they may not have. Equal ones within a minute are told as one, with their count."""

    who: str
    """Name of the identity, or where the connection came from while nobody is known."""
    what: str
    """Route, question, order or role that was asked for."""
    why: str
    count: int = 1


class CurvePoint(Struct, frozen=True, array_like=True):
    after_s: float
    """Since the incident was opened; negative before it."""
    step: int
    loss: float | None
    step_time_s: float


class CurveNoted(Struct, frozen=True, kw_only=True, tag=True):
    """How a job went around an incident: what the server's memory held, thinned, so that a review can be written from the
    journal alone. ``part`` comes twice: when it was opened, and when it was closed."""

    job: JobId
    incident: IncidentId
    part: Literal["before", "after"]
    points: tuple[CurvePoint, ...]


class Compacted(Struct, frozen=True, kw_only=True, tag=True):
    """Entries up to ``upto`` were moved to an archive file. Its last hash is the ``prev`` of the first one that stayed, and
    the state after it was kept, so that the chain can be proven with the archive and goes on without it."""

    upto: int
    hash: str
    """Of entry ``upto``."""
    archive: str
    """Name of the file."""
    digest: str
    """BLAKE2b-256 of its bytes."""
    by: str
