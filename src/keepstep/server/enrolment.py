"""How somebody gets a certificate: for a join token, once; or in exchange for the one that it still has.

The journal decides what is used up: the fact that a certificate was issued is in it before the certificate leaves. Must not
judge what the certificate is good for: that is authentication.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from keepstep.adapters.pki.authority import Authority, Signed, hosts_asked_for
from keepstep.adapters.pki.names import Subject
from keepstep.core.access import Principal, Role
from keepstep.core.facts import CertificateIssued, Fact, TokenIssued
from keepstep.core.ids import Session
from keepstep.ports import Clock
from keepstep.server.registry import Registry
from keepstep.wire.messages import Enrol, Enrolled, Refused

NODE_LIFE_S = 24 * 3600.0
"""Of nodes. Their link renews it at two thirds; a node that was off for longer joins anew."""
REPLICA_LIFE_S = 90 * 86400.0
LIVES_S: dict[Role, float] = {Role.AGENT: NODE_LIFE_S, Role.LAUNCHER: NODE_LIFE_S, Role.REPLICA: REPLICA_LIFE_S}
"""Roles that certificates are for, and how long they hold."""
RENEWAL_PAUSE_S = 60.0
"""Between two renewals of one certificate: each is an entry in the journal."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
USED_NOW = "this join token was used a moment ago by somebody else; make a new one"


class Peer(Protocol):
    @property
    def peer_serial(self) -> str | None: ...

    @property
    def encrypted(self) -> bool: ...


class Enrolment:
    """``take`` puts a fact into the journal as the only one of its session, and returns its entry's number, 0 where that
    session had been heard before."""

    def __init__(
        self,
        authority: Authority,
        registry: Callable[[], Registry],
        clock: Clock,
        take: Callable[[Fact, Session], Awaitable[int]],
        lives_s: Mapping[Role, float] = LIVES_S,
    ) -> None:
        self._authority = authority
        self._registry = registry
        self._clock = clock
        self._take = take
        self._lives_s = lives_s
        self._renewed_s: dict[str, float] = {}
        self._joining: set[str] = set()
        """Ids of tokens whose certificate is on its way to the journal."""

    async def enrol(self, message: Enrol, peer: Peer) -> Enrolled | Refused:
        """The certificate, once it is in the journal; or why there is none."""
        if not peer.encrypted:
            return Refused(reason="certificates are handed out over TLS only: join at the tls: address of the server")
        try:
            return await (self._join(message) if message.token else self._renew(message, peer.peer_serial))
        except ValueError as error:
            return Refused(reason=str(error))

    async def _join(self, message: Enrol) -> Enrolled:
        token = self._registry().token(message.token, self._clock.now_s())
        if token is None or token.kind != "join":
            raise ValueError(
                "this join token is unknown, used up, revoked or expired; make a new one with `keepstep token create --join`"
            )
        name = token.name or message.name
        if not name:
            raise ValueError("the token leaves open who joins: name the node with --name")
        if not NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name of a node: letters, digits, dots, dashes and underscores, at most 253"
            )
        if token.id in self._joining:
            raise ValueError(USED_NOW)
        who = Principal(name=name, role=_certifiable(token), tenants=token.tenants)
        self._joining.add(token.id)
        try:
            return await self._issue(message.request, who, Session(f"enrol-{token.id}"), token=token.id)
        finally:
            self._joining.discard(token.id)

    async def _renew(self, message: Enrol, serial: str | None) -> Enrolled:
        now_s = self._clock.now_s()
        who = self._registry().of_certificate(serial, now_s) if serial is not None else None
        if who is None or serial is None:
            raise ValueError(
                "neither a join token nor a certificate that holds; join with `keepstep join SERVER TOKEN`"
            )
        if now_s - self._renewed_s.get(serial, -RENEWAL_PAUSE_S) < RENEWAL_PAUSE_S:
            raise ValueError(f"certificate {serial} was renewed less than {RENEWAL_PAUSE_S:.0f} s ago; use that one")
        self._renewed_s = {known: at_s for known, at_s in self._renewed_s.items() if now_s - at_s < RENEWAL_PAUSE_S}
        self._renewed_s[serial] = now_s
        # Each of a certificate's renewals is a session of its own: a lost answer is asked for again.
        return await self._issue(message.request, who, Session(f"renew-{serial}-{now_s:.3f}"), replaces=serial)

    async def _issue(
        self, request: bytes, who: Principal, session: Session, *, token: str = "", replaces: str = ""
    ) -> Enrolled:
        now_s, life_s = self._clock.now_s(), self._lives_s[who.role]
        hosts = hosts_asked_for(request) if who.role is Role.REPLICA else ()
        subject = Subject(role=who.role.value, name=who.name, hosts=hosts)
        signed: Signed = self._authority.sign(request, subject, now_s, life_s)
        issued = CertificateIssued(
            serial=signed.serial, role=who.role.value, name=who.name, tenants=who.tenants, expires_s=now_s + life_s,
            token=token, replaces=replaces,
        )  # fmt: skip
        if not await self._take(issued, session):
            raise ValueError(USED_NOW)
        return Enrolled(certificate=signed.certificate, authority=self._authority.certificate_pem)


def _certifiable(token: TokenIssued) -> Role:
    role = Role(token.role)
    if role not in LIVES_S:
        raise ValueError(f"no certificate is made for the role {role.value}: it takes an API token")
    return role
