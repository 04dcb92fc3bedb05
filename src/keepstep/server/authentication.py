"""Who a connection or an HTTP request is: the owner of the state directory, a token that was issued, or a certificate.

Owns what each proof is good for. Must not judge what is asked for afterwards: that is core.access, admission and requests.
"""

import hmac
from collections.abc import Callable
from typing import Protocol

import msgspec

from keepstep.core.access import GRANTS, OWNER, Action, Principal, Role, refusal
from keepstep.ports import Clock
from keepstep.server.registry import Registry
from keepstep.wire.messages import Hello, Refused

HELLO_ROLES: dict[str, Action | None] = {
    "launcher": Action.SUBMIT_JOB,
    "front": Action.SUBMIT_JOB,
    "agent": Action.REPORT_NODE,
    "tool": None,
}
"""What somebody who says Hello in that role must be allowed to do; None: each thing is judged when it is asked."""
NODES = (Role.LAUNCHER, Role.AGENT)
"""Roles that are bound to one node: the name of the identity is the name of the node."""
WRONG_TOKEN = (
    "wrong token: use the `token` file of the server's state directory, or a token of `keepstep token create` that is "
    "neither expired nor revoked; a join token buys a certificate first, with `keepstep join`"
)


class Peer(Protocol):
    """What a connection knows of its other end."""

    @property
    def peer_serial(self) -> str | None:
        """Of the client certificate that TLS has verified; None without one."""
        ...


class Authentication:
    """Of everybody who says Hello. ``token`` is the secret of the state directory."""

    def __init__(self, token: str, registry: Callable[[], Registry], clock: Clock) -> None:
        self._token = token
        self._registry = registry
        self._clock = clock

    def identify(self, hello: Hello, connection: Peer) -> Principal | Refused:
        """Who it is; or why nobody who may say such a Hello."""
        found = self._proven(hello, connection.peer_serial)
        if isinstance(found, Refused):
            return found
        why = _unfit(found, hello)
        return Refused(reason=why) if why else found

    def holds(self, principal: Principal) -> bool:
        """Whether what it was identified by is still good: not revoked, not expired, and still says the same of it."""
        return self._registry().holds(principal, self._clock.now_s())

    def is_revoked(self, principal: Principal) -> bool:
        """Whether its proof was taken back since it was identified."""
        kind, _, id = principal.proof.partition(":")
        registry = self._registry()
        return (kind == "token" and id not in registry.tokens) or (kind == "certificate" and id in registry.revoked)

    def has_run_out(self, principal: Principal, grace_s: float) -> bool:
        """Whether its certificate expired more than ``grace_s`` ago. A token is asked about with each request instead."""
        kind, _, serial = principal.proof.partition(":")
        return kind == "certificate" and self._registry().is_over(serial, self._clock.now_s() - grace_s)

    def expires_in_s(self, connection: Peer) -> float | None:
        """How long the client's certificate still holds; None where it shows none."""
        serial = connection.peer_serial
        known = self._registry().certificates.get(serial) if serial is not None else None
        return known.expires_s - self._clock.now_s() if known is not None else None

    def _proven(self, hello: Hello, serial: str | None) -> Principal | Refused:
        """A token, where one is shown, wins over the certificate: it is the person who speaks, on a node that is known."""
        now_s, registry = self._clock.now_s(), self._registry()
        if not hello.token:
            return Refused(reason=WRONG_TOKEN) if serial is None else _of_certificate(registry, serial, now_s)
        if serial is not None and isinstance(known := _of_certificate(registry, serial, now_s), Refused):
            return known
        principal = identify_bearer(registry, self._token, hello.token, now_s)
        if principal is None:
            return Refused(reason=WRONG_TOKEN)
        if principal == OWNER:
            return msgspec.structs.replace(OWNER, name=hello.user or OWNER.name)
        return principal


def _of_certificate(registry: Registry, serial: str, now_s: float) -> Principal | Refused:
    principal = registry.of_certificate(serial, now_s)
    if principal is not None:
        return principal
    what = "was revoked" if serial in registry.revoked else "has expired, or another authority of that name issued it"
    return Refused(reason=f"certificate {serial} {what}; join anew with `keepstep join SERVER TOKEN`")


def _unfit(principal: Principal, hello: Hello) -> str:
    """Why this identity may not say this Hello; empty where it may."""
    if hello.role not in HELLO_ROLES:
        return f"unknown role {hello.role!r}; known: {', '.join(HELLO_ROLES)}"
    action = HELLO_ROLES[hello.role]
    if action is not None and action not in GRANTS[principal.role]:
        return f"{principal.name} has the role {principal.role.value} and may not connect as {hello.role}"
    if principal.role in NODES and hello.role == "front":
        # Fronts bear witness that launchers are dead, on whatever node: no node may say that of another one.
        return f"{principal.name} is a node, and a front speaks for the launchers of a whole run: connect as a person"
    if principal.role in NODES and action is not None and hello.node != principal.name:
        return (
            f"this identity is node {principal.name!r}, and it says Hello as {hello.node or 'no node'!r}: start it with "
            f"--node {principal.name}, or join that node with a token of its own"
        )
    return ""


def refusal_to_forward(asker: Principal) -> str:
    """Why it may not speak for somebody whom it has identified; empty where it may. The owner may: it can call itself
    whatever it likes."""
    return "" if asker.proof == OWNER.proof else refusal(asker, Action.FORWARD)


def identify_bearer(registry: Registry, owner_token: str, secret: str, now_s: float) -> Principal | None:
    """Who a secret speaks for, over HTTP or the wire: whoever can read the token file owns the state directory; else the
    token must have been issued. None where it is neither."""
    if hmac.compare_digest(secret.encode(), owner_token.encode()):
        return OWNER
    return registry.of_token(secret, now_s)
