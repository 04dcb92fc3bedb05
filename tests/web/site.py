"""A real site for tests: the loop, the hub and a journal in memory, in the running event loop.

``story()`` is a small journal that the core wrote itself: a recovered incident, one that waits for a person, a fault, a hold.
``big_site()`` is a fleet of any size, deterministic, for what must stay quick.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from tests.core.build import JOB, Plane, device, disk

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.core import facts as f
from keepstep.core.access import Principal, Role
from keepstep.core.decision import Record
from keepstep.core.ids import JobId, NodeId, Session, device_resource, node_resource
from keepstep.core.intents import Order, RankPlace
from keepstep.core.job import Job, JobState, Launcher, Placement
from keepstep.core.policy import Policy
from keepstep.core.resource import Hold, Resource, ResourceState
from keepstep.core.vitals import JobVitals, RankSample
from keepstep.review.records import IncidentRecord
from keepstep.server import views
from keepstep.server.authentication import Authentication
from keepstep.server.history import Books
from keepstep.server.hub import Hub
from keepstep.server.leading import LeadingSite
from keepstep.server.loop import ControlLoop
from keepstep.server.registry import digest_of, new_secret
from keepstep.server.replay import replay

OWNER_TOKEN = "owner-token-of-the-tests"
START_S = 1_700_000_000.0


class StillClock:
    """Stands still unless it is told to go on: no deadline passes by itself, and every run sees the same ages."""

    def __init__(self, now_s: float) -> None:
        self.at_s = now_s

    def now_s(self) -> float:
        return self.at_s


class Unanswered:
    """Meets ports.Engine: takes local orders and never answers."""

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def submit(self, orders: Iterable[Order]) -> None:
        self.orders += orders


@dataclass
class Rig:
    """A site, and the parts of it that a test may want to touch."""

    site: LeadingSite
    loop: ControlLoop
    hub: Hub
    journal: MemoryJournal
    clock: StillClock

    @property
    def books(self) -> Books:
        return self.loop.books

    async def tell(self, *facts: f.Fact) -> None:
        """Returns once they are in the journal."""
        for fact in facts:
            await self.hub.take(fact, Session(f"test-{self.journal.last()}"))

    async def token(self, name: str, role: Role, tenants: tuple[str, ...] = ()) -> str:
        """A fresh API token: its secret."""
        secret = new_secret()
        number = self.books.registry.next_token
        await self.tell(
            f.TokenIssued(
                id=f"t{number}", digest=digest_of(secret), kind="api", role=role.value, tenants=tenants, name=name
            )
        )
        return secret


@asynccontextmanager
async def running_site(
    records: Sequence[tuple[float, Record]] = (), *, books: Books | None = None, now_s: float | None = None
) -> AsyncIterator[Rig]:
    """A site that leads. ``records`` are what its journal holds; ``books`` stand for a journal that would be too long."""
    journal = MemoryJournal()
    for at_s, record in records:
        journal.append(at_s, [record])
    if books is None:
        books = replay(journal, MemoryArchive())
    clock = StillClock(now_s if now_s is not None else max(START_S, books.history.last_s))
    loop = ControlLoop(journal, books, Policy(), clock)
    loop.start("life-1", "0.0-test")
    authentication = Authentication(OWNER_TOKEN, lambda: books.registry, clock)
    hub = Hub(loop, authentication, "life-1", clock)
    site = LeadingSite(loop, hub, journal, clock)
    hub.run(Unanswered())
    await asyncio.sleep(0)
    try:
        yield Rig(site, loop, hub, journal, clock)
    finally:
        if site._telling is not None:
            site._telling.cancel()
        hub.stop()


def story() -> list[tuple[float, Record]]:
    """What the core did with: a job on two nodes, a card that fell off the bus, a node that nobody can prove dead."""
    plane = Plane()
    plane.now_s = START_S
    plane.start(spares=2)
    parts = (f.NodePart(names=("gpu/0000:9b:00", "gpu/0"), serial="n1-gpu0", slot=0),)
    for name in ("n0", "n1", "n2", "n3"):
        session = Session(f"agent-{name}")
        plane.tell(
            f.AgentJoined(node=NodeId(name), session=session, boot_id="boot-1", parts=parts, domains={"rack": "r1"})
        )
    plane.tell(f.CheckpointCommitted(job=JOB, generation=1, step=10, key="disk-10", world_size=4, duration_s=0.5))
    plane.inventories = {name: f.Inventory(disk=(disk(10, key="disk-10"),)) for name in ("n0", "n1", "n2", "n3")}
    plane.tell(plane.exited(2, signal=11))
    plane.recover(loss=1.9)
    plane.wait(30.0)
    plane.tell(f.SignalSeen(resource=device("n1", 0), signal="xid.79", part="gpu/0", detail="fell off the bus"))
    plane.wait(1.0)
    if plane.incident.open:
        plane.recover(loss=1.8)
    plane.tell(f.HoldRequested(resource=device("n3", 1), source="person:eve", by="eve", reason="smells of smoke"))
    return [*plane.journal, *_stuck(plane)]


def _stuck(plane: Plane) -> list[tuple[float, Record]]:
    """A second job of another tenant, whose only node is silent: its incident waits for a person."""
    told = len(plane.journal)
    job, node, session = JobId("blue-1"), NodeId("b0"), Session("b0-0")
    spec = f.JobSpec(
        argv=("blue.py", "--secret-name"),
        nproc_per_node=1,
        tenant="blue",
        elasticity=f.Elasticity(min_nodes=1, max_nodes=1),
    )
    plane.tell(f.JobSubmitted(job=job, spec=spec, by="bob"))
    plane.tell(
        f.NodeJoined(
            job=job, node=node, session=session, boot_id="boot-1", devices=(f.Device(slot=0, serial="b0-gpu0"),),
            address="b0", pid=100, pid_start=7, store="b0:4000",
        )
    )  # fmt: skip
    plane.launch_all()
    plane.now_s += 1.0
    plane.tell(f.StepsAdvanced(job=job, generation=1, step=20, ranks=1, loss=1.0, step_time_s=0.1))
    plane.tell(f.NodeUnreachable(job=job, node=node, session=session, silent_s=3.0))
    plane.tell(f.Witnessed(job=job, node=node, session=session, witness="host", verdict="process_gone"))
    plane.wait(plane.policy.incident_deadline_s["isolating"] + 1.0)
    plane.wait(20.0)
    return plane.journal[told:] if told else []


def viewer(*tenants: str) -> Principal:
    return Principal(name="vera", role=Role.VIEWER, tenants=tenants)


# ---- a big one

CAUSES = ("device", "network", "host_hardware", "application", "dependency", "unknown")
STATES = (ResourceState.IN_SERVICE,) * 40 + (
    ResourceState.SUSPECT, ResourceState.QUARANTINED, ResourceState.REPAIR, ResourceState.VALIDATING, ResourceState.LOST,
)  # fmt: skip
DEVICES = 8
PER_RACK = 16


def big_books(nodes: int, incidents: int, *, jobs: int = 20, seed: int = 7) -> Books:
    """Racks of 16 nodes of 8 devices, some of them ill (and in no line for remediation: the core leaves them as they are); jobs
    that run on shares of the fleet; closed incidents, the newest just over."""
    draw, books = random.Random(seed), Books(archive=MemoryArchive())
    for number in range(nodes):
        _node(books, number, draw)
    for number in range(jobs):
        _job(books, number, range(number * nodes // jobs, (number + 1) * nodes // jobs))
    books.archive.put(0, [_incident(number, incidents, nodes, jobs, draw) for number in range(incidents)])
    books.world.next_incident = incidents + 1
    books.history.last_s = START_S
    return books


@asynccontextmanager
async def big_site(nodes: int = 10_000, incidents: int = 100_000, **options: int) -> AsyncIterator[Rig]:
    """A running site on big_books; its journal holds only what happens from now on. Its jobs have vitals."""
    books = big_books(nodes, incidents, **options)
    async with running_site(books=books, now_s=START_S) as rig:
        for job in books.world.jobs.values():
            rig.loop.vitals.jobs[job.id] = _vitals(job)
        yield rig


def _node(books: Books, number: int, draw: random.Random) -> None:
    world, node = books.world, NodeId(f"node-{number:05d}")
    rack = f"rack-{number // PER_RACK:04d}"
    world.domains[node] = {"rack": rack}
    world.members.setdefault(("rack", rack), {})[node] = None
    world.by_node[node] = [node_resource(node)]
    world.resources[node_resource(node)] = Resource(
        id=node_resource(node), node=node, state=ResourceState.IN_SERVICE, boot_id="boot-1"
    )
    for slot in range(DEVICES):
        id, state = device_resource(node, slot), draw.choice(STATES)
        held = state is not ResourceState.IN_SERVICE and state is not ResourceState.SUSPECT
        holds = {"gate": Hold(source="gate", reason="until it is validated", since_s=START_S - 3600.0)} if held else {}
        world.resources[id] = Resource(
            id=id, node=node, serial=f"SN{number:05d}{slot}", model="H200", state=state, holds=holds, boot_id="boot-1"
        )
        world.by_node[node].append(id)


def _job(books: Books, number: int, span: range) -> None:
    """Ended where no node is left for it, else running on its span of the fleet."""
    id, world = JobId(f"job-{number:03d}"), books.world
    places = {
        NodeId(f"node-{n:05d}"): tuple(
            RankPlace(rank=i * DEVICES + s, local_rank=s, slot=s) for s in range(DEVICES)
        )
        for i, n in enumerate(span)
    }  # fmt: skip
    spec = f.JobSpec(
        argv=("pretrain.py", f"--run={number}"), nproc_per_node=DEVICES, tenant=("default", "blue", "red")[number % 3],
        elasticity=f.Elasticity(min_nodes=1, max_nodes=max(1, len(places))), labels={"model": f"m{number % 4}"},
    )  # fmt: skip
    job = Job(
        id=id, spec=spec, submitted_s=START_S - 86_400.0, generation=1, step=10_000 + number, step_time_s=4.2, loss=2.0
    )
    job.running_since_s = job.submitted_s + 60.0
    job.placement = Placement(generation=1, world_size=len(places) * DEVICES, nodes=places)
    job.committed_step, job.committed_s, job.commit_every_s = job.step - 50, START_S - 210.0, 1800.0
    job.state = JobState.RUNNING if places else JobState.FINISHED
    job.launchers = {
        node: Launcher(
            node=node, session=Session(f"{node}-0"), boot_id="boot-1", slots=tuple(range(DEVICES)), running=1, confirmed=1
        )
        for node in places
    }  # fmt: skip
    world.jobs[id] = job
    if places:
        world.live_jobs[id] = None


def _vitals(job: Job) -> JobVitals:
    assert job.placement is not None
    ranks = range(min(job.placement.world_size, 4096))
    samples = {
        rank: RankSample(
            rank=rank, phase="step", step=job.step, idle_s=0.1, phase_s=0.1, step_time_s=4.2 + rank % 7 / 100, loss=2.0,
            state="R", cpu_s=1.0,
        )
        for rank in ranks
    }  # fmt: skip
    return JobVitals(generation=1, ranks=samples)


def _incident(
    number: int, of: int, nodes: int, jobs: int, draw: random.Random
) -> tuple[IncidentRecord, bytes]:  # fmt: skip
    id, job = f"inc-{number + 1:06d}", number % jobs
    node = f"node-{draw.randrange(nodes):05d}"
    closed_s = START_S - (of - number) * 300.0
    down_s = draw.uniform(20.0, 240.0)
    state = "recovered" if draw.random() < 0.95 else "escalated"
    record = IncidentRecord(
        id=id, job=f"job-{job:03d}", tenant=("default", "blue", "red")[job % 3], kind="fault", state=state,
        cause=draw.choice(CAUSES), confidence=0.9, summary=f"rank {draw.randrange(512)} on {node} ended with signal 11",
        resources=(f"device/{node}/{draw.randrange(DEVICES)}",), nodes=(node,), racks=("rack-0000",),
        opened_s=closed_s - down_s, closed_s=closed_s, downtime_s=down_s, ranks=512, step_before=number, lost_steps=3,
        redone_s=12.6, verdict="progressing again", stage_s={"isolating": down_s / 2, "verifying": down_s / 2},
    )  # fmt: skip
    line = views.IncidentLine(
        id=id, job=record.job, kind="fault", state=state, cause=record.cause, confidence=0.9, summary=record.summary,
        resources=record.resources, opened_s=record.opened_s, closed_s=closed_s, downtime_s=down_s, step_before=number,
        restored_step=number - 3, lost_steps=3, verdict=record.verdict, tenant=record.tenant,
    )  # fmt: skip
    report = views.IncidentReport(incident=line, attempts=(), actions=(), stages=(), verified_step=number)
    return record, msgspec.msgpack.encode(report)
