"""Join tokens and renewals against a real hub, loop and authority: used up stays used up, and the journal knows first."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from cryptography import x509
from tests.web.site import Rig, running_site

from keepstep.adapters.pki.authority import Authority
from keepstep.adapters.pki.names import serial_text, subject_of
from keepstep.adapters.pki.request import new_key_and_request
from keepstep.core import facts as f
from keepstep.core.access import Principal, Role
from keepstep.server.enrolment import NODE_LIFE_S, RENEWAL_PAUSE_S, REPLICA_LIFE_S, Enrolment
from keepstep.server.registry import digest_of, new_secret
from keepstep.wire.messages import Enrol, Enrolled, Refused

NOW_S = float(int(time.time()))
ADMIN = Principal(name="root", role=Role.ADMIN, proof="state-dir")


@dataclass
class Caller:
    """What a connection knows of its other end."""

    encrypted: bool = True
    peer_serial: str | None = None


@dataclass
class Office:
    rig: Rig
    enrolment: Enrolment

    async def join_token(self, role="agent", name="", tenants=(), life_s=3600.0, kind="join") -> str:
        secret, number = new_secret(), self.rig.books.registry.next_token
        await self.rig.tell(
            f.TokenIssued(
                id=f"t{number}", digest=digest_of(secret), kind=kind, role=role, name=name, tenants=tenants,
                expires_s=self.rig.clock.now_s() + life_s, by="root",
            )
        )  # fmt: skip
        return secret

    async def join(self, token: str, name: str = "", **caller: object) -> Enrolled | Refused:
        _, request = new_key_and_request(name)
        return await self.enrolment.enrol(Enrol(request=request, token=token, name=name), Caller(**caller))

    async def renew(self, serial: str | None) -> Enrolled | Refused:
        _, request = new_key_and_request("")
        return await self.enrolment.enrol(Enrol(request=request), Caller(peer_serial=serial))

    def issued(self) -> list[f.CertificateIssued]:
        return [e.record for e in self.rig.journal.read() if isinstance(e.record, f.CertificateIssued)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority.open(tmp_path_factory.mktemp("enrolment") / "ca")


@pytest.fixture
def held(authority) -> Callable[[Callable[[Office], Awaitable[None]]], None]:
    """Runs a scene in an office whose journal is empty."""

    def run(scene: Callable[[Office], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with office(authority) as opened:
                await scene(opened)

        asyncio.run(whole())

    return run


@asynccontextmanager
async def office(authority: Authority, records=()) -> AsyncIterator[Office]:
    async with running_site(records, now_s=NOW_S) as rig:
        enrolment = Enrolment(authority, lambda: rig.books.registry, rig.clock, rig.hub.take)
        yield Office(rig, enrolment)


def serial_of(answer: Enrolled | Refused) -> str:
    assert isinstance(answer, Enrolled), answer
    return serial_text(x509.load_pem_x509_certificate(answer.certificate).serial_number)


def refused(answer: Enrolled | Refused, words: str) -> None:
    assert isinstance(answer, Refused)
    assert words in answer.reason


def test_a_token_buys_the_identity_that_it_binds(held):
    async def scene(office: Office) -> None:
        answer = await office.join(await office.join_token("launcher", "n7", ("red",)), "n8")
        made = x509.load_pem_x509_certificate(answer.certificate)
        assert (subject_of(made).role, subject_of(made).name) == ("launcher", "n7")
        (issued,) = office.issued()
        assert issued == f.CertificateIssued(
            serial=serial_of(answer),
            role="launcher",
            name="n7",
            tenants=("red",),
            expires_s=NOW_S + NODE_LIFE_S,
            token="t1",
        )
        known = office.rig.books.registry.of_certificate(issued.serial, NOW_S)
        assert known == Principal(name="n7", role=Role.LAUNCHER, tenants=("red",), proof=f"certificate:{issued.serial}")

    held(scene)


def test_an_open_token_takes_the_name_of_whoever_comes(held):
    async def scene(office: Office) -> None:
        refused(await office.join(await office.join_token()), "--name")
        refused(await office.join(await office.join_token(), "../n1"), "no name of a node")
        serial_of(await office.join(await office.join_token(), "n1"))

    held(scene)


def test_a_token_is_used_once_even_by_two_at_the_same_moment(held):
    async def scene(office: Office) -> None:
        token = await office.join_token()
        answers = await asyncio.gather(*(office.join(token, f"n{i}") for i in range(8)))
        assert sum(isinstance(answer, Enrolled) for answer in answers) == 1
        refused(await office.join(token, "late"), "used up")
        assert len(office.issued()) == 1

    held(scene)


def test_a_token_stays_used_and_a_certificate_known_after_a_restart(authority):
    async def whole() -> None:
        async with office(authority) as first:
            token, other = await first.join_token(), await first.join_token()
            serial = serial_of(await first.join(token, "n1"))
            records = [(entry.at_s, entry.record) for entry in first.rig.journal.read()]
        async with office(authority, records) as second:
            refused(await second.join(token, "n2"), "used up")
            serial_of(await second.renew(serial))
            serial_of(await second.join(other, "n2"))

    asyncio.run(whole())


def test_the_certificate_is_in_the_journal_before_it_leaves(authority):
    async def whole() -> None:
        async with running_site(now_s=NOW_S) as rig:
            kept: asyncio.Future[int] = asyncio.get_running_loop().create_future()

            async def slow(fact: f.Fact, session: str) -> int:
                await kept
                return 1

            opened = Office(rig, Enrolment(authority, lambda: rig.books.registry, rig.clock, slow))
            waiting = asyncio.ensure_future(opened.join(await opened.join_token(), "n1"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            kept.set_result(1)
            serial_of(await waiting)

    asyncio.run(whole())


def test_expired_revoked_and_api_tokens_buy_nothing(held):
    async def scene(office: Office) -> None:
        short = await office.join_token(life_s=10.0)
        office.rig.clock.at_s += 11.0
        refused(await office.join(short, "n1"), "expired")
        revoked = await office.join_token()
        await office.rig.tell(f.TokenRevoked(id="t2", by="root"))
        refused(await office.join(revoked, "n1"), "revoked")
        refused(await office.join(await office.join_token("admin", "eve", kind="api"), "n1"), "join token")
        refused(await office.join("kst_guess", "n1"), "join token")
        assert office.issued() == []

    held(scene)


@pytest.mark.parametrize("role", ["viewer", "admin", "metrics"])
def test_people_get_no_certificates(held, role):
    async def scene(office: Office) -> None:
        refused(await office.join(await office.join_token(role), "eve"), "API token")

    held(scene)


def test_nothing_is_handed_out_in_the_clear(held):
    async def scene(office: Office) -> None:
        token = await office.join_token()
        refused(await office.join(token, "n1", encrypted=False), "TLS")
        serial_of(await office.join(token, "n1"))

    held(scene)


def test_a_request_that_is_none_uses_no_token_up(held):
    async def scene(office: Office) -> None:
        token = await office.join_token()
        answer = await office.enrolment.enrol(Enrol(request=b"junk", token=token, name="n1"), Caller())
        refused(answer, "PKCS #10")
        serial_of(await office.join(token, "n1"))

    held(scene)


def test_a_renewal_keeps_who_it_is_and_is_not_asked_for_all_the_time(held):
    async def scene(office: Office) -> None:
        first = serial_of(await office.join(await office.join_token("agent", "n1", ("red",))))
        office.rig.clock.at_s += NODE_LIFE_S / 2
        second = serial_of(await office.renew(first))
        newest = office.issued()[-1]
        assert (newest.role, newest.name, newest.tenants, newest.replaces) == ("agent", "n1", ("red",), first)
        assert newest.serial == second
        refused(await office.renew(first), "was renewed less than")
        office.rig.clock.at_s += RENEWAL_PAUSE_S + 1  # the answer was lost: it asks again
        serial_of(await office.renew(first))

    held(scene)


def test_who_has_nothing_that_holds_renews_nothing(held):
    async def scene(office: Office) -> None:
        refused(await office.renew(None), "keepstep join")
        refused(await office.renew("00" * 16), "keepstep join")
        serial = serial_of(await office.join(await office.join_token(), "n1"))
        office.rig.clock.at_s += NODE_LIFE_S
        refused(await office.renew(serial), "keepstep join")

    held(scene)


def test_a_thief_who_renewed_quickly_loses_that_too(held):
    async def scene(office: Office) -> None:
        stolen = serial_of(await office.join(await office.join_token(), "n1"))
        second = serial_of(await office.renew(stolen))
        third = serial_of(await office.renew(second))
        other = serial_of(await office.join(await office.join_token(), "n2"))
        await office.rig.tell(f.CertificateRevoked(serial=stolen, by="root"))
        for serial in (stolen, second, third):
            refused(await office.renew(serial), "keepstep join")
            assert office.rig.books.registry.of_certificate(serial, NOW_S) is None
        serial_of(await office.renew(other))

    held(scene)


def test_only_a_replica_may_be_reached_under_names(held):
    async def scene(office: Office) -> None:
        _, request = new_key_and_request("r1", ("db1.example", "10.0.0.9"))
        for role, hosts, life_s in (
            ("agent", (), NODE_LIFE_S),
            ("replica", ("db1.example", "10.0.0.9"), REPLICA_LIFE_S),
        ):
            token = await office.join_token(role, f"{role}-1")
            answer = await office.enrolment.enrol(Enrol(request=request, token=token), Caller())
            made = x509.load_pem_x509_certificate(answer.certificate)
            assert subject_of(made).hosts == hosts
            assert made.not_valid_after_utc.timestamp() == pytest.approx(NOW_S + life_s, abs=2)

    held(scene)
