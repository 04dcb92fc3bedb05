"""Pages as a server sends them, without a browser: who sees what, nothing unescaped, nothing from elsewhere."""

import json
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from tests.web.served import WAIT_S
from tests.web.site import OWNER_TOKEN

from keepstep.core import facts as f
from keepstep.core.access import Role
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.web.pages import STATIC

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
VIEWS = (
    "/", "/incidents", "/incidents/inc-0003", "/incidents/inc-0005", "/jobs", "/jobs/job", "/fleet", "/fleet/list",
    "/fleet/nodes/n1", "/fleet/devices/n1/0", "/review", "/find?q=n1",
)  # fmt: skip


@pytest.fixture
def get(small: Any) -> Iterator[Callable[..., httpx.Response]]:
    with httpx.Client(base_url=small.url, timeout=WAIT_S) as client:

        def ask(path: str, token: str = OWNER_TOKEN, tag: str = "") -> httpx.Response:
            headers = {"Authorization": f"Bearer {token}", "Accept": "text/html", "If-None-Match": tag}
            return client.get(path, headers=headers)

        yield ask


class Outline(HTMLParser):
    """Elements, their attributes, and what is loaded from where."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    @property
    def loaded(self) -> list[str]:
        return [v for _, attrs in self.tags for k, v in attrs.items() if k in ("src", "href", "action") and v]


@pytest.mark.parametrize("path", VIEWS)
def test_every_view_is_whole_and_has_nothing_inline_or_from_elsewhere(
    get: Callable[..., httpx.Response], path: str
) -> None:
    answer = get(path)
    assert answer.status_code == 200, answer.text[:500]
    outline = Outline(answer.text)
    names = [tag for tag, _ in outline.tags]
    assert names.count("h1") == 1 and names.count("main") == 1 and "style" not in names
    assert all("style" not in attrs and not any(k.startswith("on") for k in attrs) for _, attrs in outline.tags)
    assert all(address.startswith(("/", "#", "?")) and not address.startswith("//") for address in outline.loaded)
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe-inline" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", VIEWS)
def test_a_fragment_is_the_view_without_its_frame(get: Callable[..., httpx.Response], path: str) -> None:
    part = get(path + ("&" if "?" in path else "?") + "fragment=1")
    tags = [tag for tag, _ in Outline(part.text).tags]
    assert part.status_code == 200 and tags.count("h1") == 1
    assert not {"html", "main", "nav", "dialog"} & {
        tag for tag in tags if tag != "nav" or 'aria-label="Views"' in part.text
    }


@pytest.mark.parametrize(
    "path", ["/incidents/inc-9", "/jobs/none", "/fleet/nodes/none", "/fleet/devices/n1/77", "/incidents/%3Cscript%3E"]
)
def test_what_is_not_there_is_said_on_a_page(get: Callable[..., httpx.Response], path: str) -> None:
    answer = get(path)
    assert answer.status_code == 404 and "Not found" in answer.text and "<script>" not in answer.text


def test_who_is_not_signed_in_is_sent_to_the_login(small: Any) -> None:
    with httpx.Client(base_url=small.url, timeout=WAIT_S) as client:
        answer = client.get("/incidents?state=open", headers={"Accept": "text/html"})
        assert answer.status_code == 303 and answer.headers["location"].startswith("/login?next=")
        assert client.get("/static/keepstep.css").status_code == 200
        assert client.get("/fleet/map").status_code == 401


@pytest.mark.parametrize(
    ("name", "kind"),
    [("keepstep.js", "text/javascript"), ("keepstep.css", "text/css"), ("keepstep.svg", "image/svg+xml")],
)
def test_what_pages_are_drawn_with_is_sent_once(get: Callable[..., httpx.Response], name: str, kind: str) -> None:
    first = get(f"/static/{name}")
    assert first.status_code == 200 and first.headers["content-type"].startswith(kind)
    assert first.content == (STATIC / name).read_bytes() and "no-cache" in first.headers["cache-control"]
    again = get(f"/static/{name}", tag=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["none.js", "..%2Fapp.py", "%2Fetc%2Fpasswd", ""])
def test_nothing_else_is_sent(get: Callable[..., httpx.Response], name: str) -> None:
    assert get(f"/static/{name}").status_code == 404


def test_another_tenants_incident_is_not_there(small: Any, get: Callable[..., httpx.Response]) -> None:
    token = small.token("vera", Role.VIEWER, ("default",))
    assert get("/incidents/inc-0005", token).status_code == 404
    assert get("/jobs/blue-1", token).status_code == 404
    for path in ("/", "/incidents", "/jobs", "/fleet/nodes/b0", "/find?q=blue", "/review"):
        assert "blue-1" not in get(path, token).text, path


def test_the_map_comes_in_columns(get: Callable[..., httpx.Response]) -> None:
    part = get("/fleet/map?nodes=n1,n3").json()
    assert part["names"] == ["n1", "n3"] and len(part["devices"]) == 2 and part["total"] == 5


def test_a_review_can_be_taken_away(get: Callable[..., httpx.Response]) -> None:
    as_json = get("/review/export?format=json")
    assert json.loads(as_json.content)["cost"]["n"] == 2 and "attachment" in as_json.headers["content-disposition"]
    as_csv = get("/review/export?format=csv")
    assert as_csv.headers["content-type"].startswith("text/csv") and "cost,n,2" in as_csv.text
    assert get("/review?since=2024-01-02&until=2024-01-01").status_code == 400


def test_hostile_names_stay_text(served: Any) -> None:
    spec = f.JobSpec(
        argv=(HOSTILE,), nproc_per_node=1, elasticity=f.Elasticity(min_nodes=1, max_nodes=1), labels={"model": HOSTILE}
    )
    job = JobId(HOSTILE.replace("/", ""))
    device = f.Device(slot=0, serial=HOSTILE, model=HOSTILE)
    served.do(
        served.rig.tell(
            f.JobSubmitted(job=job, spec=spec, by="x"),
            f.NodeJoined(
                job=job, node=NodeId("evil"), session=Session("e-0"), boot_id="b", devices=(device,), address="e"
            ),
            f.HoldRequested(resource="device/evil/0", source="person:x", by="x", reason=HOSTILE),  # type: ignore[arg-type]
            f.SignalSeen(resource="device/evil/0", signal="xid.79", detail=HOSTILE),  # type: ignore[arg-type]
        )
    )
    headers = {"Authorization": f"Bearer {OWNER_TOKEN}", "Accept": "text/html"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=WAIT_S) as client:
        for path in (
            "/",
            "/jobs",
            "/incidents",
            "/fleet/list",
            "/fleet/nodes/evil",
            "/fleet/devices/evil/0",
            "/review",
        ):
            html = client.get(path).text
            images = [attrs.get("src") for tag, attrs in Outline(html).tags if tag == "img"]
            assert images == ["/static/keepstep.svg"], path
            assert HOSTILE not in html and "<img src=x" not in html, path
        assert "&lt;img src=x" in client.get("/fleet/devices/evil/0").text
        found = client.get("/find", params={"q": "<img"}).text
        assert "&lt;img" in found and "<img src=x" not in found
