"""Routes of tokens, certificates and the policy. Owns the making of a secret, which leaves in one answer and is not kept."""

import asyncio
import base64
import hmac
from typing import Annotated, Any

import msgspec
from litestar import get, post, put
from litestar.params import HeaderParameter, JSONBody

from keepstep.core.access import Action
from keepstep.server.access_views import Certificates, PolicyView, Tokens
from keepstep.server.http_views import NewToken, PolicyText, TokenMade
from keepstep.server.registry import PREFIX, digest_of, new_secret
from keepstep.web.api.asking import PAGE, Asked, CursorText, Key, Limit, Name, act, ask
from keepstep.web.api.jobs import OptionalReason
from keepstep.web.headers import matches, tag_of
from keepstep.web.problems import ProblemError
from keepstep.wire.requests import Accepted, IssueToken, RevokeCertificate, RevokeToken, SetPolicy

ACCESS: dict[str, Any] = {"action": Action.MANAGE_ACCESS}


@get("/tokens", operation_id="listTokens", tags=["access"], opt=ACCESS)
async def list_tokens(request: Asked, cursor: CursorText = "", limit: Limit = PAGE) -> Tokens:
    """Tokens that were issued and not revoked. No secret is in it: the server has none."""
    return await ask(request, "tokens", Tokens, cursor=cursor, limit=limit)


@post("/tokens", operation_id="createToken", tags=["access"], status_code=201, opt=ACCESS)
async def create_token(request: Asked, data: JSONBody[NewToken], key: Key = None) -> TokenMade:
    """Issue an API token. Its secret is in this answer only; with an Idempotency-Key a repeated request gets it again."""
    secret = _secret(request, key)
    issue = IssueToken(
        digest=digest_of(secret), kind="api", role=data.role, name=data.name, tenants=data.tenants,
        expires_in_s=data.expires_in_s,
    )  # fmt: skip
    return TokenMade(accepted=await act(request, issue, key), secret=secret)


def _secret(request: Asked, key: str | None) -> str:
    """A fresh one; of a request with a key always the same one, so that a repeated request is the same request."""
    if not key:
        return new_secret()
    owner: str = request.app.state.options.owner_token
    made = hmac.digest(owner.encode(), f"token\0{request.user.name}\0{key}".encode(), "sha256")
    return PREFIX + base64.urlsafe_b64encode(made).decode().rstrip("=")


@post("/tokens/{token:str}/revoke", operation_id="revokeToken", tags=["access"], status_code=202, opt=ACCESS)
async def revoke_token(request: Asked, token: Name, key: Key = None) -> Accepted:
    """From now on nobody is known by it."""
    return await act(request, RevokeToken(id=token), key)


@get("/certificates", operation_id="listCertificates", tags=["access"], opt=ACCESS)
async def list_certificates(request: Asked, cursor: CursorText = "", limit: Limit = PAGE) -> Certificates:
    """Certificates of the built-in authority that have not expired long since."""
    return await ask(request, "certificates", Certificates, cursor=cursor, limit=limit)


@post(
    "/certificates/{serial:str}/revoke", operation_id="revokeCertificate", tags=["access"], status_code=202, opt=ACCESS
)
async def revoke_certificate(request: Asked, serial: Name, data: OptionalReason = None, key: Key = None) -> Accepted:
    """From now on nobody is known by it."""
    return await act(request, RevokeCertificate(serial=serial, reason=data.reason if data else ""), key)


@get("/policy", operation_id="getPolicy", tags=["policy"])
async def get_policy(request: Asked) -> PolicyView:
    """The policy that is in force, and which of it was set. Its ETag is what a change must name in If-Match."""
    return await ask(request, "policy", PolicyView)


_setting = asyncio.Lock()
"""Between looking at what is in force and the change there is nobody else's change."""


@put("/policy", operation_id="setPolicy", tags=["policy"], status_code=202, opt={"action": Action.SET_POLICY})
async def set_policy(
    request: Asked, data: JSONBody[PolicyText], key: Key = None,
    if_match: Annotated[str | None, HeaderParameter(name="If-Match", description="ETag of the policy that was read.")] = None,
) -> Accepted:  # fmt: skip
    """Replace what was set before. Nobody's change is lost: it needs the ETag of the policy that it is based on."""
    if if_match is None:
        raise ProblemError(428, "say in If-Match which policy this replaces: its ETag, as GET /api/v1/policy has it")
    async with _setting:
        now = await ask(request, "policy", PolicyView)
        if not matches(if_match, tag_of(msgspec.json.encode(now))) and now.overrides != data.overrides:
            raise ProblemError(412, "the policy was changed since it was read; read it again, and change that")
        return await act(request, SetPolicy(overrides=data.overrides), key)


ROUTES = [
    list_tokens, create_token, revoke_token, list_certificates, revoke_certificate, get_policy, set_policy,
]  # fmt: skip
