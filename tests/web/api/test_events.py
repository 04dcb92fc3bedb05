"""Live events over real HTTP: what is told, going on after a break, what a tenant hears, and their end."""

import json
import socket
import time

import msgspec
import pytest
from tests.web.served import PATIENT, WAIT_S, Served
from tests.web.site import OWNER_TOKEN, running_site

from keepstep.core.access import Role
from keepstep.core.facts import HoldRequested


def hold(resource):
    return HoldRequested(resource=resource, source="person:eve", by="eve")


class Stream:
    """Events as they come, as (kind, id, data)."""

    def __init__(self, served, token=OWNER_TOKEN, **headers):
        self.http = served.client(token, **headers)
        self.response = self.http.send(self.http.build_request("GET", "/api/v1/events"), stream=True)
        self.lines = self.response.iter_lines()

    def next(self):
        event = {}
        for line in self.lines:
            name, _, value = line.partition(": ")
            if line and name:
                event[name] = value
            elif "data" in event:
                return event["event"], int(event["id"]), json.loads(event["data"])
        return None

    def close(self):
        self.response.close()
        self.http.close()


@pytest.fixture
def listen():
    opened = []

    def begin(*arguments, **headers):
        opened.append(Stream(*arguments, **headers))
        return opened[-1]

    yield begin
    for stream in opened:
        stream.close()


def test_a_reader_hears_what_is_kept_and_about_what(fresh, listen):
    stream = listen(fresh)
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert stream.response.headers["cache-control"] == "no-store"
    kind, first, data = stream.next()
    assert (kind, data) == ("change", {"seq": fresh.entries(), "subjects": []})
    fresh.do(lambda rig: rig.tell(hold("device/n0/0")))
    kind, id, data = stream.next()
    assert (kind, id > first, id) == ("change", True, data["seq"])
    assert "device/n0/0" in data["subjects"] and "node/n0" in data["subjects"]


def test_a_reader_that_was_away_is_told_what_it_missed_or_to_begin_anew(fresh, listen):
    seen = fresh.entries()
    fresh.do(lambda rig: rig.tell(hold("device/n0/0")))
    kind, id, data = listen(fresh, **{"Last-Event-ID": str(seen)}).next()
    assert (kind, id) == ("change", fresh.entries())
    assert "device/n0/0" in data["subjects"] and "job" not in data["subjects"]
    fresh.do(lambda rig: rig.tell(*[hold(f"device/n0/{n % 2}") for n in range(201)]))
    for missed in (str(seen), str(fresh.entries() + 1), "nonsense"):
        assert listen(fresh, **{"Last-Event-ID": missed}).next()[0] == "reset", missed


def test_a_tenant_does_not_hear_of_jobs_of_others(fresh, listen):
    seen = fresh.entries()
    fresh.do(lambda rig: rig.tell(hold("device/n0/0")))
    token = fresh.token(Role.VIEWER, "red")
    stream = listen(fresh, token, **{"Last-Event-ID": str(seen - 20)})
    _, _, data = stream.next()
    assert "device/n0/0" in data["subjects"]
    assert not {"blue-1", "inc-0005", "job"} & set(data["subjects"])


def test_too_many_readers_are_sent_away_and_places_become_free(told, listen):
    served = Served(lambda: running_site(told), msgspec.structs.replace(PATIENT, readers_max=2))
    try:
        streams = [listen(served) for _ in range(2)]
        assert all(stream.next() for stream in streams)
        over = listen(served)
        assert (over.response.status_code, over.response.headers["retry-after"]) == (503, "5")
        streams[0].close()
        deadline = time.monotonic() + WAIT_S
        while (again := listen(served)).response.status_code != 200:
            assert time.monotonic() < deadline, "the place of a reader that left is not free again"
            time.sleep(0.05)
        assert again.next() is not None
    finally:
        served.close()


def test_streams_end_with_the_server_which_waits_for_nobody(told, listen):
    served = Served(lambda: running_site(told))
    stream = listen(served)
    assert stream.next() is not None
    idle = socket.create_connection(("127.0.0.1", served.port))
    served.close()
    assert stream.next() is None, "it ends as a stream does"
    idle.close()
