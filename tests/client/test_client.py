"""The client against a real server: every method, pages, retries, keys, errors, events; and that it is light."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.web.served import Served
from tests.web.site import OWNER_TOKEN, running_site, story

from keepstep.client import (
    ApiError,
    AsyncClient,
    Client,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    Unreachable,
    WrongState,
)
from keepstep.core.facts import HoldRequested
from keepstep.server.state_dir import HttpSign, StateDir

DEADLINE_S = 60.0
"""Of one answer: a pause of this process must not look like a server that is gone, and be asked again."""
READS = {
    "job": ("job",), "live": ("job",), "ranks": ("job",), "launchers": ("job",), "checkpoints": ("job",), "report": (),
    "incident": ("inc-0002",), "fault": ("flt-0001",), "precision": (), "node": ("n1",), "resource": ("device/n1/0",),
    "health": (), "server": (), "policy": (), "review": (), "postmortem": ("inc-0002",),
}  # fmt: skip
LISTS = {
    "jobs": (), "incidents": (), "incident_journal": ("inc-0002",), "approvals": (), "faults": (), "nodes": (),
    "resources": (), "resource_journal": ("device/n1/0",), "holds": (), "journal": (), "tokens": (), "certificates": (),
    "drills": (),
}  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    running = Served(lambda: running_site(story()))
    yield running
    running.close()


@pytest.fixture
def client(served):
    with Client(served.url, OWNER_TOKEN, timeout_s=DEADLINE_S) as made:
        yield made


def test_every_read_answers(client):
    for name, arguments in READS.items():
        assert getattr(client, name)(*arguments) is not None, name
    assert client.job("job").state == "running"
    assert client.incident("inc-0002").incident.job == "job"


def test_lists_go_over_all_pages(client, served):
    whole = {name: list(getattr(client, name)(*arguments)) for name, arguments in LISTS.items()}
    assert [line.id for line in whole["incidents"]] == ["inc-0005", "inc-0003", "inc-0002"]
    assert len(whole["journal"]) >= 94
    with Client(served.url, OWNER_TOKEN, page=7, timeout_s=DEADLINE_S) as small:
        assert list(small.resources()) == whole["resources"]
        assert [e.seq for e in small.journal()] == [e.seq for e in whole["journal"]]


def test_the_async_client_says_the_same(client, served):
    async def ask():
        async with AsyncClient(served.url, OWNER_TOKEN, timeout_s=DEADLINE_S) as made:
            answers = {name: await getattr(made, name)(*arguments) for name, arguments in READS.items()}
            lists = {name: [x async for x in getattr(made, name)(*arguments)] for name, arguments in LISTS.items()}
            assert (await made.hold("node/n2", "fan")).subject == "node/n2"
            assert (await made.unhold("node/n2")).subject == "node/n2"
            return answers, lists

    answers, lists = asyncio.run(ask())
    assert answers["job"] == client.job("job")
    assert lists["resources"] == list(client.resources())


def test_requests_are_done(client, served):
    assert client.hold("device/n0/1", "fan").subject == "device/n0/1"
    assert [h.reason for h in client.holds(source="person:owner")] == ["fan"]
    assert client.unhold("device/n0/1").repeated is False
    made = client.create_token("grafana", "viewer", expires_in_s=60.0)
    with Client(served.url, made.secret) as other:
        assert other.server().leads
        with pytest.raises(PermissionDenied, match="may not stop job"):
            other.stop("job")
    client.revoke_token(made.accepted.subject)
    policy, tag = client.policy_with_tag()
    client.set_policy(policy.overrides + "[approvals]\nwait_s = 60\n", tag)
    with pytest.raises(WrongState, match="was changed since it was read"):
        client.set_policy("", tag)
    assert client.begin_drill("job", "kill-rank", rank=1).subject == "drill-0001"
    assert client.drill("drill-0001").drill == next(client.drills(job="job", state="injected"))
    assert client.approve("inc-0005").entry > 0
    assert client.stop("job", "enough").subject == "job"


def test_errors_say_what_the_server_said(client, served):
    with pytest.raises(NotFound, match="there is no job 'nope'"):
        client.job("nope")
    with pytest.raises(NotFound):
        client.job("no/such?job#")
    with pytest.raises(InvalidRequest, match="there are new, burn_in"):
        list(client.resources(state="broken"))
    with pytest.raises(ValueError, match="node/NODE or device/NODE/SLOT"):
        client.hold("rack/r1")
    with Client(served.url, "nonsense") as stranger, pytest.raises(Unauthenticated, match="keepstep token create"):
        stranger.server()


def test_address_and_token_come_from_the_state_directory(served, tmp_path):
    state = StateDir(tmp_path / "state")
    with pytest.raises(ValueError, match="no server writes its HTTP address"):
        Client(state_dir=state.path)
    state.create()
    sign = HttpSign(state, served.url)
    with pytest.raises(ValueError, match="there is no token file"):
        Client(state_dir=state.path)
    state.token_file.write_text(OWNER_TOKEN + "\n")
    with Client(state_dir=state.path) as made:
        assert made.server().leads
    sign.take_down()


class Flaky(ThreadingHTTPServer):
    """Answers what it was told to, in turn; remembers what it was asked."""

    daemon_threads = True

    def __init__(self, *answers: tuple[int, dict]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.asked = list(answers), []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(dict(self.headers))
        status, body = self.server.answers.pop(0)
        if status == 0:
            self.connection.close()
            return
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def flaky():
    made = []

    def make(*answers):
        made.append(Flaky(*answers))
        return made[-1]

    yield make
    for server in made:
        server.shutdown()
        server.server_close()


DONE = {"entry": 7, "subject": "job"}
NOBODY = {"title": "Service Unavailable", "status": 503, "detail": "nobody leads"}


def test_a_write_is_tried_again_under_the_same_key(flaky):
    server = flaky((503, NOBODY), (0, {}), (202, DONE))
    with Client(server.url, "t", timeout_s=DEADLINE_S) as client:
        assert client.stop("job").entry == 7
    keys = {asked["Idempotency-Key"] for asked in server.asked}
    assert len(server.asked) == 3 and len(keys) == 1


def test_tries_are_bounded(flaky):
    server = flaky(*[(503, NOBODY)] * 9)
    with Client(server.url, "t", timeout_s=DEADLINE_S) as client, pytest.raises(Unavailable, match="nobody leads"):
        client.stop("job")
    assert len(server.asked) == 5


def test_an_answer_that_is_not_ours_is_no_riddle(flaky):
    with Client(flaky((500, {"oops": 1})).url, "t") as client, pytest.raises(ApiError, match="the server answered 500"):
        client.server()


def test_where_nobody_listens_it_is_said():
    with Client("http://127.0.0.1:9", "t") as client, pytest.raises(Unreachable, match="no server answers at"):
        client.server()


def test_events_come_and_go_on_after_a_break(served):
    with Client(served.url, OWNER_TOKEN, timeout_s=DEADLINE_S) as client:
        events = client.events()
        first = next(events)
        assert first.seq == served.entries()
        told = HoldRequested(resource="device/n0/0", source="person:eve", by="eve")
        served.do(lambda rig: rig.tell(told))
        assert "device/n0/0" in next(events).subjects
        served.do(_break)
        served.do(lambda rig: rig.tell(told))
        after = next(events)
        assert (after.kind, after.seq) == ("change", served.entries())
        events.close()


async def _break(rig) -> None:
    """Every connection is lost, as when a proxy restarts."""
    for task in asyncio.all_tasks():
        if "run_asgi" in repr(task.get_coro()):
            task.cancel()


def test_the_client_brings_no_server_along():
    program = (
        "import sys, keepstep.client; "
        "print([m for m in ('litestar', 'uvicorn', 'httpx', 'sqlalchemy', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
