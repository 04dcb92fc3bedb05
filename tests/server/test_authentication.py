"""Who a connection or a request is, and what of the read side somebody may see."""

import asyncio
import inspect
from dataclasses import dataclass

import msgspec
import pytest
from tests.web.site import OWNER_TOKEN, Rig, running_site, story

from keepstep.core import facts as f
from keepstep.core.access import OWNER, Action, Principal, Role
from keepstep.server.authentication import Authentication, identify_bearer, refusal_to_forward
from keepstep.server.desk import UnknownSubject
from keepstep.server.queries import QUESTIONS, answer
from keepstep.server.registry import Registry, digest_of
from keepstep.server.requests import Forbidden
from keepstep.server.visibility import refusal_to_ask
from keepstep.wire.messages import PROTOCOL, Hello, Refused
from keepstep.wire.requests import Decide, StopJob


@dataclass
class Caller:
    peer_serial: str | None = None


@dataclass
class Clock:
    at_s: float = 100.0

    def now_s(self) -> float:
        return self.at_s


def registry() -> Registry:
    known = Registry()
    tokens = {
        "op": ("operator", "ada"),
        "meter": ("metrics", "prom"),
        "node": ("launcher", "n1"),
        "short": ("viewer", "v"),
    }
    for number, (secret, (role, name)) in enumerate(tokens.items(), 1):
        expires_s = 150.0 if secret == "short" else None
        issued = f.TokenIssued(
            id=f"t{number}", digest=digest_of(secret), kind="api", role=role, name=name, expires_s=expires_s
        )
        known.note(issued, 0.0)
    known.note(f.TokenIssued(id="t9", digest=digest_of("join"), kind="join", role="agent"), 0.0)
    for serial, role in (("a1", "agent"), ("b1", "launcher"), ("c1", "replica"), ("d1", "agent")):
        known.note(f.CertificateIssued(serial=serial, role=role, name="n1", expires_s=200.0), 0.0)
    known.note(f.CertificateRevoked(serial="d1", by="root"), 0.0)
    return known


REGISTRY = registry()


def identify(role: str, *, token="", serial=None, node="n1", user="", at_s=100.0) -> Principal | Refused:
    hello = Hello(protocol=PROTOCOL, role=role, token=token, user=user, node=node or None)
    return Authentication("secret", lambda: REGISTRY, Clock(at_s)).identify(hello, Caller(serial))


def test_whoever_reads_the_token_file_owns_the_installation():
    assert identify("tool", token="secret", user="ada") == msgspec.structs.replace(OWNER, name="ada")
    assert identify("launcher", token="secret", node="any") == OWNER


@pytest.mark.parametrize("token", ["", "secre", "secret ", "join", "guess", "sécret"])
def test_what_proves_nothing_is_refused_with_what_to_do(token):
    refused = identify("tool", token=token)
    assert isinstance(refused, Refused)
    assert "keepstep token create" in refused.reason


def test_a_token_speaks_for_its_name_until_it_expires():
    assert identify("tool", token="op", user="eve") == Principal(name="ada", role=Role.OPERATOR, proof="token:t1")
    assert isinstance(identify("tool", token="short"), Principal)
    assert isinstance(identify("tool", token="short", at_s=150.0), Refused)


@pytest.mark.parametrize(
    ("role", "serial", "node", "fits"),
    [
        ("agent", "a1", "n1", True),
        ("launcher", "b1", "n1", True),
        ("tool", "c1", "", True),
        ("agent", "a1", "n2", False),
        ("launcher", "b1", "n2", False),
        ("agent", "b1", "n1", False),
        ("launcher", "a1", "n1", False),
        ("front", "a1", "", False),
        ("agent", "c1", "n1", False),
        ("agent", "d1", "n1", False),
        ("agent", "ff", "n1", False),
        ("driver", "a1", "n1", False),
    ],
)
def test_a_certificate_is_good_for_its_node_in_its_role(role, serial, node, fits):
    assert isinstance(identify(role, serial=serial, node=node), Principal) == fits


def test_a_certificate_that_was_revoked_or_has_expired_says_to_join_anew():
    assert "revoked" in identify("agent", serial="d1").reason
    assert "keepstep join" in identify("agent", serial="a1", at_s=200.0).reason


def test_a_token_on_a_node_that_is_revoked_opens_nothing():
    assert isinstance(identify("tool", token="op", serial="a1"), Principal)
    assert isinstance(identify("tool", token="op", serial="d1"), Refused)
    assert isinstance(identify("tool", token="secret", serial="d1"), Refused)


def test_a_program_with_a_token_is_bound_like_one_with_a_certificate():
    assert isinstance(identify("launcher", token="node", node="n1"), Principal)
    assert "--node n1" in identify("launcher", token="node", node="n2").reason
    assert isinstance(identify("launcher", token="meter"), Refused)
    assert isinstance(identify("agent", token="op"), Refused)


def test_how_long_a_certificate_still_holds():
    known = Authentication("secret", lambda: REGISTRY, Clock())
    assert known.expires_in_s(Caller("a1")) == 100.0
    assert known.expires_in_s(Caller()) is None


def test_certificates_that_ended_are_forgotten_while_new_ones_come():
    known = Registry()
    for hour in range(3000):
        known.note(
            f.CertificateIssued(serial=f"{hour:032x}", role="agent", name="n", expires_s=3600.0 * (hour + 24)),
            3600.0 * hour,
        )
    assert 24 <= len(known.certificates) <= 512
    assert known.of_certificate(f"{2999:032x}", 3600.0 * 2999) is not None


def test_the_same_secrets_are_good_over_http():
    assert identify_bearer(REGISTRY, "secret", "secret", 100.0) == OWNER
    assert identify_bearer(REGISTRY, "secret", "op", 100.0).name == "ada"
    assert identify_bearer(REGISTRY, "secret", "join", 100.0) is None


def test_replicas_and_the_owner_speak_for_others():
    assert refusal_to_forward(Principal(name="r", role=Role.REPLICA, proof="certificate:c1")) == ""
    assert refusal_to_forward(msgspec.structs.replace(OWNER, name="ada")) == ""
    assert refusal_to_forward(Principal(name="ada", role=Role.ADMIN, proof="token:t1")) != ""


def test_what_may_be_asked_follows_the_role():
    assert refusal_to_ask(Principal(name="v", role=Role.VIEWER), "jobs") == ""
    assert refusal_to_ask(Principal(name="v", role=Role.VIEWER), "tokens") != ""
    assert refusal_to_ask(Principal(name="v", role=Role.VIEWER), "journal") != ""
    assert refusal_to_ask(Principal(name="m", role=Role.METRICS), "jobs") != ""
    assert refusal_to_ask(Principal(name="a", role=Role.AGENT), "leave") == ""
    assert refusal_to_ask(None, "tokens") == ""


# ---- tenants apart

BLUE = Principal(name="bea", role=Role.APPROVER, tenants=("blue",))
RED = Principal(name="rea", role=Role.APPROVER, tenants=("red",))


def in_story(scene) -> None:
    async def whole() -> None:
        async with running_site(story()) as rig:
            await scene(rig)

    asyncio.run(whole())


def _of_blue(rig: Rig) -> tuple[str, str]:
    """(job, incident) of the blue tenant."""
    job = next(job for job in rig.books.world.jobs.values() if job.spec.tenant == "blue")
    incident = next(one for one in rig.books.world.incidents.values() if one.job == job.id and one.open)
    return job.id, incident.id


def test_another_tenants_job_does_not_exist():
    async def scene(rig: Rig) -> None:
        job, incident = _of_blue(rig)
        for what, args in (
            ("live", {"job": job}),
            ("ranks", {"job": job}),
            ("incident", {"id": incident}),
            ("job", {"id": job}),
        ):
            answer(rig.site.desk().seen_by(BLUE), what, args)
            answer(rig.site.desk(), what, args)
            with pytest.raises(UnknownSubject) as unknown:
                answer(rig.site.desk().seen_by(RED), what, args)
            assert str(unknown.value).count(job) <= 1  # what was asked, and no list of what there is
        assert job in msgspec.json.encode(answer(rig.site.desk().seen_by(BLUE), "jobs", {})).decode()

    in_story(scene)


def test_no_question_names_another_tenants_job():
    """Every one that there is, with every sort of argument: whatever is added later is asked too."""

    async def scene(rig: Rig) -> None:
        job, incident = _of_blue(rig)
        known = {
            "job": job, "id": incident, "node": "n1", "resource": "device/n1/0", "q": "blue", "what": "jobs", "term": "blue",
            "name": "device/n1/0", "tenant": "blue", "subject": incident,
        }  # fmt: skip
        for what, question in QUESTIONS.items():
            taken = [p for p in inspect.signature(question).parameters.values() if p.kind is not p.VAR_KEYWORD][1:]
            names, needed = [p.name for p in taken], [p.name for p in taken if p.default is p.empty]
            for chosen in (needed, [*needed, *(n for n in names if n in ("job", "q", "tenant", "subject"))]):
                if refusal_to_ask(RED, what):
                    continue
                try:
                    seen = answer(rig.site.desk().seen_by(RED), what, {name: known[name] for name in chosen})
                except (UnknownSubject, ValueError):
                    continue
                text = msgspec.json.encode(seen).decode()
                assert job not in text and incident not in text, (what, chosen)

    in_story(scene)


def test_another_tenants_job_is_not_stopped_and_its_incident_not_answered():
    async def scene(rig: Rig) -> None:
        job, incident = _of_blue(rig)
        before = rig.journal.last()
        for request in (StopJob(job=job), Decide(subject=incident, granted=True)):
            with pytest.raises(UnknownSubject):
                await rig.site.submit(request, RED)
        resource = next(iter(rig.books.world.resources))
        with pytest.raises(Forbidden, match="everybody"):
            await rig.site.submit(Decide(subject=resource, granted=True), BLUE)
        assert rig.journal.last() == before
        await rig.site.submit(Decide(subject=incident, granted=False), BLUE)
        assert rig.journal.last() > before

    in_story(scene)


def test_roles_hold_over_the_site():
    async def scene(rig: Rig) -> None:
        job, incident = _of_blue(rig)
        viewer = Principal(name="v", role=Role.VIEWER)
        for request in (StopJob(job=job), Decide(subject=incident, granted=True)):
            with pytest.raises(Forbidden, match="viewer"):
                await rig.site.submit(request, viewer)

    in_story(scene)


def test_who_sees_all_tokens_and_who_only_those_of_its_tenants():
    async def scene(rig: Rig) -> None:
        await rig.token("ada", Role.ADMIN)
        await rig.token("bea", Role.VIEWER, ("blue",))
        names = lambda principal: [t.name for t in answer(rig.site.desk().seen_by(principal), "tokens", {}).tokens]  # noqa: E731
        assert names(OWNER) == ["bea", "ada"]
        assert names(msgspec.structs.replace(OWNER, tenants=("blue",))) == ["bea"]
        page = answer(rig.site.desk(), "tokens", {"limit": 1})
        assert (page.total, page.tokens[0].name) == (2, "bea")
        assert answer(rig.site.desk(), "tokens", {"limit": 1, "cursor": page.next}).tokens[0].name == "ada"
        with pytest.raises(ValueError, match="cursor"):
            answer(rig.site.desk(), "tokens", {"cursor": "x"})

    in_story(scene)


def test_the_owners_token_of_the_rig_is_the_owners():
    assert identify_bearer(Registry(), OWNER_TOKEN, OWNER_TOKEN, 0.0) == OWNER
    assert Action.FORWARD.value == "forward"
