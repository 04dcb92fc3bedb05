"""Whatever goes wrong is told as a problem, in the form of RFC 9457, with what to do and without a stack trace."""

import re

import msgspec
import pytest

from keepstep.server.http_views import Problem
from keepstep.server.site import NoLeader

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "says"),
    [
        ("GET", "/nowhere", {}, 404, ""),
        ("DELETE", "/api/v1/jobs", {}, 405, ""),
        ("GET", "/api/v1/jobs?limit=0", {}, 400, "limit"),
        ("GET", "/api/v1/jobs?limit=501", {}, 400, "limit"),
        ("GET", "/api/v1/jobs?cursor=nonsense", {}, 422, "take `next` of the page before"),
        ("GET", "/api/v1/incidents?cursor=WyJ3b3JsZCIsLTEsIiJd", {}, 422, "is no cursor"),
        ("GET", "/api/v1/incidents?cursor=WyJhcmNoaXZlIiwwLCJ4Il0", {}, 422, "is no cursor"),
        ("GET", "/api/v1/incidents?since_s=soon", {}, 400, "since_s"),
        ("GET", "/api/v1/incidents?stat=waiting", {}, 400, "no parameter 'stat'; it takes cause, cursor"),
        ("GET", "/api/v1/jobs?in_state=running", {}, 400, "live, q, state"),
        ("GET", "/api/v1/server?" + "&".join(f"p{n}=1" for n in range(50)), {}, 400, "'p9'; it takes none"),
        ("GET", "/api/v1/journal?before=0", {}, 400, "before"),
        ("GET", "/api/v1/resources/device/n0/x", {}, 404, ""),
        ("POST", "/api/v1/tokens", {"content": b"{", "headers": JSON}, 400, ""),
        ("POST", "/api/v1/tokens", {"json": {"name": ""}}, 400, ""),
        ("POST", "/api/v1/tokens", {"json": {"name": "x", "role": "viewer", "more": 1}}, 400, "more"),
        ("POST", "/api/v1/tokens", {"content": b" " * (1 << 21), "headers": JSON}, 413, ""),
        ("POST", "/api/v1/jobs/job/stop", {"content": b"a=1", "headers": {"Content-Type": "text/plain"}}, 415, "json"),
        ("POST", "/api/v1/jobs/job/stop", {"json": {}, "headers": {"Idempotency-Key": "k" * 201}}, 400, ""),
    ],
)
def test_a_problem_says_what_is_wrong(served, method, path, options, status, says):
    answer = served.http.request(method, path, **options)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = msgspec.json.decode(answer.content, type=Problem)
    assert problem.status == status
    assert says in answer.text
    assert "Traceback" not in answer.text


def test_no_route_of_the_api_takes_a_parameter_that_it_does_not_know(served):
    before = served.entries()
    for route in served.app.routes:
        for method in sorted(route.methods - {"OPTIONS"}) if route.path.startswith("/api/v1/") else ():
            path = re.sub(r"{\w+:\w+}", "0", route.path)
            answer = served.http.request(method, path, params={"nonsense": "1"})
            assert answer.status_code == 400, (method, path, answer.text)
            assert answer.json()["errors"] == [{"field": "nonsense", "message": "there is no such parameter"}]
    assert served.entries() == before


def test_where_nobody_leads_it_is_said_when_to_come_back(fresh):
    async def leaderless(rig):
        async def submit(request, by, key=""):
            raise NoLeader("nobody leads at the moment")

        rig.site.submit = submit

    fresh.do(leaderless)
    answer = fresh.http.post("/api/v1/jobs/job/stop")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["detail"] == "nobody leads at the moment"


def test_a_bug_of_ours_is_logged_and_not_shown(fresh, caplog):
    async def broken(rig):
        rig.books.world.resources["device/n0/0"].holds = None

    fresh.do(broken)
    answer = fresh.http.get("/api/v1/resources/device/n0/0")
    assert answer.status_code == 500
    assert "NoneType" not in answer.text and "log" in answer.json()["detail"]
    assert "NoneType" in caplog.text
