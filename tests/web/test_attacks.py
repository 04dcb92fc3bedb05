"""Whatever route there is: nobody reaches a write that its role has not, nobody sees another tenant's job, and whoever is no
longer known is cut off. The routes are walked, so that one that is added later is tried too."""

import asyncio
import concurrent.futures
import contextlib
import re
import socket
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from tests.web.served import PATIENT, WAIT_S, Served
from tests.web.site import OWNER_TOKEN, Rig, running_site, story

from keepstep.core.access import OWNER, Role
from keepstep.core.facts import Approved, HoldRequested, TokenRevoked
from keepstep.server.history import Seat
from keepstep.server.refusals import WINDOW_S, Refusals
from keepstep.server.registry import digest_of, new_secret
from keepstep.server.requests import Conflict
from keepstep.web.options import WebOptions
from keepstep.web.pages import routes
from keepstep.wire.requests import BeginDrill, IssueToken

BLUE = re.compile(r"blue-1|inc-0005|secret-name")
"""Names of a job of the tenant blue, of its incident, and a word of its command line."""
VALUES = {
    "job": ("blue-1", "job"), "incident": ("inc-0005", "inc-0002"), "fault": ("flt-0001",), "node": ("n1", "b0"),
    "slot": ("0",), "token": ("t1",), "serial": ("00",),
}  # fmt: skip
QUERIES = ({}, {"q": "blue", "closed": "true"}, {"job": "blue-1", "tenant": "blue", "starts": "true"})


@pytest.fixture(scope="module")
def site():
    served = Served(lambda: running_site(story()), extra_routes=routes())
    yield served
    served.close()


def addresses(served: Served, *methods: str) -> list[tuple[str, str]]:
    """Every (method, path) that the app answers at, with names of what there is filled in."""
    found = []
    for route in served.app.routes:
        for method in sorted(set(getattr(route, "methods", ())) & set(methods)):
            paths = [re.sub(r":\w+(?=})", "", route.path)]
            for name, values in VALUES.items():
                paths = [p.replace(f"{{{name}}}", v) for p in paths for v in (values if f"{{{name}}}" in p else ("",))]
            found += [(method, path) for path in paths if not path.startswith("/static")]
    return found


def taken(served: Served, path: str) -> list[str]:
    """Parameters of a route of the API: it refuses others."""
    said = served.http.get(path, params={"nonsense": "1"}).json()["detail"].partition("it takes ")[2]
    return [] if said == "none" else said.split(", ")


@pytest.mark.parametrize("when", ["while it runs", "once it is over"])
def test_of_another_tenant_no_page_and_no_answer_says_a_word(when):
    served = Served(lambda: running_site(story()), extra_routes=routes())
    try:
        if when == "once it is over":
            served.do(_finish)
            assert served.http.get("/api/v1/jobs/blue-1").json()["state"] == "failed"
        _look_everywhere(served)
    finally:
        served.close()


async def _finish(rig: Rig) -> None:
    await rig.tell(Approved(subject="inc-0005", by="eve", granted=False))
    rig.clock.at_s += 3600.0
    rig.hub._work()


def _look_everywhere(site: Served) -> None:
    tried, told = 0, []
    with site.client(site.token(Role.APPROVER, "red")) as http:
        for _, path in addresses(site, "GET"):
            if path == "/api/v1/events":
                continue  # see test_events
            for query in QUERIES:
                of_api = path.startswith("/api/")
                params = {name: value for name, value in query.items() if not of_api or name in taken(site, path)}
                answer = http.get(path, params=params, headers={"Accept": "*/*" if of_api else "text/html"})
                tried += answer.status_code == 200
                named = set(BLUE.findall(answer.text)) - set(BLUE.findall(f"{path} {params}"))
                told += [(path, params, answer.status_code, named)] if named else []
                assert answer.status_code in (403, 404) or not BLUE.search(path), path
    assert not told
    assert tried > 100, "most of it is there to be looked at"


def test_a_viewer_changes_nothing_by_any_route(site):
    before = site.do(_facts)
    viewer, metrics = site.token(Role.VIEWER), site.token(Role.METRICS)
    with site.client(viewer) as http, site.client(metrics) as meter:
        for method, path in addresses(site, "POST", "PUT", "DELETE", "PATCH"):
            if path in ("/login", "/logout"):
                continue
            for who in (http, meter):
                body = {"reason": "x", "role": "admin", "name": "eve", "overrides": ""}
                answer = who.request(method, path, json=body, headers={"If-Match": "*"})
                assert answer.status_code in (403, 400), (method, path, answer.text)
                assert "role" in answer.json()["detail"] or answer.status_code == 400
        assert meter.get("/metrics").status_code == 200
        seen = [path for _, path in addresses(site, "GET") if meter.get(path).status_code == 200]
    assert set(seen) <= {"/metrics", "/healthz", "/readyz", "/login", "/login.js", "/plots.css", "/api/v1/server",
                         "/api/v1/openapi.json", "/openapi.json"}  # fmt: skip
    assert [kind for kind in site.do(_facts)[len(before) :] if kind not in ("TokenIssued", "RequestRefused")] == []


async def _facts(rig: Rig) -> list[str]:
    return [type(entry.record).__name__ for entry in rig.journal.read()]


def test_metrics_name_every_job_and_are_not_for_one_tenant(site):
    with site.client(site.token(Role.METRICS, "red")) as http:
        assert http.get("/metrics").status_code == 403


@pytest.fixture
def fresh():
    served = Served(lambda: running_site(story()))
    yield served
    served.close()


def _expire(rig: Rig, secret: str) -> None:
    id = rig.books.registry.by_digest[digest_of(secret)]
    tokens = rig.books.registry.tokens
    tokens[id] = msgspec.structs.replace(tokens[id], expires_s=rig.clock.at_s + 10.0)
    rig.clock.at_s += 20.0


@pytest.mark.parametrize("ends", ["revoked", "expired"])
@pytest.mark.parametrize("by", ["bearer", "cookie"])
def test_a_stream_and_a_session_end_with_the_token(fresh, by, ends):
    secret = fresh.token(Role.VIEWER)
    with fresh.client("" if by == "cookie" else secret) as http:
        if by == "cookie":
            assert http.post("/login", data={"token": secret}).status_code == 303
        with http.stream("GET", "/api/v1/events") as stream:
            lines = stream.iter_lines()
            while "data:" not in next(lines):
                pass

            async def end(rig: Rig) -> None:
                if ends == "revoked":
                    await rig.tell(TokenRevoked(id="t1", by="root"))
                    return
                _expire(rig, secret)
                await rig.tell(HoldRequested(resource="device/n0/0", source="person:eve", by="eve"))

            fresh.do(end)
            assert [line for line in lines if "data:" in line] == [], "nothing is told any more, and the stream ends"
        assert http.get("/api/v1/jobs").status_code == 401


def test_two_tokens_that_are_made_at_once_are_two(fresh):
    """Both requests are in one pass of the loop: an id for two would let each secret speak for the other's role."""

    async def both(rig: Rig) -> tuple:
        secrets = [new_secret(), new_secret()]
        asked = [
            IssueToken(digest=digest_of(secret), kind="api", role=role, name=role)
            for secret, role in zip(secrets, ("viewer", "admin"), strict=True)
        ]
        await asyncio.gather(*(rig.site.submit(one, OWNER) for one in asked))
        return tuple(rig.books.registry.of_token(secret, rig.clock.at_s).role for secret in secrets)

    assert fresh.do(both) == (Role.VIEWER, Role.ADMIN)


def test_of_two_drills_that_are_asked_for_at_once_one_begins(fresh):
    async def both(rig: Rig) -> list:
        asked = [BeginDrill(job="job", kind="kill-rank", rank=rank) for rank in (1, 2)]
        told = await asyncio.gather(*(rig.site.submit(one, OWNER) for one in asked), return_exceptions=True)
        again = await asyncio.gather(rig.site.submit(asked[1], OWNER), return_exceptions=True)
        return [*told, *again, list(rig.books.world.drills)]

    first, second, later, drills = fresh.do(both)
    assert first.subject == "drill-0001" and drills == ["drill-0001"]
    assert isinstance(second, Conflict) and isinstance(later, Conflict)
    assert "just being begun" in str(second) and "drill-0001 is not over" in str(later)


def test_one_key_for_two_requests_at_once_is_refused_and_the_same_one_done_once(fresh):
    def post(http, path):
        return http.post(path, json={"reason": "x"}, headers={"Idempotency-Key": "k"})

    hold = "/api/v1/resources/device/n0/{}/hold"
    with fresh.client(OWNER_TOKEN) as http, concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: post(http, hold.format(n % 2)), range(8)))
    assert sorted({answer.status_code for answer in answers}) == [202, 422]
    assert fresh.do(_facts)[-8:].count("HoldRequested") == 1


def test_two_people_of_one_name_do_not_share_keys(fresh):
    first, second = fresh.token(Role.OPERATOR, name="kim"), fresh.token(Role.OPERATOR, name="kim")
    for token, resource in ((first, "device/n0/0"), (second, "device/n0/1")):
        with fresh.client(token) as http:
            answer = http.post(f"/api/v1/resources/{resource}/hold", headers={"Idempotency-Key": "same"})
            assert (answer.status_code, answer.json()["repeated"]) == (202, False)


def test_a_tenant_is_a_name(fresh):
    """A comma in it would read as two of them where the archive is asked."""
    for tenants in (["red,blue"], ["red blue"], [" "]):
        made = fresh.http.post("/api/v1/tokens", json={"role": "viewer", "name": "eve", "tenants": tenants})
        assert made.status_code == 422, made.text


def test_a_body_that_is_too_large_is_refused_unread(fresh):
    small = Served(lambda: running_site(()), msgspec.structs.replace(PATIENT, request_max_bytes=1000))
    try:
        for content in (b"x" * 1001, iter([b"x" * 600] * 2)):
            answer = small.http.post(
                "/api/v1/jobs/a/stop", content=content, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code == 413, answer.text
    finally:
        small.close()


def test_a_refused_request_is_told_also_when_its_window_is_not_the_first(fresh):
    known = Refusals()
    assert known.note("eve", "a", "no", 0.0) is not None
    known.note("eve", "b", "no", WINDOW_S / 2)
    known.note("eve", "b", "no", WINDOW_S / 2)
    assert known.due(WINDOW_S) == [] and known.pending, "the second window is open: somebody must look again"
    assert [(one.what, one.count) for one in known.due(1.5 * WINDOW_S)] == [("b", 1)]
    assert not [*known.due(2.5 * WINDOW_S)] and not known.pending


def _closed(link: socket.socket) -> bool:
    """Whether the other end hangs up."""
    link.settimeout(WAIT_S)
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_whoever_sends_no_whole_request_is_cut_off_and_others_are_not():
    served = Served(lambda: running_site(()), WebOptions(owner_token=OWNER_TOKEN, patience_s=0.3))
    where = ("127.0.0.1", served.port)
    head = f"POST /api/v1/jobs/a/stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {OWNER_TOKEN}\r\n"
    slow = ("", "GET / HTTP/1.1\r\nHost: lo", f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{")
    try:
        with contextlib.ExitStack() as opened:
            lines = _events(served, opened)
            links = [opened.enter_context(socket.create_connection(where)) for _ in slow]
            for link, text in zip(links, slow, strict=True):
                with contextlib.suppress(ConnectionError):  # where the machine stood still before this line
                    link.sendall(text.encode())
            assert all(_closed(link) for link in links)
            served.do(lambda rig: rig.tell(HoldRequested(resource="device/n0/0", source="person:eve", by="eve")))
            assert any("data:" in line for line in lines), "a stream is alive after many looks"
    finally:
        served.close()


def _events(served: Served, opened: contextlib.ExitStack) -> Iterator[str]:
    """The lines of a stream of events, after the first one. Whoever is slow to ask for it is cut off too, and asks again."""
    while True:
        try:
            lines = opened.enter_context(served.http.stream("GET", "/api/v1/events")).iter_lines()
        except httpx.TransportError:
            continue
        while "data:" not in next(lines):
            pass
        return lines


def test_one_connection_too_many_is_closed_at_once_and_the_others_are_not():
    served = Served(lambda: running_site(()), msgspec.structs.replace(PATIENT, connections_max=3))
    try:
        with contextlib.ExitStack() as opened:
            where = ("127.0.0.1", served.port)
            links = [opened.enter_context(socket.create_connection(where)) for _ in range(4)]
            assert _closed(links.pop())
            for link in links:
                link.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert link.recv(12) == b"HTTP/1.1 200"
    finally:
        served.close()


def test_where_nobody_leads_it_is_said_that_things_are_old(site):
    site.rig.site.is_led = False
    try:
        with site.client(OWNER_TOKEN) as http:
            assert http.get("/api/v1/server").json()["is_led"] is False
            for path in ("/", "/?fragment=1", "/jobs"):
                assert "No server leads now" in http.get(path, headers={"Accept": "text/html"}).text
    finally:
        site.rig.site.is_led = True
    with site.client(OWNER_TOKEN) as http:
        assert "No server leads now" not in http.get("/", headers={"Accept": "text/html"}).text


def test_a_follower_says_who_leads(site):
    site.rig.site.leads = False
    site.rig.books.seat = Seat(server="life-1", leader="life-2", address="tcp:h2:1")
    try:
        with site.client(OWNER_TOKEN) as http:
            told = http.get("/api/v1/server").json()
            assert (told["leads"], told["leader"], told["leader_address"]) == (False, "life-2", "tcp:h2:1")
            assert "(follows life-2 at tcp:h2:1)" in http.get("/", headers={"Accept": "text/html"}).text
            site.rig.books.seat = Seat(server="life-1")
            assert "(follows nobody)" in http.get("/", headers={"Accept": "text/html"}).text
    finally:
        site.rig.site.leads, site.rig.books.seat = True, Seat()
    with site.client(OWNER_TOKEN) as http:
        assert "server life-1 (leads)" in http.get("/", headers={"Accept": "text/html"}).text
