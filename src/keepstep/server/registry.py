"""Who was let in, and what was set: tokens, certificates and the policy, as the journal says. Folded like the World.

Owns what a secret proves. The journal holds digests of secrets only.
"""

import hashlib
import secrets

import msgspec
from msgspec import Struct, field

from keepstep.core import facts as f
from keepstep.core.access import OWNER, Principal, Role
from keepstep.core.decision import Record

SECRET_BYTES = 32
PREFIX = "kst_"
"""Of every secret that is handed out, so that scanners of leaked secrets know it."""

LOOK_FIRST = 256

SESSION_PREFIX = "session-"
"""Of the ids of browser sessions; no token is called so."""
SESSION_LIFE_S = 12 * 3600.0
ENDED_MAX = 10_000


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
    """By serial; revoked and replaced ones stay until some time after they expire."""
    revoked: dict[str, f.CertificateRevoked] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    """Id of a join token -> serial of the certificate that it bought."""
    ended: dict[str, float] = field(default_factory=dict)
    """Browser sessions that were logged out, oldest first -> until when their cookies would be good at the latest."""
    ended_until_s: float = 0.0
    """Sessions that end by then are over: where more are logged out than are remembered, the older ones all are."""
    policy: f.PolicySet | None = None
    term: int = 0
    """The newest under which a server led."""
    next_token: int = 1
    """Grows with every id that was given, whether it came into the journal or not (yet): no two tokens share one."""
    look_at: int = LOOK_FIRST
    """So many certificates, and expired ones are looked for."""

    def note(self, record: Record, at_s: float) -> None:
        match record:
            case f.TokenIssued():
                self.tokens[record.id] = record
                self.by_digest[record.digest] = record.id
                self.next_token = max(self.next_token, _number_of(record.id) + 1)
            case f.TokenRevoked() if record.id in self.tokens:
                self.by_digest.pop(self.tokens.pop(record.id).digest, None)
            case f.TokenRevoked() if record.id.startswith(SESSION_PREFIX):
                self._end_session(record.id, at_s)
            case f.CertificateIssued():
                self.certificates[record.serial] = record
                if record.token:
                    self.used[record.token] = record.serial
                if (word := self.revoked.get(record.replaces)) is not None:
                    # It was revoked while this renewal was on its way to the journal.
                    self.revoked[record.serial] = msgspec.structs.replace(word, serial=record.serial)
                self._forget_expired(at_s)
            case f.CertificateRevoked():
                self._revoke(record)
            case f.PolicySet():
                self.policy = record
            case f.ServerStarted():
                self.term = max(self.term, record.term)
            case _:
                pass

    def _end_session(self, id: str, at_s: float) -> None:
        self.ended[id] = at_s + SESSION_LIFE_S
        while len(self.ended) > ENDED_MAX or self.ended[next(iter(self.ended))] <= at_s:
            until_s = self.ended.pop(next(iter(self.ended)))
            self.ended_until_s = max(self.ended_until_s, until_s)

    def has_ended(self, session: str, expires_s: float) -> bool:
        """Whether a browser session was logged out."""
        return session in self.ended or expires_s <= self.ended_until_s

    def _forget_expired(self, at_s: float) -> None:
        """Now and then: looking at all of them for each new one would make a long journal slow to read."""
        if len(self.certificates) < self.look_at:
            return
        for serial in [s for s, known in self.certificates.items() if known.expires_s < at_s]:
            del self.certificates[serial]
        self.look_at = max(LOOK_FIRST, 2 * len(self.certificates))

    def _revoke(self, word: f.CertificateRevoked) -> None:
        """With all that it was renewed into: a thief may have been quicker."""
        self.revoked[word.serial] = word
        for known in list(self.certificates.values()):  # oldest first: a renewal comes after what it renews
            if known.replaces in self.revoked:
                self.revoked.setdefault(known.serial, msgspec.structs.replace(word, serial=known.serial))

    def new_token_id(self) -> str:
        """Two that are asked for within one pass of the loop get two: neither is in the journal yet."""
        self.next_token += 1
        return f"t{self.next_token - 1}"

    def holds(self, principal: Principal, now_s: float) -> bool:
        """Whether its proof is still good, and still says the same of it."""
        if principal.proof == OWNER.proof:
            return True
        kind, _, id = principal.proof.partition(":")
        known = self.of_certificate(id, now_s) if kind == "certificate" else self.of_token_id(id, now_s)
        return known == principal

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
        return self.of_token_id(known.id, now_s) if known is not None else None

    def of_token_id(self, id: str, now_s: float) -> Principal | None:
        """The same of a token that was shown before."""
        known = self.tokens.get(id)
        if known is None or known.kind != "api" or (known.expires_s is not None and known.expires_s <= now_s):
            return None
        return Principal(name=known.name, role=Role(known.role), tenants=known.tenants, proof=f"token:{known.id}")

    def is_over(self, serial: str, since_s: float) -> bool:
        """Whether a certificate had expired by then."""
        known = self.certificates.get(serial)
        return known is None or known.expires_s <= since_s

    def of_certificate(self, serial: str, now_s: float) -> Principal | None:
        """Who a certificate of ours speaks for; None where it was revoked, has expired, or was never issued."""
        known = self.certificates.get(serial)
        if known is None or serial in self.revoked or known.expires_s <= now_s:
            return None
        return Principal(
            name=known.name, role=Role(known.role), tenants=known.tenants, proof=f"certificate:{known.serial}"
        )


def _number_of(token: str) -> int:
    number = token.removeprefix("t")
    return int(number) if number.isdecimal() else 0
