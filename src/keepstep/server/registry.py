"""Who was let in, and what was set: tokens, certificates and the policy, as the journal says. Folded like the World.

Owns what a secret proves. The journal holds digests of secrets only.
"""

import hashlib
import secrets

from msgspec import Struct, field

from keepstep.core import facts as f
from keepstep.core.access import Principal, Role
from keepstep.core.decision import Record

SECRET_BYTES = 32
PREFIX = "kst_"
"""Of every secret that is handed out, so that scanners of leaked secrets know it."""


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: str) -> str:
    """What is kept of a secret: it has 256 random bits, so nobody can guess it from a plain hash."""
    return hashlib.blake2b(secret.encode(), digest_size=32).hexdigest()


class Registry(Struct, kw_only=True):
    tokens: dict[str, f.TokenIssued] = field(default_factory=dict)
    """By id; revoked ones are gone."""
    by_digest: dict[str, str] = field(default_factory=dict)
    certificates: dict[str, f.CertificateIssued] = field(default_factory=dict)
    """By serial; revoked and replaced ones stay until they expire."""
    revoked: dict[str, f.CertificateRevoked] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    """Id of a join token -> serial of the certificate that it bought."""
    policy: f.PolicySet | None = None
    term: int = 0
    """The newest under which a server led."""
    next_token: int = 1

    def note(self, record: Record, at_s: float) -> None:
        match record:
            case f.TokenIssued():
                self.tokens[record.id] = record
                self.by_digest[record.digest] = record.id
                self.next_token += 1
            case f.TokenRevoked() if record.id in self.tokens:
                self.by_digest.pop(self.tokens.pop(record.id).digest, None)
            case f.CertificateIssued():
                self.certificates[record.serial] = record
                if record.token:
                    self.used[record.token] = record.serial
                for serial in [s for s, known in self.certificates.items() if known.expires_s < at_s]:
                    del self.certificates[serial]
            case f.CertificateRevoked():
                self.revoked[record.serial] = record
            case f.PolicySet():
                self.policy = record
            case f.ServerStarted():
                self.term = max(self.term, record.term)
            case _:
                pass

    def token(self, secret: str, now_s: float) -> f.TokenIssued | None:
        """The token that a secret is, as long as it is good."""
        id = self.by_digest.get(digest_of(secret))
        known = self.tokens.get(id) if id is not None else None
        if known is None or (known.expires_s is not None and known.expires_s <= now_s):
            return None
        return None if known.kind == "join" and known.id in self.used else known

    def of_token(self, secret: str, now_s: float) -> Principal | None:
        """Who an API token speaks for; None where it is none, or expired."""
        known = self.token(secret, now_s)
        if known is None or known.kind != "api":
            return None
        return Principal(name=known.name, role=Role(known.role), tenants=known.tenants, proof=f"token:{known.id}")

    def of_certificate(self, serial: str, now_s: float) -> Principal | None:
        """Who a certificate of ours speaks for; None where it was revoked, has expired, or was never issued."""
        known = self.certificates.get(serial)
        if known is None or serial in self.revoked or known.expires_s <= now_s:
            return None
        return Principal(
            name=known.name, role=Role(known.role), tenants=known.tenants, proof=f"certificate:{known.serial}"
        )
