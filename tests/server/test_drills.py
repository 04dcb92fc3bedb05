"""What the server says of drills: answers, records, reports and metrics, from a journal that the core wrote."""

import pytest
from tests.core.build import JOB, Plane, disk
from tests.core.test_drills import begin, kill, steady

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.core import facts as f
from keepstep.core import intents as i
from keepstep.core.access import Principal, Role
from keepstep.core.incident import IncidentState
from keepstep.core.policy import Policy, Retention
from keepstep.review.figures import Review
from keepstep.server import snapshot
from keepstep.server.alerts import Alerts
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.finish import finished
from keepstep.server.history import DRILLS_KEPT, Books
from keepstep.server.job_metrics import recoveries
from keepstep.server.meters import Meters
from keepstep.server.queries import answer

SIGKILL = 9


def books_of(plane: Plane) -> Books:
    """Folded as a server folds them; what is over goes into the archive."""
    books, journal = Books(archive=MemoryArchive()), MemoryJournal()
    for at_s, record in plane.journal:
        for entry in journal.append(at_s, [record]):
            books.enter(entry)
            if hasattr(record, "changes"):
                books.archive.put(entry.seq, list(finished(Desk(books, None, at_s), record)))
    return books


def desk_of(plane: Plane) -> Desk:
    return Desk(books_of(plane), None, plane.now_s + 1.0, MemoryJournal())


@pytest.fixture
def plane() -> Plane:
    """A drill that passed, then a rank that died by itself, then a drill that missed its mark, then one called off."""
    made = steady()
    begin(made)
    made.now_s += 0.5
    kill(made)
    made.recover()
    made.tell(made.exited(1, signal=SIGKILL))
    made.recover()
    begin(made)
    made.wait(made.policy.drills.detect_s + 1)
    kill(made)
    made.recover()
    begin(made, rank=9)
    return made


def test_drills_are_listed_newest_first_and_in_pages(plane: Plane) -> None:
    desk = desk_of(plane)
    whole = answer(desk, "drills", {})
    assert [(x.id, x.state) for x in whole.drills] == [  # type: ignore[attr-defined]
        ("drill-0003", "called_off"), ("drill-0002", "failed"), ("drill-0001", "passed"),
    ]  # fmt: skip
    first = answer(desk, "drills", {"limit": 2})
    rest = answer(desk, "drills", {"limit": 2, "cursor": first.next})  # type: ignore[attr-defined]
    assert (*first.drills, *rest.drills) == whole.drills and first.total == 3  # type: ignore[attr-defined]
    assert [x.id for x in answer(desk, "drills", {"state": "failed"}).drills] == ["drill-0002"]  # type: ignore[attr-defined]
    assert answer(desk, "drills", {"job": "other"}).total == 0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="'broken' is no state of a drill; there are waiting, injected"):
        answer(desk, "drills", {"state": "broken"})


def test_one_is_told_with_its_times_and_the_limits_that_hold(plane: Plane) -> None:
    plane.tell(f.PolicySet(by="ann", overrides="[drills]\ndetect_s = 7.0\n"))
    told = answer(desk_of(plane), "drill", {"id": "drill-0001"})
    assert told.times.detected_after_s == pytest.approx(0.5)  # type: ignore[attr-defined]
    assert told.times.downtime_s > 0 and told.limits.detect_s == 7.0  # type: ignore[attr-defined]
    assert [x.stage for x in told.actions] == ["rehearse"] * 3  # type: ignore[attr-defined]
    assert told.actions[0].orders[0].kind == "Inject"  # type: ignore[attr-defined]
    with pytest.raises(
        UnknownSubject, match="there is no drill 'x'; the newest are: drill-0001, drill-0002, drill-0003"
    ):
        answer(desk_of(plane), "drill", {"id": "x"})


def test_times_are_known_after_the_incident_has_left_the_world() -> None:
    made = steady(Policy(retention=Retention(incidents_s=60.0)))
    drill = begin(made)
    made.now_s += 0.5
    kill(made)
    made.recover()
    before = answer(desk_of(made), "drill", {"id": drill.id})
    for _ in range(3):
        made.wait(60.0)
    desk = desk_of(made)
    assert drill.incident is not None and drill.incident not in desk.world.incidents
    assert answer(desk, "drill", {"id": drill.id}).times == before.times  # type: ignore[attr-defined]
    assert answer(desk, "incident", {"id": drill.incident}).incident.drill == drill.id  # type: ignore[attr-defined]


def test_of_another_tenants_drills_nothing_is_seen(plane: Plane) -> None:
    desk = desk_of(plane).seen_by(Principal(name="eve", role=Role.VIEWER, tenants=("blue",)))
    assert answer(desk, "drills", {}).total == 0  # type: ignore[attr-defined]
    with pytest.raises(UnknownSubject, match="the newest are: none"):
        answer(desk, "drill", {"id": "drill-0001"})


def test_records_and_reviews_tell_drills_from_faults(plane: Plane) -> None:
    desk = desk_of(plane)
    review = answer(desk, "review", {"since_s": 0.0})
    assert isinstance(review, Review)
    assert (review.failures.n, review.recoveries.n, review.cost.n) == (1, 1, 1)
    assert (review.drills.n, review.drills.passed.hits, review.drills.called_off) == (2, 1, 1)
    assert review.drills.detection_s.n == 2 and review.drills.recovery_s.n == 2
    assert review.drills.latest[-1].detected_after_s == pytest.approx(0.5)
    assert {x.tenant for x in review.drills.latest} == {"default"}
    lines = answer(desk, "incidents", {}).incidents  # type: ignore[attr-defined]
    assert [x.drill for x in lines] == ["drill-0002", "", "drill-0001"]
    (report,) = answer(desk, "report", {"job": JOB}).jobs  # type: ignore[attr-defined]
    assert report.faults == 1 and report.by_cause["drill"] == 2
    assert next(x.count for x in report.stages if x.stage == "all") == 1
    down_s = sum(x.downtime_s for x in lines)
    assert report.downtime_s == pytest.approx(down_s), "what drills cost is charged"


def test_the_review_of_a_drills_incident_has_its_marks(plane: Plane) -> None:
    desk = desk_of(plane)
    incident = plane.world.drills[next(iter(plane.world.drills))].incident
    told = answer(desk, "postmortem", {"id": incident})
    assert told.drill.id == "drill-0001" and len(told.drill.marks) == 6  # type: ignore[attr-defined]
    by_itself = next(x.id for x in plane.world.incidents.values() if x.kind == "fault" and x.drill is None)
    assert answer(desk, "postmortem", {"id": by_itself}).drill is None  # type: ignore[attr-defined]


def test_metrics_count_drills_apart(plane: Plane) -> None:
    desk = desk_of(plane)
    told = {x.name: dict(x.samples) for x in recoveries(desk, Meters())}
    assert told["keepstep_drills"] == {
        ("kill-rank", "passed"): 1, ("kill-rank", "failed"): 1, ("kill-rank", "called_off"): 1,
    }  # fmt: skip
    late = told["keepstep_drill_detection_seconds"]["kill-rank",]
    assert (late.count, late.sum) == (2, pytest.approx(0.5 + plane.policy.drills.detect_s + 1))  # type: ignore[union-attr]
    assert told["keepstep_drill_recovery_seconds"]["kill-rank",].count == 2  # type: ignore[union-attr]
    outcomes = {(of, outcome): n for (of, _, outcome), n in told["keepstep_incidents"].items()}
    assert outcomes == {("drill", "recovered"): 2, ("host_software", "recovered"): 1}
    assert sum(x.count for x in told["keepstep_recovery_seconds"].values()) == 1  # type: ignore[union-attr]
    assert told["keepstep_lost_gpu_seconds"]["drill", "drill"] > 0  # type: ignore[operator]
    assert {group for _, group, _ in told["keepstep_stage_seconds"]} >= {"drill", "start"}


def test_drills_of_long_ago_leave_the_history_and_a_snapshot_knows_the_rest() -> None:
    made = steady()
    for _ in range(DRILLS_KEPT + 5):
        begin(made, rank=9)
    books = books_of(made)
    kept = [subject for subject in books.history.steps if subject.startswith("drill-")]
    assert len(kept) == DRILLS_KEPT and kept[-1] == f"drill-{DRILLS_KEPT + 5:04d}"
    again = snapshot.decode(snapshot.encode(books), Books(archive=MemoryArchive()))
    assert again.history == books.history and again.world.drills == books.world.drills


def test_a_drill_is_no_preemption() -> None:
    """Even where a signal of the hardware comes before the rank's own end, as when a killed process upsets its card."""
    made = Plane()
    made.inventories = {"n0": f.Inventory(disk=(disk(8),))}
    made.start(spares=1)
    made.tell(f.CheckpointCommitted(job=JOB, generation=1, step=10, key="disk-10", world_size=4))
    begin(made)
    made.answer(i.Inject, f.Done())
    made.tell(f.SignalSeen(resource="device/n1/0", signal="xid.79", part="gpu/0", detail="fell off the bus"))
    made.wait(1.0)
    diagnosis = made.incident.attempt.diagnosis
    assert diagnosis is not None and diagnosis.fault is not None
    assert books_of(made).history.ledger.preemptions() == []


def test_people_are_told_once_of_a_drill_that_failed(plane: Plane) -> None:
    """Nothing of it lasts that could be over: it is not told again and again."""
    alerts, books, journal, told = Alerts(), Books(archive=MemoryArchive()), MemoryJournal(), []
    for at_s, record in plane.journal:
        for entry in journal.append(at_s, [record]):
            books.enter(entry)
            told += alerts.note(books.world, entry)
    drills = [x for x in told if x.subject.startswith("drill")]
    assert [(x.title, x.level, x.job) for x in drills] == [
        ("job: drill-0002", "page", "job"), ("job: drill-0003", "warning", "job"),
    ]  # fmt: skip
    assert "noticed after" in drills[0].text and "no rank 9" in drills[1].text
    assert alerts.firing == []


def test_an_incident_that_was_no_fault_is_no_drill() -> None:
    """A stall that dissolves before the order has arrived: it is not charged to the drill, and the drill goes on."""
    made = steady()
    drill = begin(made, "stop-rank", rank=1)
    made.tell(made.stalled())
    assert made.incident.drill == drill.id
    made.tell(f.StepsAdvanced(job=JOB, generation=made.job.generation, step=40, ranks=4, loss=1.0, step_time_s=0.1))
    made.wait(60.0)
    over = made.world.incidents[next(x for x in made.world.closed_incidents if made.world.incidents[x].kind == "fault")]
    assert over.state is IncidentState.NO_FAULT and drill.open
    desk = desk_of(made)
    assert [x.drill for x in answer(desk, "incidents", {}).incidents] == [""]  # type: ignore[attr-defined]
    told = {x.name: dict(x.samples) for x in recoveries(desk, Meters())}
    assert told["keepstep_drill_detection_seconds"] == {}
    assert all(of != "drill" for of, _, _ in told["keepstep_incidents"])
