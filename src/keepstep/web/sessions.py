"""The cookie of a browser session: who logged in, signed. Owns its form; keeps nothing.

A session stands for the token that it was bought with: when that is revoked or expires, the session is over as well. Who
logs out ends that one session: the journal says so, and every server of the installation knows it.
"""

import base64
import binascii
import hashlib
import hmac
import secrets

import msgspec
from msgspec import Struct

from keepstep.core.access import OWNER, Principal
from keepstep.server.registry import SESSION_LIFE_S, SESSION_PREFIX, Registry

COOKIE = "keepstep_session"


class Session(Struct, frozen=True, array_like=True):
    proof: str
    """As the principal's: ``state-dir`` or ``token:<id>``."""
    expires_s: float
    id: str


def seal(principal: Principal, owner_token: str, now_s: float) -> str:
    """The value of the cookie."""
    body = msgspec.msgpack.encode(
        Session(principal.proof, now_s + SESSION_LIFE_S, SESSION_PREFIX + secrets.token_hex(16))
    )
    return f"{_text(body)}.{_text(_sign(body, owner_token))}"


def unseal(cookie: str, registry: Registry, owner_token: str, now_s: float) -> Principal | None:
    """Who it speaks for; None where it is forged, too old, logged out, or its token is no longer good."""
    session = _read(cookie, owner_token)
    if session is None or session.expires_s <= now_s or registry.has_ended(session.id, session.expires_s):
        return None
    return OWNER if session.proof == OWNER.proof else registry.of_token_id(session.proof.partition(":")[2], now_s)


def session_of(cookie: str, owner_token: str) -> str | None:
    """The id of its session; None where it is forged."""
    session = _read(cookie, owner_token)
    return session.id if session is not None else None


def _read(cookie: str, owner_token: str) -> Session | None:
    try:
        body, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in cookie.split("."))
        if not hmac.compare_digest(signature, _sign(body, owner_token)):
            return None
        return msgspec.msgpack.decode(body, type=Session)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        return None


def _sign(body: bytes, owner_token: str) -> bytes:
    key = hashlib.blake2b(owner_token.encode(), digest_size=32, person=b"keepstep-cookie").digest()
    return hmac.digest(key, body, "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
