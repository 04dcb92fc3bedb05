"""The cookie of a browser session: who logged in, signed. Owns its form and its life; keeps nothing.

A session stands for the token that it was bought with: when that is revoked or expires, the session is over as well.
"""

import base64
import binascii
import hashlib
import hmac

import msgspec
from msgspec import Struct

from keepstep.core.access import OWNER, Principal
from keepstep.server.registry import Registry

COOKIE = "keepstep_session"
LIFE_S = 12 * 3600.0


class Session(Struct, frozen=True, array_like=True):
    proof: str
    """As the principal's: ``state-dir`` or ``token:<id>``."""
    expires_s: float


def seal(principal: Principal, owner_token: str, now_s: float) -> str:
    """The value of the cookie."""
    body = msgspec.msgpack.encode(Session(principal.proof, now_s + LIFE_S))
    return f"{_text(body)}.{_text(_sign(body, owner_token))}"


def unseal(cookie: str, registry: Registry, owner_token: str, now_s: float) -> Principal | None:
    """Who it speaks for; None where it is forged, too old, or its token is no longer good."""
    try:
        body, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in cookie.split("."))
        if not hmac.compare_digest(signature, _sign(body, owner_token)):
            return None
        session = msgspec.msgpack.decode(body, type=Session)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        return None
    if session.expires_s <= now_s:
        return None
    return OWNER if session.proof == OWNER.proof else registry.of_token_id(session.proof.partition(":")[2], now_s)


def _sign(body: bytes, owner_token: str) -> bytes:
    key = hashlib.blake2b(owner_token.encode(), digest_size=32, person=b"keepstep-cookie").digest()
    return hmac.digest(key, body, "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
