"""Two threads of one server at its lease: the one that renews it, and the end of the server, which gives it back."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from keepstep.adapters.database.engine import Connections, reach
from keepstep.adapters.database.fence import Fence
from keepstep.adapters.database.leadership import SqlLeadership
from keepstep.adapters.database.migrate import CURRENT, Schema
from keepstep.adapters.database.opening import open_database

PATIENCE_S = 60.0


class Slow(Connections):
    """The first transaction of all begins late."""

    def __init__(self, path: Path) -> None:
        super().__init__(reach(path, read_only=False, patience_s=PATIENCE_S), read_only=False)
        self.asked, self.goes_on = threading.Event(), threading.Event()

    @contextmanager
    def writing(self, *, patient: bool = False) -> Iterator[Connection]:
        if not self.asked.is_set():
            self.asked.set()
            assert self.goes_on.wait(PATIENCE_S)
        with super().writing(patient=patient) as connection:
            yield connection


def test_a_renewal_that_is_under_way_does_not_undo_a_release(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    open_database(path, patience_s=PATIENCE_S).close()
    connections, fence = Slow(path), Fence(is_postgresql=False)
    leadership = SqlLeadership(connections, fence, None, Schema(connections, CURRENT))
    connections.goes_on.set()
    assert leadership.acquire("one", "unix:/one", 600.0) == 1
    connections.asked.clear()
    connections.goes_on.clear()
    with ThreadPoolExecutor(2) as threads:
        renewing = threads.submit(leadership.renew, 600.0)
        assert connections.asked.wait(PATIENCE_S)
        releasing = threads.submit(leadership.release)
        with pytest.raises(TimeoutError):
            releasing.exception(timeout=0.3)
        connections.goes_on.set()
        assert renewing.result(PATIENCE_S)
        releasing.result(PATIENCE_S)
    known = leadership.leader()
    assert known is not None and known.expires_in_s <= 0
    assert not leadership.renew(600.0)
    connections.close()
