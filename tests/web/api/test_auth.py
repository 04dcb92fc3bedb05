"""Who gets in: no route without a credential, roles, cookies and their forgery, hosts; and that every refusal is kept."""

import pytest
from tests.web.site import OWNER_TOKEN

from keepstep.core.access import GRANTS, Action, Role
from keepstep.core.facts import RequestRefused, TokenRevoked
from keepstep.server.refusals import APART_MAX
from keepstep.server.registry import ENDED_MAX, SESSION_LIFE_S, Registry
from keepstep.server.replay import replay
from keepstep.server.requests import ACTION
from keepstep.wire import requests as r

PUBLIC = {"/healthz", "/readyz", "/login", "/login.js"}
WRITES = {
    r.StopJob: ("POST", "/jobs/job/stop", {}),
    r.BeginDrill: ("POST", "/drills", {"job": "job", "kind": "kill-rank"}),
    r.Hold: ("POST", "/resources/device/n0/0/hold", {}),
    r.Decide: ("POST", "/incidents/inc-0005/deny", None),
    r.SetPolicy: ("PUT", "/policy", {"overrides": ""}),
    r.IssueToken: ("POST", "/tokens", {"name": "x", "role": "viewer"}),
    r.RevokeToken: ("POST", "/tokens/t99/revoke", None),
    r.RevokeCertificate: ("POST", "/certificates/ab/revoke", {}),
}
OWN = {"X-Keepstep-Request": "1"}


def refusals(served):
    return [e.record for e in served.do(lambda rig: _entries(rig)) if isinstance(e.record, RequestRefused)]


async def _entries(rig):
    return rig.journal.mentioning(["fact:RequestRefused"])


def log_in(http, token, **headers):
    return http.post("/login", data={"token": token, "next": "/incidents"}, headers=headers)


def test_no_route_lets_anybody_in_without_a_credential(served):
    with served.client() as http:
        for route in served.app.routes:
            path = route.path_format.replace("{", "").replace("}", "").replace("slot", "0")
            for method in route.methods - {"OPTIONS"}:
                answer = http.request(method, path)
                expected = (method in ("GET", "HEAD") and path in PUBLIC) or (method, path) == ("POST", "/login")
                assert (answer.status_code != 401) == expected, (method, path, answer.status_code)


@pytest.mark.parametrize("header", ["Bearer nonsense", "Basic b3duZXI6", "Bearer"])
def test_a_wrong_credential_is_refused_and_kept(fresh, header):
    with fresh.client(OWNER_TOKEN) as http:
        answer = http.get("/api/v1/jobs", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "keepstep token create" in answer.json()["detail"]
    assert [(f.who, f.what) for f in refusals(fresh)] == [("(unknown) at 127.0.0.1", "GET /api/v1/jobs")]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "kept"),
    [
        ("GET", "/api/v1/jobs/job", {}, 401, ("GET /api/v1/jobs/{job}", "no credential")),
        ("GET", "/metrics", {}, 401, ("GET /metrics", "no credential")),
        ("GET", "/api/v1/jobs", {"Cookie": "keepstep_session=x"}, 401,
         ("GET /api/v1/jobs", "the session is unknown, or over")),
        ("POST", "/api/v1/jobs/job/stop", {"Accept": "text/html"}, 401,
         ("POST /api/v1/jobs/{job}/stop", "no credential")),
        ("GET", "/healthz", {"Host": "evil.example:80"}, 421,
         ("GET /healthz", "this server is not called 'evil.example'")),
        ("POST", "/login", {"Origin": "http://evil.example"}, 403,
         ("POST /login", "the login form is on somebody else's page")),
        ("GET", "/api/v1/jobs", {"Accept": "text/html"}, 303, None),
    ],
)  # fmt: skip
def test_a_stranger_who_is_refused_is_kept_and_one_who_is_sent_to_the_login_is_not(
    fresh, method, path, headers, status, kept
):
    with fresh.client(**headers) as http:
        for _ in range(3):
            answer = http.request(method, path, data={"token": OWNER_TOKEN} if path == "/login" else None)
            assert answer.status_code == status
    told = [(f.who, f.what, f.why) for f in refusals(fresh)]
    assert told == ([("(unknown) at 127.0.0.1", *kept)] if kept else []), "equal ones are one fact"


def test_strangers_with_many_names_do_not_fill_the_journal(fresh):
    before = fresh.entries()
    with fresh.client() as http:
        for number in range(2 * APART_MAX):
            assert http.get("/healthz", headers={"Host": f"{number}.example"}).status_code == 421
    assert {f.who for f in refusals(fresh)} == {"(unknown) at 127.0.0.1", "(others)"}
    assert fresh.entries() - before <= APART_MAX + 1


@pytest.mark.parametrize("role", list(Role))
def test_every_role_may_do_over_http_what_the_table_says(fresh, role):
    with fresh.client(fresh.token(role)) as http:
        for kind, (method, path, body) in WRITES.items():
            answer = http.request(method, f"/api/v1{path}", json=body)
            allowed = ACTION[kind] in GRANTS[role]
            assert (answer.status_code == 403) != allowed, (role, path, answer.text)
        assert (http.get("/api/v1/jobs").status_code == 200) == (Action.READ in GRANTS[role])
        assert (http.get("/api/v1/journal").status_code == 200) == (Action.READ_JOURNAL in GRANTS[role])
        assert (http.get("/api/v1/tokens").status_code == 200) == (Action.MANAGE_ACCESS in GRANTS[role])
        assert (http.get("/metrics").status_code == 200) == (Action.READ_METRICS in GRANTS[role])
    kept = refusals(fresh)
    assert {f.who for f in kept} <= {role.value}
    assert ("POST /api/v1/jobs/{job}/stop" in {f.what for f in kept}) == (Action.STOP_JOB not in GRANTS[role])


def test_a_cookie_stands_for_its_token_and_ends_with_it(fresh):
    secret = fresh.token(Role.OPERATOR, name="olga")
    with fresh.client() as http:
        answer = log_in(http, secret)
        assert (answer.status_code, answer.headers["location"]) == (303, "/incidents")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and secret not in cookie
        assert http.get("/api/v1/jobs").status_code == 200
        held = http.post("/api/v1/resources/device/n0/0/hold", headers=OWN, json={"reason": "x"})
        assert held.status_code == 202, held.text
        assert http.get("/api/v1/holds?source=person:olga").json()["total"] == 1
        fresh.do(lambda rig: rig.tell(TokenRevoked(id="t1", by="eve")))
        assert http.get("/api/v1/jobs").status_code == 401


def test_a_copy_of_a_cookie_ends_with_the_logout_and_other_sessions_stay(fresh):
    secret = fresh.token(Role.VIEWER, name="vera")
    with fresh.client() as http, fresh.client() as elsewhere:
        log_in(elsewhere, secret)
        log_in(http, secret)
        copy = {"Cookie": f"keepstep_session={http.cookies['keepstep_session']}"}
        assert fresh.http.get("/api/v1/jobs", headers={"Authorization": "none"} | copy).status_code == 401
        assert http.post("/logout", headers=OWN).status_code == 303
        http.cookies.clear()
        assert http.get("/api/v1/jobs", headers=copy).status_code == 401
        assert elsewhere.get("/api/v1/jobs").status_code == 200
    (ended,) = [e.record for e in fresh.do(_revocations)]
    assert (ended.by, ended.id[:8]) == ("vera", "session-")
    assert list(fresh.do(_later).registry.ended) == [ended.id], "replicas and later lives of the server know it"


async def _later(rig):
    return replay(rig.journal)


async def _revocations(rig):
    return rig.journal.mentioning(["fact:TokenRevoked"])


def test_sessions_that_were_logged_out_are_remembered_until_their_cookies_end():
    registry, many = Registry(), ENDED_MAX + 5
    for number in range(many):
        registry.note(TokenRevoked(id=f"session-{number:032x}", by="eve"), 100.0 + number)
    assert len(registry.ended) == ENDED_MAX
    gone_s, kept_s = 104.0 + SESSION_LIFE_S, 105.0 + SESSION_LIFE_S
    assert registry.has_ended("session-of-those-days", gone_s), "one that is forgotten takes all older ones with it"
    assert not registry.has_ended("session-of-those-days", kept_s)
    assert registry.has_ended(f"session-{5:032x}", kept_s)
    registry.note(TokenRevoked(id="session-late", by="eve"), 100.0 + many + SESSION_LIFE_S)
    assert list(registry.ended) == ["session-late"]


def test_a_cookie_that_was_changed_is_none(served):
    with served.client() as http:
        log_in(http, OWNER_TOKEN)
        good = http.cookies["keepstep_session"]
        for bad in (good[:-2], "A" + good[1:], good.replace(".", ""), "..", "é"):
            answer = http.get("/api/v1/jobs", headers={"Cookie": f"keepstep_session={bad}".encode()})
            assert answer.status_code == 401, bad


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        (OWN, True),
        (OWN | {"Origin": "HERE"}, True),
        ({}, False),
        ({"Origin": "HERE"}, False),
        (OWN | {"Origin": "http://evil.example"}, False),
        (OWN | {"Sec-Fetch-Site": "cross-site"}, False),
    ],
)
def test_a_page_of_somebody_else_changes_nothing_with_our_cookie(served, headers, allowed):
    headers = {k: served.url if v == "HERE" else v for k, v in headers.items()}
    with served.client() as http:
        log_in(http, OWNER_TOKEN)
        answer = http.post("/api/v1/resources/device/n0/1/unhold", headers=headers)
        assert (answer.status_code == 409) == allowed, answer.text
        assert (answer.status_code == 403) != allowed


def test_login_is_for_our_own_page_and_leads_to_our_own_pages(served):
    with served.client() as http:
        assert log_in(http, OWNER_TOKEN, Origin="http://evil.example").status_code == 403
        assert log_in(http, "nonsense").status_code == 401
        for there in ("//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nSet-Cookie: x=1"):
            answer = http.post("/login", data={"token": OWNER_TOKEN, "next": there})
            assert answer.headers["location"] == "/", there
        page = http.get("/login", params={"next": '/"><script>'}).text
        assert "<script>" not in page
        answer = http.post("/logout", headers=OWN)
        assert answer.status_code == 303
        assert http.get("/api/v1/jobs").status_code == 401


def test_a_browser_without_a_session_is_sent_to_the_login_page(served):
    with served.client(Accept="text/html") as http:
        answer = http.get("/api/v1/jobs?limit=3")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/api/v1/jobs%3Flimit%3D3")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:7447", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
def test_a_name_that_was_rebound_to_the_loopback_does_not_get_in(served, host, status):
    assert served.http.get("/api/v1/jobs", headers={"Host": host}).status_code == status


def test_every_answer_tells_the_browser_to_be_careful(served):
    for path in ("/api/v1/jobs", "/nowhere", "/login", "/healthz"):
        headers = served.http.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin")
        assert headers["cache-control"] in ("no-store", "private, no-cache")
        assert "server" not in headers
