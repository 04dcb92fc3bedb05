"""What people ask: it becomes a fact of its asker, once; wrong, late and colliding requests are told so."""

import pytest

from keepstep.core import facts as f
from keepstep.core.access import Role


def post(served, path, body=None, **headers):
    return served.http.post(f"/api/v1{path}", json=body, headers=headers)


def newest(served, kind):
    found = served.do(lambda rig: _about(rig, kind))
    return found[0].record if found else None


async def _about(rig, kind):
    return rig.journal.mentioning([f"fact:{kind.__name__}"])


CASES = {
    "/jobs/job/stop": ({"reason": "enough"}, f.JobStopRequested(job="job", by="owner", reason="enough")),
    "/resources/node/n2/hold": (
        {"reason": "fan"}, f.HoldRequested(resource="node/n2", source="person:owner", by="owner", reason="fan"),
    ),
    "/resources/device/n2/1/hold": (
        None, f.HoldRequested(resource="device/n2/1", source="person:owner", by="owner", reason="held by hand"),
    ),
    "/drills": (
        {"job": "job", "kind": "stop-rank", "rank": 1},
        f.DrillRequested(job="job", kind="stop-rank", by="owner", rank=1),
    ),
    "/incidents/inc-0005/approve": (None, f.Approved(subject="inc-0005", by="owner", granted=True)),
    "/incidents/inc-0005/deny": (None, f.Approved(subject="inc-0005", by="owner", granted=False)),
}  # fmt: skip


@pytest.mark.parametrize("path", CASES)
def test_a_request_becomes_one_fact_however_often_it_is_sent(fresh, path):
    body, fact = CASES[path]
    first = post(fresh, path, body, **{"Idempotency-Key": "k"})
    assert first.status_code == 202, first.text
    assert newest(fresh, type(fact)) == fact
    before = fresh.entries()
    again = post(fresh, path, body, **{"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["repeated"], again.json()["subject"]) == (
        202,
        True,
        first.json()["subject"],
    )
    assert fresh.entries() == before


def test_a_key_is_for_one_request_of_one_asker(fresh):
    key = {"Idempotency-Key": "k"}
    assert post(fresh, "/resources/node/n2/hold", {"reason": "a"}, **key).status_code == 202
    other = post(fresh, "/resources/node/n2/hold", {"reason": "b"}, **key)
    assert (other.status_code, "take a fresh one" in other.json()["detail"]) == (422, True)
    with fresh.client(fresh.token(Role.ADMIN, name="ada")) as http:
        answer = http.post("/api/v1/resources/node/n2/hold", json={"reason": "b"}, headers=key)
        assert (answer.status_code, answer.json()["repeated"]) == (202, False)


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/jobs/nope/stop", 404, "there is no job 'nope'"),
        ("/resources/device/n9/0/hold", 404, "there is no resource"),
        ("/resources/device/n0/0/unhold", 409, "is not held by person:owner"),
        ("/incidents/inc-0002/approve", 409, "waits for nobody"),
        ("/incidents/inc-9999/deny", 404, "there is no incident"),
        ("/tokens/t99/revoke", 404, "there is no token"),
        ("/certificates/ab/revoke", 404, "there is no certificate"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(served, path, status, says):
    before = served.entries()
    answer = post(served, path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert says in answer.json()["detail"]
    assert served.entries() == before


def test_an_operator_of_a_tenant_stops_its_own_jobs_only(fresh):
    with fresh.client(fresh.token(Role.APPROVER, "blue", name="bea")) as http:
        assert http.post("/api/v1/jobs/job/stop").status_code in (403, 404)
        assert http.post("/api/v1/resources/node/n0/hold").status_code == 403, "a hold concerns everybody"
        assert http.post("/api/v1/incidents/inc-0005/approve").status_code == 202
    assert newest(fresh, f.JobStopRequested) is None


def test_a_drill_begins_is_shown_and_is_alone(fresh):
    asked = {"job": "job", "kind": "kill-rank", "rank": 1}
    assert "no rank 99" in post(fresh, "/drills", asked | {"rank": 99}).json()["detail"]
    assert "'pull-the-plug'" in post(fresh, "/drills", asked | {"kind": "pull-the-plug"}).json()["errors"][0]["message"]
    assert "not steady" in post(fresh, "/drills", asked | {"job": "blue-1"}).json()["detail"]
    assert post(fresh, "/drills", asked).json()["subject"] == "drill-0001"
    told = fresh.http.get("/api/v1/drills/drill-0001").json()
    assert (told["drill"]["state"], told["drill"]["rank"], told["drill"]["by"]) == ("injected", 1, "owner")
    assert told["limits"]["detect_s"] == 30.0
    again = post(fresh, "/drills", asked)
    assert (again.status_code, "one drill at a time" in again.json()["detail"]) == (409, True)
    with fresh.client(fresh.token(Role.OPERATOR, "blue", name="bob")) as http:
        assert http.post("/api/v1/drills", json=asked).status_code == 404
        assert http.get("/api/v1/drills").json()["drills"] == []
        assert http.get("/api/v1/drills/drill-0001").status_code == 404


def test_a_token_is_shown_once_and_works_until_it_is_revoked(fresh):
    wanted = {"name": "grafana", "role": "viewer", "expires_in_s": 60}
    made = post(fresh, "/tokens", wanted, **{"Idempotency-Key": "k"})
    assert made.status_code == 201
    secret, id = made.json()["secret"], made.json()["accepted"]["subject"]
    assert post(fresh, "/tokens", wanted, **{"Idempotency-Key": "k"}).json()["secret"] == secret
    assert post(fresh, "/tokens", wanted).json()["secret"] != secret
    post(fresh, "/tokens", {"name": "left out", "role": "viewer"})
    post(fresh, "/tokens", {"name": "for ever", "role": "viewer", "expires_in_s": None})
    listed = fresh.http.get("/api/v1/tokens")
    assert secret not in listed.text and listed.json()["total"] == 4
    ends = {token["name"]: token["expires_s"] for token in listed.json()["tokens"]}
    assert ends["left out"] == fresh.rig.clock.now_s() + 90 * 86_400 and ends["for ever"] is None
    with fresh.client(secret) as http:
        assert http.get("/api/v1/jobs").status_code == 200
        assert post(fresh, f"/tokens/{id}/revoke").status_code == 202
        assert http.get("/api/v1/jobs").status_code == 401


def test_a_token_for_a_role_that_there_is_not_is_refused(served):
    answer = post(served, "/tokens", {"name": "x", "role": "king"})
    assert (answer.status_code, "there are viewer, operator" in answer.json()["detail"]) == (422, True)


def test_a_policy_is_replaced_only_by_who_has_seen_it(fresh):
    def put(text, tag):
        return fresh.http.put("/api/v1/policy", json={"overrides": text}, headers={"If-Match": tag} if tag else {})

    first = fresh.http.get("/api/v1/policy").headers["etag"]
    assert put("[approvals]\nwait_s = 60\n", "").status_code == 428
    assert put("[approvals]\nwait_s = 60\n", first).status_code == 202
    assert put("[approvals]\nwait_s = 70\n", first).status_code == 412
    assert put("[approvals]\nwait_s = 60\n", first).status_code == 202, "the same again, after a lost answer"
    second = fresh.http.get("/api/v1/policy")
    assert second.json()["overrides"] == "[approvals]\nwait_s = 60\n"
    wrong = put("[approvals]\nwait = 1\n", second.headers["etag"])
    assert (wrong.status_code, "approvals.wait" in wrong.json()["detail"]) == (422, True)
