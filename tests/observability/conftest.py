"""Journals of simulated fleets, folded as a server folds them; a site to be measured; receivers that listen for real."""

import http.server
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from keepstep.core import facts as f
from keepstep.core.decision import Entry, Record
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.resource import ResourceState
from keepstep.core.vitals import Vitals
from keepstep.server.desk import Desk
from keepstep.server.history import Books
from keepstep.server.meters import Meters
from keepstep.sim.run import Simulation
from keepstep.sim.scenario import Drills, load

DEADLINE_S = 90.0


@dataclass
class Site:
    """As much of a server's site as is measured."""

    books: Books = field(default_factory=Books)
    vitals: Vitals = field(default_factory=Vitals)
    meters: Meters = field(default_factory=Meters)
    at_s: float = 0.0
    leads: bool = True

    def desk(self) -> Desk:
        return Desk(self.books, self.vitals, self.at_s)

    def enter(self, at_s: float, *records: Record) -> list[Entry]:
        """Fold records as the next entries of the journal."""
        entries = [Entry(seq=self.books.world.seq + n + 1, at_s=at_s, record=r) for n, r in enumerate(records)]
        for entry in entries:
            self.books.enter(entry)
        self.at_s = max(self.at_s, at_s)
        return entries


def fold(entries: Sequence[Entry]) -> Site:
    site = Site()
    for entry in entries:
        site.books.enter(entry)
        site.at_s = entry.at_s
    return site


@pytest.fixture(scope="session")
def journals() -> Callable[[str, int], list[Entry]]:
    """(scenario, seed) -> its journal, without drills; each is simulated once."""
    known: dict[tuple[str, int], list[Entry]] = {}

    def of(scenario: str, seed: int) -> list[Entry]:
        if (scenario, seed) not in known:
            simulation = Simulation(scenario, seed, msgspec.structs.replace(load(scenario), drills=Drills()))
            simulation.run()
            rows = enumerate(simulation.server.journal.read(), 1)
            known[scenario, seed] = [Entry(seq=seq, at_s=at_s, record=record) for seq, (at_s, record) in rows]
        return known[scenario, seed]

    return of


@pytest.fixture(scope="session")
def recovered(journals: Callable[[str, int], list[Entry]]) -> list[Entry]:
    """Several jobs with recoveries of many kinds, one that waited for a person, and one that was given up."""
    return journals("mixed", 2)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture(scope="session")
def site_of() -> Callable[[Sequence[Entry]], Site]:
    return fold


@pytest.fixture(scope="session")
def large() -> Site:
    """10,000 nodes with 8 devices each and an agent, of which hundreds want attention; 300 live jobs."""
    site = Site(at_s=1000.0)
    for n in range(10_000):
        job, node, session = JobId(f"job{n % 300}"), NodeId(f"n{n:05d}"), Session(f"s{n}")
        if n < 300:
            spec = f.JobSpec(argv=("t",), nproc_per_node=8, elasticity=f.Elasticity(min_nodes=1, max_nodes=99))
            site.enter(1000.0, f.JobSubmitted(job=job, spec=spec))
        devices = tuple(f.Device(slot=slot, serial=f"{node}-{slot}") for slot in range(8))
        site.enter(
            1000.0,
            f.NodeJoined(job=job, node=node, session=session, boot_id="b", devices=devices, address="10.0.0.1"),
            f.AgentJoined(node=node, session=session, boot_id="b"),
        )
        site.vitals.agent_connected(node, session, 1000.0 - n % 7)
        if n % 25 == 0:
            site.enter(1000.0, f.HoldRequested(resource=f"node/{node}", source="person:a", by="a"))
    # 100,000 decisions of the engine would say the same, and take a minute.
    for count, resource in enumerate(site.books.world.resources.values()):
        resource.state = ResourceState.IN_SERVICE if count % 50 else ResourceState.REPAIR
    return site


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """An HTTP server on a free port of the loopback: keeps what is posted, and answers as it is told."""

    def __init__(self) -> None:
        self.requests: queue.Queue[Request] = queue.Queue()
        self.answers: queue.Queue[int] = queue.Queue()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                receiver.requests.put(Request(self.path, dict(self.headers), body))
                self.send_response(200 if receiver.answers.empty() else receiver.answers.get())
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self) -> Request:
        """The next request. Fails where none comes."""
        return self.requests.get(timeout=DEADLINE_S)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def eventually() -> Callable[[Callable[[], object], str], None]:
    """Waits until something is true; fails with what was waited for."""

    def wait(true: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not true():
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
            time.sleep(0.01)

    return wait
