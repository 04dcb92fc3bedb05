"""Drills: the table of their states, when one begins and ends, how it is scored, and what it must not be charged to."""

import pytest

from keepstep.core import drill as table
from keepstep.core import facts as f
from keepstep.core.apply_drill import move_drill
from keepstep.core.decision import Decision, MoveDrill
from keepstep.core.drill import KINDS, Drill, DrillKind, DrillState
from keepstep.core.errors import IllegalMove, InvariantBroken
from keepstep.core.ids import DrillId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import CollectStacks, Fence, Inject, Notify
from keepstep.core.invariants import check
from keepstep.core.job import JobState
from keepstep.core.policy import Drills, Policy

from .build import JOB, Plane, bug, disk, ram, replayed, stacks, waiting

SIGKILL = 9


def steady(policy: Policy | None = None, *, spares: int = 1, labels: dict[str, str] | None = None) -> Plane:
    """A job that has run for a while and has something to go back to."""
    plane = Plane(policy)
    plane.inventories = {"n0": f.Inventory(disk=(disk(8),))}
    plane.labels = labels or {}
    plane.start(spares=spares)
    plane.tell(
        f.CheckpointCommitted(job=JOB, generation=plane.job.generation, step=10, key="disk-10", world_size=4),
    )
    return plane


def begin(plane: Plane, kind: DrillKind = "kill-rank", rank: int | None = 2) -> Drill:
    plane.tell(f.DrillRequested(job=JOB, kind=kind, by="ann", rank=rank))
    return newest(plane)


def newest(plane: Plane) -> Drill:
    return list(plane.world.drills.values())[-1]


def injected(plane: Plane) -> Inject:
    ((_, order),) = plane.pending(Inject)
    return order


def kill(plane: Plane, rank: int = 2) -> None:
    """What the order does: the rank is gone, the launcher says so and answers."""
    plane.answer(Inject, f.Done())
    plane.tell(plane.exited(rank, signal=SIGKILL))


# ---- the table


@pytest.mark.parametrize("start", DrillState)
def test_a_drill_makes_no_move_outside_its_table(start: DrillState) -> None:
    for to in DrillState:
        plane = steady()
        drill = begin(plane)
        drill.state = start
        move = MoveDrill(drill=drill.id, to=to)
        if to in table.TRANSITIONS[start]:
            move_drill(plane.world, drill, move, plane.now_s)
            assert drill.state is to
        else:
            with pytest.raises(IllegalMove, match="not in the table"):
                move_drill(plane.world, drill, move, plane.now_s)
            assert drill.state is start


def test_every_state_has_an_owner_and_every_end_closes_the_drill() -> None:
    assert set(table.TRANSITIONS) == set(table.OWNER) == set(DrillState)
    assert {state for state, ways in table.TRANSITIONS.items() if not ways} == set(table.TERMINAL)


# ---- one drill


def test_a_drill_hits_the_rank_that_was_asked_for_and_passes_when_it_was_recovered_from() -> None:
    plane = steady()
    drill = begin(plane)
    order = injected(plane)
    assert (order.rank, order.node, order.generation) == (2, "n1", plane.job.generation)
    assert order.session == plane.session("n1")
    plane.now_s += 0.25
    kill(plane)
    assert drill.state is DrillState.RECOVERING
    assert plane.incident.drill == drill.id and drill.incident == plane.incident.id
    plane.recover()
    assert drill.state is DrillState.PASSED, drill.reason
    assert {mark.question: mark.good for mark in drill.marks} == dict.fromkeys(
        ("detected", "blamed", "isolated", "restarted", "verified", "recovered"), True
    )
    assert drill.marks[0].text == "noticed after 0.25 s"
    assert not plane.world.open_drills


def test_the_world_with_its_drills_comes_back_from_the_journal() -> None:
    plane = steady()
    begin(plane)
    kill(plane)
    plane.recover()
    again = replayed(plane)
    assert again.drills == plane.world.drills and again.next_drill == 2


def test_the_diagnosis_does_not_know_of_the_drill() -> None:
    """The same evidence is judged alike with and without."""
    with_drill, without = steady(), steady()
    begin(with_drill)
    kill(with_drill)
    without.tell(without.exited(2, signal=SIGKILL))
    found = [plane.incident.attempt.diagnosis for plane in (with_drill, without)]
    assert found[0] is not None and found[1] is not None
    assert found[0].summary == found[1].summary and found[0].confidence == found[1].confidence


def test_a_drill_is_charged_to_no_device_and_no_budget() -> None:
    plane = steady()
    for _ in range(20):
        begin(plane)
        kill(plane)
        plane.recover()
        assert newest(plane).state is DrillState.PASSED, newest(plane).reason
    assert plane.job.failures == []
    assert all(not resource.failures and not resource.holds for resource in plane.world.resources.values())
    plane.tell(plane.exited(2, signal=SIGKILL))
    assert len(plane.job.failures) == 1, "one that nobody ordered is"


def test_a_real_fault_during_a_drill_is_charged_and_fails_the_drill() -> None:
    plane = steady()
    drill = begin(plane, rank=2)
    plane.answer(Inject, f.Done())
    plane.tell(plane.exited(1, signal=SIGKILL))
    plane.recover()
    assert len(plane.job.failures) == 1
    assert drill.state is DrillState.FAILED
    assert [mark.question for mark in drill.marks if not mark.good] == ["blamed"]


def test_what_nothing_notices_fails_and_pages() -> None:
    plane = steady()
    drill = begin(plane, "stop-rank")
    [(_, ordered)] = plane.pending(Inject)
    plane.answer(Inject, f.Done())
    plane.wait(4 * plane.policy.drills.detect_s - 1)
    assert drill.state is DrillState.INJECTED
    plane.wait(1)
    assert drill.state is DrillState.FAILED and "nothing was noticed" in drill.reason
    assert "rank 2 on n1 goes on by itself in 30 s" in drill.reason
    assert ordered.for_s == 5 * plane.policy.drills.detect_s
    assert [note.level for _, note in plane.pending(Notify)] == ["page"]


def test_what_is_noticed_late_is_scored_late() -> None:
    plane = steady()
    drill = begin(plane)
    plane.wait(plane.policy.drills.detect_s + 1)
    kill(plane)
    plane.recover()
    assert drill.state is DrillState.FAILED
    assert [mark.question for mark in drill.marks if not mark.good] == ["detected"]


def test_a_stopped_rank_that_is_named_passes() -> None:
    plane = steady()
    drill = begin(plane, "stop-rank", rank=1)
    plane.answer(Inject, f.Done())
    plane.tell(plane.stalled(stopped=(1,)))
    stopped = f.RankStack(rank=1, process_state="T", frames=("train.py:1 step",))
    plane.answer(CollectStacks, stacks(waiting(0), stopped, waiting(2), waiting(3)))
    plane.recover()
    assert drill.state is DrillState.PASSED, drill.reason


def test_a_lost_node_is_a_drill_only_where_a_spare_stands_by() -> None:
    plane = steady(spares=0)
    drill = begin(plane, "lose-node")
    assert drill.state is DrillState.WAITING and not plane.pending(Inject)
    plane.wait(plane.policy.drills.wait_s)
    assert drill.state is DrillState.CALLED_OFF and "no spare" in drill.reason


def test_a_lost_node_is_replaced() -> None:
    plane = steady()
    plane.inventories = {"n0": f.Inventory(disk=(disk(8), disk(10)), ram=(ram(9, {0: ("a",)}, ("a",)),))}
    drill = begin(plane, "lose-node", rank=3)
    order = injected(plane)
    assert (order.node, order.rank) == ("n1", None)
    plane.tell(plane.silent("n1", lost=True))
    assert drill.state is DrillState.RECOVERING, "it needs no answer, which may never come"
    plane.tell(plane.witnessed("n1", "process_gone"))
    plane.recover()
    assert drill.state is DrillState.PASSED, drill.reason
    assert plane.job.placement is not None and "n1" not in plane.job.placement.nodes
    assert "n1 was replaced" in {mark.text for mark in drill.marks}


def test_what_the_launcher_refuses_is_called_off() -> None:
    plane = steady()
    drill = begin(plane)
    plane.answer(Inject, f.Failed(reason="superseded"))
    assert drill.state is DrillState.CALLED_OFF and "superseded" in drill.reason
    assert plane.job.state is JobState.RUNNING


def test_a_drill_waits_while_the_job_recovers_and_begins_afterwards() -> None:
    plane = steady()
    plane.tell(plane.exited(0, signal=SIGKILL))
    drill = begin(plane)
    assert drill.state is DrillState.WAITING and not plane.pending(Inject)
    plane.recover()
    assert drill.state is DrillState.INJECTED
    assert injected(plane).generation == plane.job.generation
    assert plane.incident.drill is None, "the incident before it is none of its"


def test_drills_come_one_at_a_time() -> None:
    plane = steady()
    first, second = begin(plane), begin(plane)
    assert (first.state, second.state) == (DrillState.INJECTED, DrillState.WAITING)
    kill(plane)
    plane.recover()
    assert (first.state, second.state) == (DrillState.PASSED, DrillState.INJECTED)


def test_a_job_that_is_stopped_takes_its_drill_along_and_nobody_is_woken() -> None:
    plane = steady()
    drill = begin(plane)
    plane.tell(f.JobStopRequested(job=JOB, by="ann"))
    assert not plane.pending(Inject), "an order that has not arrived is withdrawn"
    plane.wait(plane.policy.orders.timeout_s["EndJob"] + 1)
    for number, _ in list(plane.world.orders.items()):
        plane.tell(f.Answered(intent=number, outcome=f.Done()))
    assert plane.job.state is JobState.STOPPED
    assert drill.state is DrillState.CALLED_OFF and "is being stopped: stopped by ann" in drill.reason
    assert "page" not in {note.level for _, note in plane.pending(Notify)}


def test_a_job_that_is_stopped_while_it_recovers_from_a_drill_was_hit_by_the_drill_all_the_same() -> None:
    plane = steady()
    drill = begin(plane)
    kill(plane)
    plane.tell(f.JobStopRequested(job=JOB, by="ann"))
    plane.wait(plane.policy.orders.timeout_s["EndJob"] + 1)
    for number, _ in list(plane.world.orders.items()):
        plane.tell(f.Answered(intent=number, outcome=f.Done()))
    assert drill.state is DrillState.CALLED_OFF
    assert plane.incident.drill == drill.id == "drill-0001", "so that nobody counts it as a failure"


def test_a_job_that_fails_takes_its_drill_along_and_it_has_failed() -> None:
    plane = steady()
    plane.tell(plane.exited(1, code=1, error=bug()))
    plane.recover()
    drill = begin(plane)
    plane.answer(Inject, f.Done())
    plane.tell(plane.exited(1, code=1, error=bug()))
    for number, _ in list(plane.world.orders.items()):
        plane.tell(f.Answered(intent=number, outcome=f.Done()))
    assert plane.job.state is JobState.FAILED
    assert drill.state is DrillState.FAILED and "ended first: the same error at the same step" in drill.reason


def test_a_rank_that_the_job_does_not_have_calls_it_off() -> None:
    plane = steady()
    drill = begin(plane, rank=9)
    assert drill.state is DrillState.CALLED_OFF and "no rank 9; the last one is 3" in drill.reason


def test_drills_that_are_over_leave_in_the_end() -> None:
    plane = steady()
    for _ in range(250):
        begin(plane, rank=9)
    assert len(plane.world.drills) <= 201
    assert DrillId("drill-0250") in plane.world.drills and DrillId("drill-0001") not in plane.world.drills


# ---- the schedule

DAILY = Policy(
    max_decisions_per_turn=500,
    max_decisions_per_resource=0,
    drills=Drills(every_s=86_400.0, kinds=("kill-rank", "stop-rank"), checkpoint_age_s=1e9),
)


def scheduled(policy: Policy = DAILY, **labels: str) -> Plane:
    plane = steady(policy, labels=labels)
    plane.wait(policy.drills.quiet_s)
    return plane


def test_the_schedule_hits_a_job_whose_owner_allows_it_once_a_period() -> None:
    plane = scheduled(drills="allow")
    (drill,) = plane.world.drills.values()
    assert (drill.by, drill.kind, drill.state) == ("schedule", "stop-rank", DrillState.INJECTED)
    kill(plane, drill.rank or 0)
    plane.recover()
    plane.wait(86_000.0)
    assert len(plane.world.drills) == 1
    plane.wait(400.0)
    assert newest(plane).kind == "kill-rank"


@pytest.mark.parametrize("labels", [{}, {"drills": "never"}, {"drills": "yes"}])
def test_the_schedule_hits_nobody_else(labels: dict[str, str]) -> None:
    assert not scheduled(**labels).world.drills


def test_the_schedule_is_off_by_default() -> None:
    assert not scheduled(Policy(max_decisions_per_turn=500), drills="allow").world.drills


@pytest.mark.parametrize(
    ("limits", "begins"),
    [
        ({"hours_utc": (0, 1)}, True),
        ({"hours_utc": (1, 24)}, False),
        ({"hours_utc": (22, 1)}, True),
        ({"hours_utc": (2, 0)}, False),
        ({"hours_utc": (5, 5)}, True),
        ({"checkpoint_age_s": 599.0}, False),
        ({"checkpoint_age_s": 601.0}, True),
        ({"kinds": ()}, False),
        ({"kinds": ("lose-node",)}, True),
    ],
)
def test_the_schedule_picks_moments_in_which_little_is_lost(limits: dict[str, object], begins: bool) -> None:
    drills = Drills(**{"every_s": 86_400.0, "checkpoint_age_s": 1e9, **limits})  # type: ignore[arg-type]
    plane = scheduled(Policy(max_decisions_per_turn=500, drills=drills), drills="allow")
    assert bool(plane.world.drills) is begins


def test_the_schedule_waits_while_any_incident_is_open() -> None:
    plane = steady(DAILY, labels={"drills": "allow"})
    plane.tell(plane.exited(0, signal=SIGKILL))
    assert plane.incident.state is not IncidentState.RECOVERED and plane.pending(Fence)
    plane.wait(10.0)
    assert not plane.world.drills


def test_every_kind_says_what_it_does() -> None:
    assert set(KINDS) == {"kill-rank", "stop-rank", "lose-node"}


# ---- invariant 6


def ordering(plane: Plane, drill: Drill) -> Decision:
    order = Inject(
        job=JOB, node=plane.joined("n1").node, session=plane.session("n1"), generation=plane.job.generation,
        drill=drill.id, kind=drill.kind, rank=2,
    )  # fmt: skip
    return Decision(stage="rehearse", subject=drill.id, reason="", intents=(order,))


def test_the_invariants_let_no_drill_hit_a_job_that_recovers() -> None:
    plane = steady()
    plane.tell(plane.exited(0, signal=SIGKILL))
    drill = begin(plane)
    with pytest.raises(InvariantBroken, match=r"invariant 6.*steady"):
        check(plane.world, ordering(plane, drill), plane.policy)


def test_the_invariants_let_no_drill_be_injected_twice_or_beside_another() -> None:
    plane = steady()
    first, second = begin(plane), begin(plane)
    for drill in (first, second):
        with pytest.raises(InvariantBroken, match=r"invariant 6.*one drill at a time"):
            check(plane.world, ordering(plane, drill), plane.policy)
