"""A big fleet and a long history: lists go by pages, a search through all of it keeps nobody waiting, answers stay small."""

import threading
from contextlib import asynccontextmanager

import pytest
from tests.web.served import Served
from tests.web.site import big_site

NODES, INCIDENTS = 1_000, 3_000
DEADLINE_S = 90.0
"""Below the patience of the clients: a server that is held up is told by the assertion."""


class SlowSearch:
    """An archive whose searches for a word take until they may go on; all else is the archive's own."""

    def __init__(self, archive):
        self._archive = archive
        self.began, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self._archive, name)

    def list(self, kind, where, **options):
        if where.get("q") == "slowly":
            self.began.set()
            self.go_on.wait(DEADLINE_S)
        return self._archive.list(kind, where, **options)


@pytest.fixture(scope="module")
def big():
    @asynccontextmanager
    async def rig():
        async with big_site(NODES, INCIDENTS) as made:
            made.books.archive = SlowSearch(made.books.archive)
            yield made

    running = Served(rig)
    yield running
    running.close()


def pages(served, path, name, **params):
    cursor = None
    while cursor != "":
        answer = served.http.get(f"/api/v1{path}", params=params | ({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        assert len(answer.content) < 300_000
        found = answer.json()
        yield from found[name]
        cursor, total = found["next"], found["total"]
    yield total


def test_every_item_is_on_one_page(big):
    *ids, total = (x if isinstance(x, int) else x["id"] for x in pages(big, "/resources", "resources", limit=500))
    assert len(ids) == len(set(ids)) == total == NODES * 9
    *ids, total = (x if isinstance(x, int) else x["id"] for x in pages(big, "/incidents", "incidents", limit=500))
    assert ids == [f"inc-{n:06d}" for n in range(INCIDENTS, 0, -1)]
    assert total == INCIDENTS


def test_filters_are_joined_with_pages(big):
    *lines, total = pages(big, "/incidents", "incidents", job="job-003", cause="device", limit=7)
    assert 0 < len(lines) == total < INCIDENTS / 20
    assert {(line["job"], line["cause"]) for line in lines} == {("job-003", "device")}
    *held, total = pages(big, "/holds", "holds", limit=100)
    assert len(held) == total > 100


def test_a_search_through_everything_keeps_nobody_waiting(big):
    search = threading.Thread(target=big.http.get, args=("/api/v1/incidents?q=slowly",))
    search.start()
    archive = big.rig.books.archive
    assert archive.began.wait(DEADLINE_S)
    with big.client() as http:
        assert http.get("/healthz").status_code == 200
    assert search.is_alive(), "it was answered after the search only"
    archive.go_on.set()
    search.join()
