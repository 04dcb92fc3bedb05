"""Every route that answers, over real HTTP: shapes, filters, pages, tags, and what a tenant does not see."""

import itertools
import socket

import msgspec
import pytest

from keepstep.core.access import Role
from keepstep.review.figures import Review
from keepstep.review.postmortem import Postmortem
from keepstep.server import access_views, drill_views, fault_views, health_views, http_views, journal_views, views
from keepstep.server.precision import PrecisionReport
from keepstep.server.whereabouts import Whereabouts

ROUTES = {
    "/jobs": views.Jobs,
    "/jobs/job": views.JobView,
    "/jobs/job/live": views.Live,
    "/jobs/job/ranks": Whereabouts,
    "/jobs/job/launchers": views.Launchers,
    "/jobs/job/checkpoints": views.Checkpoints,
    "/jobs/job/report": views.Report,
    "/report": views.Report,
    "/incidents": views.Incidents,
    "/incidents/inc-0002": views.IncidentReport,
    "/incidents/inc-0002/journal": journal_views.Entries,
    "/approvals": views.Incidents,
    "/faults?closed=true": fault_views.Faults,
    "/faults/flt-0001": fault_views.FaultReport,
    "/drills": drill_views.Drills,
    "/precision": PrecisionReport,
    "/nodes": fault_views.Nodes,
    "/nodes/n1": fault_views.NodeView,
    "/resources": views.Resources,
    "/resources/node/n1": views.ResourceView,
    "/resources/device/n1/0": views.ResourceView,
    "/resources/device/n1/0/journal": journal_views.Entries,
    "/resources/node/n1/journal": journal_views.Entries,
    "/holds": views.Holds,
    "/health": health_views.Health,
    "/journal": journal_views.Entries,
    "/policy": access_views.PolicyView,
    "/tokens": access_views.Tokens,
    "/certificates": access_views.Certificates,
    "/server": http_views.ServerView,
    "/review": Review,
    "/review?job=job": Review,
    "/incidents/inc-0002/postmortem": Postmortem,
}


def get(served, path, kind, **headers):
    answer = served.http.get(f"/api/v1{path}", headers=headers)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=kind)


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_answers_in_its_shape_and_knows_its_content_again(served, path):
    first = served.http.get(f"/api/v1{path}")
    assert first.status_code == 200, first.text
    msgspec.json.decode(first.content, type=ROUTES[path])
    assert first.headers["cache-control"] == "private, no-cache"
    again = served.http.get(f"/api/v1{path}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = served.http.get(f"/api/v1{path}", headers={"If-None-Match": 'W/"0"'})
    assert other.status_code == 200


def test_an_answer_does_not_wait_for_an_acknowledgement_of_its_head(served):
    """Nagle's algorithm and delayed acknowledgements together cost 40 ms an answer."""
    assert served.listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_open_incidents_come_first_and_pages_join_without_gap_or_repetition(served):
    whole = get(served, "/incidents?starts=true", views.Incidents)
    assert whole.total == len(whole.incidents) == 5
    assert whole.incidents[0].state == "waiting"
    ids, cursor = [], ""
    while True:
        page = get(served, f"/incidents?starts=true&limit=2&cursor={cursor}", views.Incidents)
        assert page.total == 5
        ids += [line.id for line in page.incidents]
        if not (cursor := page.next):
            break
    assert ids == [line.id for line in whole.incidents]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("open=true", ["inc-0005"]),
        ("open=false", ["inc-0003", "inc-0002"]),
        ("job=blue-1", ["inc-0005"]),
        ("state=recovered", ["inc-0003", "inc-0002"]),
        ("cause=device", ["inc-0003"]),
        ("node=n1&open=false", ["inc-0003"]),
        ("node=b0", ["inc-0005"]),
        ("q=B0", ["inc-0005"]),
        ("q=inc-0003", ["inc-0003"]),
        ("since_s=1700000030", ["inc-0005", "inc-0003"]),
        ("until_s=1700000010", ["inc-0002"]),
    ],
)
def test_filters_of_incidents(served, query, ids):
    found = get(served, f"/incidents?{query}", views.Incidents)
    assert [line.id for line in found.incidents] == ids
    assert found.total == len(ids)


def test_filters_of_resources_holds_nodes_and_faults(served):
    ids = [r.id for r in get(served, "/resources?node=n3", views.Resources).resources]
    assert ids == ["node/n3", "device/n3/0", "device/n3/1"]
    assert {r.id for r in get(served, "/resources?q=N1-GPU1", views.Resources).resources} == {"device/n1/1"}
    assert {r.state for r in get(served, "/resources?state=in_service", views.Resources).resources} == {"in_service"}
    (hold,) = get(served, "/holds?source=person:", views.Holds).holds
    assert (hold.resource, hold.reason) == ("device/n3/1", "smells of smoke")
    assert [n.node for n in get(served, "/nodes?q=b", fault_views.Nodes).nodes] == ["b0"]
    assert [x.id for x in get(served, "/faults?q=9b:00", fault_views.Faults).faults] == ["flt-0001"]
    assert get(served, "/faults?q=nothing", fault_views.Faults).total == 0
    nowhere = served.http.get("/api/v1/resources?state=broken")
    assert nowhere.status_code == 422
    assert "there are new, burn_in" in nowhere.json()["detail"]


def test_the_journal_is_paged_backwards_and_each_entry_links_to_the_one_before(served):
    entries, query = [], "limit=40"
    while query:
        page = get(served, f"/journal?{query}", journal_views.Entries)
        entries += page.entries
        query = f"limit=40&before={page.next}" if page.next else ""
    assert [e.seq for e in entries] == list(range(page.last, 0, -1))
    assert all(newer.prev == older.hash for newer, older in itertools.pairwise(entries))
    about = get(served, "/journal?subject=n1-gpu0", journal_views.Entries).entries
    assert about and all("n1-gpu0" in str(e.record) for e in about)


def test_what_is_over_and_what_runs_are_one_list_of_jobs(fresh):
    fresh.do(lambda rig: _finish(rig))
    assert [j.id for j in get(fresh, "/jobs", views.Jobs).jobs] == ["job", "blue-1"]
    assert [j.id for j in get(fresh, "/jobs?live=true", views.Jobs).jobs] == ["job"]
    over = get(fresh, "/jobs?live=false", views.Jobs)
    assert [(j.id, j.state, j.incidents, j.tenant) for j in over.jobs] == [("blue-1", "failed", 1, "blue")]
    assert get(fresh, "/jobs/blue-1", views.JobView).finished_s is not None


async def _finish(rig):
    from keepstep.core.facts import Approved

    await rig.tell(Approved(subject="inc-0005", by="eve", granted=False))
    rig.clock.at_s += 3600.0
    rig.hub._work()


def test_of_another_tenant_nothing_is_seen(served):
    blue = served.token(Role.VIEWER, "blue")
    red = served.token(Role.VIEWER, "red")
    with served.client(blue) as http:
        assert [j["id"] for j in http.get("/api/v1/jobs").json()["jobs"]] == ["blue-1"]
        assert [i["id"] for i in http.get("/api/v1/incidents").json()["incidents"]] == ["inc-0005"]
        assert http.get("/api/v1/incidents/inc-0005").status_code == 200
        for path in (
            "/jobs/job",
            "/jobs/job/live",
            "/incidents/inc-0002",
            "/jobs/job/checkpoints",
            "/jobs/job/launchers",
            "/review?job=job",
            "/incidents/inc-0002/postmortem",
        ):
            answer = http.get(f"/api/v1{path}")
            assert answer.status_code == 404, path
            assert "inc-0001" not in answer.text
        assert http.get("/api/v1/journal").status_code == 403
        assert len(http.get("/api/v1/nodes").json()["nodes"]) == 5, "the fleet is everybody's"
    with served.client(red) as http:
        assert http.get("/api/v1/jobs").json() == {"jobs": [], "next": "", "total": 0, "note": ""}
        assert http.get("/api/v1/approvals").json()["total"] == 0
