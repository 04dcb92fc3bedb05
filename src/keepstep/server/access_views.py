"""Shapes of answers about tokens, certificates and the policy. No secret is in them: the journal has none."""

from msgspec import Struct


class TokenView(Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    """``api``, or ``join``: good for one certificate."""
    role: str
    name: str
    """Empty, for a join token: any node."""
    tenants: tuple[str, ...]
    """Empty: all."""
    expires_s: float | None
    """By the server's clock; None: never."""
    state: str
    """``good``, ``expired`` or ``used``."""
    by: str
    """Who made it."""
    certificate: str
    """Serial of the certificate that a join token bought."""


class Tokens(Struct, frozen=True, kw_only=True):
    tokens: tuple[TokenView, ...]
    next: str = ""
    total: int = 0


class CertificateView(Struct, frozen=True, kw_only=True):
    serial: str
    role: str
    name: str
    tenants: tuple[str, ...]
    expires_s: float
    state: str
    """``good``, ``replaced`` (good, and renewed since), ``revoked`` or ``expired``."""
    reason: str
    """Of its revocation."""
    revoked_by: str
    token: str
    """Id of the join token that bought it; empty for a renewal."""
    replaces: str


class Certificates(Struct, frozen=True, kw_only=True):
    certificates: tuple[CertificateView, ...]
    next: str = ""
    total: int = 0


class PolicyView(Struct, frozen=True, kw_only=True):
    overrides: str
    """What was set, as it was written; empty for the built-in policy."""
    by: str
    """Who set it; empty where nobody did."""
    effective: str
    """The whole policy as TOML; each value that differs from the built-in one says so."""
