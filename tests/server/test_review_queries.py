"""Material for reviews: from books, archive and journal; a server that gathers it aside answers the same."""

import asyncio

import msgspec
import pytest

from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.access import Principal, Role
from keepstep.core.ids import IncidentId, JobId, ResourceId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import OpenRepair
from keepstep.core.resource import ResourceState as R
from keepstep.review.figures import Review
from keepstep.review.records import FaultRecord, IncidentRecord, JobRecord
from keepstep.server import review_queries as q
from keepstep.server import views
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.history import Books
from keepstep.server.queries import answer
from keepstep.server.records import incident_record
from keepstep.wire import messages as m

NOW_S = 1_000_000.0


def incident(number: int, **fields: object) -> IncidentRecord:
    known = {"job": "a", "tenant": "red", "kind": "fault", "state": "recovered", "cause": "device", "ranks": 8}
    at = NOW_S - 1000 * 100 + number * 60
    times = {"opened_s": at, "closed_s": at + 30, "downtime_s": 20.0, "stage_s": {"verifying": 20.0}, "nodes": ("n1",)}
    return IncidentRecord(**{"id": f"inc-{number}", **known, **times, **fields})  # type: ignore[arg-type]


def job(name: str, tenant: str) -> JobRecord:
    return JobRecord(
        id=name, tenant=tenant, state="finished", ranks=8, submitted_s=10.0, running_since_s=20.0, finished_s=NOW_S - 5
    )


def fault(number: int) -> FaultRecord:
    at = NOW_S - 90_000 + number
    return FaultRecord(
        id=f"f{number}", resource="n1/gpu/0", node="n1", part="gpu/0", cause="device", failure_class="c", scope="device",
        verdict="broken", opened_s=at, closed_s=at, outcome="o", rack="r0",
    )  # fmt: skip


@pytest.fixture
def desk() -> Desk:
    """1,200 incidents of two tenants, in three pages of the archive."""
    books = Books()
    over = [(incident(n, job="ab"[n % 2], tenant=("red", "blue")[n % 2], attempts=1 + n % 3), b"") for n in range(1200)]
    books.archive.put(1, [*over, (job("a", "red"), b""), (job("b", "blue"), b""), (fault(1), b""), (fault(2), b"")])
    return Desk(books, None, NOW_S, MemoryJournal())


def test_what_is_gathered_aside_is_the_same(desk: Desk) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> object:
        task = asyncio.ensure_future(others())
        try:
            return await q.review_aside(lambda: desk, 0.0)
        finally:
            task.cancel()

    assert asyncio.run(both()) == answer(desk, "review", {"since_s": 0.0})
    assert turns >= 5, "the loop goes on between pages"


def test_a_tenant_gets_their_own_review_only(desk: Desk) -> None:
    desk.seen_by(Principal(name="eve", role=Role.VIEWER, tenants=("red",)))
    told = q.review(desk, 0.0)
    assert told.tenant == "red" and [x.job for x in told.time.jobs] == ["a"] and told.cost.n == 600
    with pytest.raises(UnknownSubject, match="yours: red"):
        q.review(desk, 0.0, tenant="blue")
    with pytest.raises(UnknownSubject, match="no job 'b'"):
        q.review(desk, job="b")


def test_spans(desk: Desk) -> None:
    assert q.span(desk, None, None) == (NOW_S - 7 * 86_400, NOW_S)
    assert q.span(desk, 5.0, NOW_S * 9) == (5.0, NOW_S)
    with pytest.raises(ValueError, match="no time at all"):
        q.span(desk, NOW_S, None)


def test_an_open_incident_costs_until_now() -> None:
    books = Books()
    journal = MemoryJournal()
    spec = f.JobSpec(argv=("t.py",), nproc_per_node=1, elasticity=f.Elasticity(min_nodes=1, max_nodes=1))
    opened = d.Open(incident=IncidentId("inc-1"), job=JobId("j"), kind="fault", symptoms=())
    decision = d.Decision(stage="correlate", subject="inc-1", reason="r", changes=(opened,))
    for at_s, record in ((100.0, f.JobSubmitted(job=JobId("j"), spec=spec)), (200.0, decision)):
        for entry in journal.append(at_s, [record]):
            books.enter(entry)
    material = q.material_of(Desk(books, None, 260.0, journal), [], q.remediations(journal), 0.0, 260.0)
    (record,) = material.incidents
    assert (record.state, record.downtime_s, record.closed_s) == ("open", 60.0, 260.0)
    assert [x.id for x in material.jobs] == ["j"]


def test_an_incident_that_was_given_up_costs_to_its_end_wherever_one_looks() -> None:
    """Journals of before said in Close how long it took to the last step that was seen."""
    books = Books()
    spec = f.JobSpec(argv=("t.py",), nproc_per_node=1, elasticity=f.Elasticity(min_nodes=1, max_nodes=1))
    known, name = IncidentId("inc-1"), JobId("j")
    given_up = (
        d.MoveIncident(incident=known, to=IncidentState.ESCALATED),
        d.Close(incident=known, verdict="escalated", lost_steps=0, stage_s={}, downtime_s=3.0),
    )
    for at_s, record in (
        (100.0, f.JobSubmitted(job=name, spec=spec)),
        (200.0, decided("correlate", d.Open(incident=known, job=name, kind="fault", symptoms=()))),
        (210.0, decided("review", *given_up)),
    ):
        books.enter(d.Entry(seq=books.world.seq + 1, at_s=at_s, record=record))
    desk = Desk(books, None, 500.0)
    record = incident_record(books.world, books.world.incidents[known])
    assert answer(desk, "incident", {"id": "inc-1"}).incident.downtime_s == record.downtime_s == 10.0  # type: ignore[attr-defined]
    assert answer(desk, "report", {"job": "j"}).jobs[0].downtime_s == 10.0  # type: ignore[attr-defined]


def decided(stage: str, *changes: d.Change) -> d.Decision:
    return d.Decision(stage=stage, subject="inc-1", reason="r", changes=changes)


def test_repair_orders_come_from_the_journal(desk: Desk) -> None:
    assert desk.journal is not None
    part = ResourceId("device/n1/0")

    def moved(to: R, at_s: float, *intents: OpenRepair) -> None:
        change = d.MoveResource(resource=part, to=to)
        decision = d.Decision(
            stage="remediate", subject=part, reason="bad; opening a repair order", changes=(change,), intents=intents
        )
        assert desk.journal is not None
        desk.journal.append(at_s, [decision])

    moved(R.REPAIR, 100.0, OpenRepair(resource=part, serial="S", incident=IncidentId("inc-1"), reason="bad"))
    moved(R.VALIDATING, 200.0)
    moved(R.PROBATION, 250.0)
    moved(R.REPAIR, 300.0)
    for n in range(600):
        desk.journal.append(400.0 + n, [d.Decision(stage="remediate", subject=part, reason="r")])
    material = q.material_of(desk, [], q.remediations(desk.journal), 600.0, NOW_S)
    first, second = material.repairs
    assert (first.opened_s, first.closed_s, first.became, first.in_service_s) == (100.0, 200.0, "validating", 250.0)
    assert (first.incident, first.reason, second.closed_s) == ("inc-1", "bad", None)


def test_a_save_that_every_node_tells_is_one_and_as_slow_as_the_slowest_says() -> None:
    books = Books()
    for n in range(50):
        for node in range(20):
            save = f.CheckpointCommitted(
                job=JobId("a"), generation=1, step=n, key=f"k{n}", world_size=8, duration_s=1.0 + (node * 7) % 20, size_bytes=9
            )  # fmt: skip
            books.enter(d.Entry(seq=books.world.seq + 1, at_s=400.0 + 10 * n + node / 4, record=save))
    material = q.material_of(Desk(books, None, NOW_S), [], (), 600.0, 700.0)
    assert [(x.at_s, x.step) for x in material.saves] == [(400.0 + 10 * n, n) for n in range(20, 30)]
    assert {x.duration_s for x in material.saves} == {20.0}


def test_a_postmortem_dates_the_fault_and_finds_its_curves(desk: Desk) -> None:
    assert desk.journal is not None
    stalled = f.JobStalled(job=JobId("a"), generation=1, phase="step", step=9, stalled_s=40.0, deadline_s=30.0)
    known = incident(700)
    curve = tuple(f.CurvePoint(after_s=float(n), step=n, loss=1.0, step_time_s=1.0) for n in range(3))
    noted = f.CurveNoted(job=JobId("a"), incident=IncidentId(known.id), part="after", points=curve)
    (entry,) = desk.journal.append(known.opened_s, [stalled])
    desk.journal.append(known.closed_s, [noted])
    evidence = views.EvidenceView(entry=entry.seq, source="detect", text="no step for 40 s", supports=True)
    told = q.postmortem(desk, report(known, evidence))
    assert {x.what: x.after_s for x in told.moments}["fault"] == -40.0
    assert [p.step for p in told.after] == [0, 1, 2] and told.before == ()
    assert told.record.id == known.id and told.record.closed_s == known.closed_s
    assert "had failed 2 times before" in " ".join(x.why for x in told.follow_up)


def report(known: IncidentRecord, evidence: views.EvidenceView) -> views.IncidentReport:
    line = views.IncidentLine(
        id=known.id, job=known.job, kind="fault", state="recovered", cause="device", confidence=0.9, summary="", resources=(),
        opened_s=known.opened_s, closed_s=known.closed_s, downtime_s=20.0, step_before=9, restored_step=5, lost_steps=4,
        verdict="recovered",
    )  # fmt: skip
    attempt = views.AttemptView(
        generation=1, new_generation=2, cause="device", confidence=0.9, summary="", resources=(), lost_nodes=(), culprits=(),
        evidence=(evidence,), fenced={}, restore_tier="ram", restore_step=5, restore_key="k", rejected=(), warm_nodes=1,
        cold_nodes=0,
    )  # fmt: skip
    return views.IncidentReport(incident=line, attempts=(attempt,), actions=(), stages=(), verified_step=10)


def test_a_running_server_answers_it_and_goes_on(server, launcher, connect) -> None:
    """Over the wire, of a real process: the answer comes aside, other questions are answered, bad ones told."""
    one = launcher()
    one.pump_until(lambda: one.ranks, "it runs")
    tool = connect()
    tool.expect(m.Welcome)
    tool.send(m.Query(what="review", args={"since_s": 0.0}))
    reply = tool.expect(m.Reply)
    assert reply.ok, reply.error
    told = msgspec.msgpack.decode(reply.body, type=Review)
    assert told.until_s > 0 and told.recoveries.n == 0
    for args, words in (
        ({"since_s": 9e12}, "no time at all"),
        ({"job": "nope"}, "no job 'nope'"),
        ({"colour": 1}, "colour"),
    ):
        tool.send(m.Query(what="review", args=args))
        refused = tool.expect(m.Reply)
        assert not refused.ok and words in refused.error
