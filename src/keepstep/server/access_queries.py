"""The read side of who was let in, and of the policy that holds. Beside ``queries``, which has the list of questions."""

from keepstep.core import facts as f
from keepstep.server.access_views import Certificates, CertificateView, PolicyView, Tokens, TokenView
from keepstep.server.desk import Desk
from keepstep.server.paging import LIMIT_MAX, page
from keepstep.server.policy_file import read_policy
from keepstep.server.policy_text import policy_text


def tokens(desk: Desk, cursor: str = "", limit: int = LIMIT_MAX) -> Tokens:
    """Those that were not revoked, newest first. Whoever is bound to tenants sees the tokens of these."""
    known = [token for token in reversed(desk.registry.tokens.values()) if _of(desk, token.tenants)]
    found = page(known, len(known), cursor, limit)
    return Tokens(tokens=tuple(_token(desk, token) for token in found.items), next=found.next, total=found.total)


def certificates(desk: Desk, cursor: str = "", limit: int = LIMIT_MAX) -> Certificates:
    """Those that have not been forgotten, some time after their end; newest first."""
    known = [one for one in reversed(desk.registry.certificates.values()) if _of(desk, one.tenants)]
    replaced = {one.replaces for one in desk.registry.certificates.values() if one.replaces}
    found = page(known, len(known), cursor, limit)
    views = tuple(_certificate(desk, one, one.serial in replaced) for one in found.items)
    return Certificates(certificates=views, next=found.next, total=found.total)


def policy(desk: Desk) -> PolicyView:
    known = desk.registry.policy
    overrides = known.overrides if known is not None else ""
    return PolicyView(
        overrides=overrides, by=known.by if known is not None else "", effective=policy_text(read_policy(overrides))
    )


def _of(desk: Desk, tenants: tuple[str, ...]) -> bool:
    return not desk.tenants or (bool(tenants) and set(tenants) <= set(desk.tenants))


def _token(desk: Desk, token: f.TokenIssued) -> TokenView:
    used = desk.registry.used.get(token.id, "")
    expired = token.expires_s is not None and token.expires_s <= desk.now_s
    return TokenView(
        id=token.id, kind=token.kind, role=token.role, name=token.name, tenants=token.tenants,
        expires_s=token.expires_s, state="used" if used else "expired" if expired else "good", by=token.by,
        certificate=used,
    )  # fmt: skip


def _certificate(desk: Desk, one: f.CertificateIssued, replaced: bool) -> CertificateView:
    word = desk.registry.revoked.get(one.serial)
    state = "replaced" if replaced else "good"
    if one.expires_s <= desk.now_s:
        state = "expired"
    if word is not None:
        state = "revoked"
    return CertificateView(
        serial=one.serial, role=one.role, name=one.name, tenants=one.tenants, expires_s=one.expires_s, state=state,
        reason=word.reason if word is not None else "", revoked_by=word.by if word is not None else "",
        token=one.token, replaces=one.replaces,
    )  # fmt: skip
