"""Curves around an incident: from beats in memory to two facts, with a World in the test's hand and no server."""

import math

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.engine import replay as fold
from keepstep.core.ids import IncidentId, JobId, NodeId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import RankPlace
from keepstep.core.job import Job, JobState, Placement
from keepstep.core.vitals import JobVitals, RankSample, Vitals
from keepstep.server.curves import AFTER_S, KEPT, NOTED, Curves
from keepstep.server.history import Books

JOB, INCIDENT = JobId("j"), IncidentId("inc-1")
SPEC = f.JobSpec(argv=("t.py",), nproc_per_node=2, elasticity=f.Elasticity(min_nodes=1, max_nodes=1))


class Rig:
    """One live job of two ranks that makes a step a second."""

    def __init__(self) -> None:
        self.books, self.vitals, self.curves = Books(), Vitals(), Curves()
        self.now_s = 1000.0
        self._fold(f.JobSubmitted(job=JOB, spec=SPEC))
        self.job.generation = 1
        self.job.placement = Placement(
            generation=1,
            world_size=2,
            nodes={NodeId("n"): tuple(RankPlace(rank=r, local_rank=r, slot=r) for r in range(2))},
        )
        self.steps = 0

    @property
    def job(self) -> Job:
        return self.books.world.jobs[JOB]

    def _fold(self, record: d.Record) -> None:
        fold(self.books.world, record, self.now_s)

    def go(self, seconds: int, step: bool = True) -> list[f.CurveNoted]:
        noted: list[f.CurveNoted] = []
        for _ in range(seconds):
            self.now_s += 1.0
            self.steps += step
            self.vitals.jobs[JOB] = JobVitals(generation=1, ranks={r: self._sample(r) for r in range(2)})
            noted += self.curves.tick(self.books, self.vitals, self.now_s)  # type: ignore[arg-type]
        return noted

    def _sample(self, rank: int) -> RankSample:
        return RankSample(
            rank=rank, phase="step", step=self.steps, idle_s=0.0, phase_s=0.0, step_time_s=1.0 + rank,
            loss=10.0 / (1 + self.steps), state="R", cpu_s=0.0,
        )  # fmt: skip

    def opens(self) -> None:
        change = d.Open(incident=INCIDENT, job=JOB, kind="fault", symptoms=())
        self._fold(d.Decision(stage="correlate", subject=INCIDENT, reason="r", changes=(change,)))

    def closes(self) -> None:
        close = d.Close(incident=INCIDENT, verdict="no fault", lost_steps=0, stage_s={}, downtime_s=0.0)
        moves = (d.MoveIncident(incident=INCIDENT, to=IncidentState.NO_FAULT), close)
        self._fold(d.Decision(stage="diagnose", subject=INCIDENT, reason="r", changes=moves))


def test_both_halves_are_noted_around_an_incident() -> None:
    rig = Rig()
    assert rig.go(200) == []
    rig.opens()
    (before,) = rig.go(1)
    assert (before.job, before.incident, before.part) == (JOB, INCIDENT, "before")
    assert len(before.points) == NOTED
    assert before.points[0].after_s == -120.0 and before.points[-1].after_s == 0.0
    assert before.points[-1].step == 200 and before.points[-1].step_time_s == 1.5
    assert math.isclose(before.points[-1].loss or 0.0, 10.0 / 201)
    assert rig.go(9, step=False) == []
    rig.closes()
    assert rig.go(int(AFTER_S)) == []
    (after,) = rig.go(1)
    assert after.part == "after"
    assert after.points[0].after_s >= 0 and after.points[-1].after_s == 71.0
    assert [p.after_s for p in after.points] == sorted(p.after_s for p in after.points)
    assert rig.go(100) == [], "once"


def test_the_end_of_a_job_is_the_end_of_its_curve() -> None:
    rig = Rig()
    rig.go(20)
    rig.opens()
    rig.go(5)
    rig.closes()
    rig.job.state = JobState.FINISHED
    del rig.books.world.live_jobs[JOB]
    (after,) = rig.go(1)
    assert after.part == "after" and 4 <= len(after.points) <= 6
    rig.go(1)
    assert rig.curves.points(JOB) == ()


def test_memory_is_bounded_and_points_lie_apart() -> None:
    rig = Rig()
    rig.go(KEPT + 50)
    assert len(rig.curves.points(JOB)) == KEPT
    for _ in range(10):
        rig.curves.tick(rig.books, rig.vitals, rig.now_s)
    assert len(rig.curves.points(JOB)) == KEPT and rig.curves.points(JOB)[-2].at_s < rig.now_s
    assert len(rig.curves.points(JOB, rig.now_s - 10)) == 11


def test_what_was_open_before_this_life_of_the_server_has_no_half_before() -> None:
    rig = Rig()
    rig.opens()
    assert rig.go(5) == []
    rig.closes()
    assert [x.part for x in rig.go(70)] == ["after"]


def test_a_generation_that_is_no_more_is_not_looked_at() -> None:
    rig = Rig()
    rig.job.generation = 2
    assert rig.go(5) == [] and rig.curves.points(JOB) == ()


def test_nothing_runs_and_nothing_is_done() -> None:
    curves, books = Curves(), Books()
    assert curves.tick(books, Vitals(), 1.0) == []
