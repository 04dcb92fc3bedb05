"""Drills in the simulator: many seeds, a day of them on one node, and checkers that can say no."""

import tomllib
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.drill import DrillKind, DrillState
from keepstep.core.ids import DrillId, IncidentId, JobId
from keepstep.core.incident import Cause, Diagnosis
from keepstep.core.intents import Inject
from keepstep.core.job import Failure, JobState
from keepstep.core.resource import ResourceState
from keepstep.sim.checkers import CheckFailed
from keepstep.sim.drill_checkers import DrillCheckers
from keepstep.sim.probes import DRILLS, missed
from keepstep.sim.run import Simulation, run
from keepstep.sim.scenario import Drills, Fleet, Network, Scenario, load
from keepstep.sim.training import SimJob

FOUND = (16, 36, 531)
"""Seeds that once found something: a server that was down longer than a drill may go unnoticed; a fault that was excused by a
drill that had been refused; an incident that kept the name of a drill that it was not."""
SEEDS = (*range(8), *FOUND)
FOUND_WITH_DRILLS = [("storm", 51), ("drills", 216)]
"""What drills led to, although they are not to blame; in regressions.toml with the others."""
DRILL = DrillId("drill-0001")
HOUR_S = 3600.0


def test_drills_and_real_faults_beside_them() -> None:
    hits: Counter[str] = Counter()
    for seed in SEEDS:
        result = run("drills", seed)
        assert result.failure is None, f"keepstep sim --scenario drills --seed {seed} --trace: {result.failure}"
        hits.update(result.probes)
    assert missed(hits, DRILLS) == []
    assert hits["drill passed"] > 2 * hits["drill failed"]


def test_some_of_the_other_seeds_have_drills_and_none_that_was_known_by_its_number_before() -> None:
    for name in ("mixed", "partition", "storm", "program"):
        on = [seed for seed in range(100) if Simulation(name, seed).drills.on]
        assert 5 <= len(on) <= 25
    known = tomllib.loads(Path(__file__).with_name("regressions.toml").read_text())["seed"]
    drilled = [(x["scenario"], x["seed"]) for x in known if Simulation(x["scenario"], x["seed"]).drills.on]
    assert drilled == FOUND_WITH_DRILLS


def test_what_is_drawn_for_drills_shifts_nothing_in_seeds_without() -> None:
    other = msgspec.structs.replace(load("single"), drills=Drills(share=1e-9, every_s=(1.0, 2.0)))
    assert Simulation("single", 3, other).run().digest == run("single", 3).digest


# ---- a day of them


def test_a_day_of_drills_on_one_node_is_held_against_nobody() -> None:
    """More than any budget and any device rule allows for real faults."""
    quiet = Scenario(
        about="a job that only drills hit", faults={},
        drills=Drills(share=1.0, every_s=(0.0, 0.0), refused_share=0.0, company_share=0.0),
        fleet=Fleet(jobs=(1, 1), nodes_per_job=(2, 2), spares_per_job=(0, 0), devices=(1, 1), explicit_beats=False,
                    elastic_share=0.0, launch_failure_share=0.0, verify_failure_share=0.0, commit_every=(80, 80)),
        network=Network(break_share=0.0), tick_cap_s=30.0,
    )  # fmt: skip
    simulation = Simulation("day", 1, quiet)
    simulation.build()
    simulation.server.start()
    _pass(simulation, 60.0)
    (job,) = simulation.fleet.jobs.values()
    for _ in range(24):
        simulation.server.observe(f.DrillRequested(job=job.id, kind="kill-rank", by="alice", rank=1))
        _pass(simulation, HOUR_S)
    world = simulation.server.world
    drills = list(world.drills.values())
    assert [(x.state, x.node) for x in drills] == [(DrillState.PASSED, drills[0].node)] * 24, [x.reason for x in drills]
    assert world.jobs[job.id].state is JobState.RUNNING and world.jobs[job.id].failures == []
    for resource in world.resources.values():
        assert resource.state is ResourceState.IN_SERVICE and not resource.holds and not resource.failures
    assert [x.drill for x in world.incidents.values() if x.kind == "fault"] == [x.id for x in drills]


def _pass(simulation: Simulation, seconds: float) -> None:
    until_s = simulation.fleet.now_s + seconds
    while simulation.fleet.timeline.step(until_s):
        pass


# ---- the checkers


@pytest.fixture
def simulation() -> Simulation:
    """A job of several ranks that runs, and nothing has happened yet; the checkers are told by hand."""
    simulation = Simulation("single", 1)
    simulation.build()
    simulation.server.start()
    _pass(simulation, 60.0)
    return simulation


@pytest.fixture
def checkers(simulation: Simulation) -> DrillCheckers:
    checkers = DrillCheckers(simulation.fleet)
    checkers.folded(f.DrillRequested(job=JobId("job0"), kind="kill-rank", by="ann"))
    checkers.folded(f.DrillRequested(job=JobId("job0"), kind="kill-rank", by="ann"))
    return checkers


def _job(simulation: Simulation) -> SimJob:
    return simulation.fleet.jobs[JobId("job0")]


def _order(simulation: Simulation, drill: DrillId = DRILL, *, rank: int = 0, kind: DrillKind = "kill-rank") -> Inject:
    newest = _job(simulation).run()
    assert newest is not None
    victim = newest.ranks[rank]
    return Inject(
        job=JobId("job0"), node=victim.node, session=victim.session, generation=newest.generation, drill=drill,
        kind=kind, rank=rank,
    )  # fmt: skip


def _decision(*changes: d.Change, orders: tuple[Inject, ...] = (), first: int = 0) -> d.Decision:
    return d.Decision(
        stage="rehearse", subject=DRILL, reason="", changes=changes, intents=orders, first_order=first
    )  # fmt: skip


def _begin(simulation: Simulation, checkers: DrillCheckers, drill: DrillId = DRILL) -> Inject:
    order = _order(simulation, drill)
    checkers.decided(_decision(orders=(order,), first=500))
    return order


def _end(checkers: DrillCheckers, to: DrillState) -> None:
    checkers.decided(_decision(d.MoveDrill(drill=DRILL, to=to)))


def test_a_steady_job_may_be_hit_once(simulation: Simulation, checkers: DrillCheckers) -> None:
    order = _begin(simulation, checkers)
    newest = _job(simulation).runs[order.generation]
    checkers.hit(order, newest, [newest.ranks[0]])
    with pytest.raises(CheckFailed, match=r"drill: once.*a second time"):
        checkers.hit(order, newest, [newest.ranks[0]])
    with pytest.raises(CheckFailed, match=r"drill: once.*ordered again"):
        checkers.decided(_decision(orders=(order,), first=501))


def test_two_at_once_are_seen(simulation: Simulation, checkers: DrillCheckers) -> None:
    _begin(simulation, checkers)
    with pytest.raises(CheckFailed, match=r"one at a time.*drill-0001 is under way"):
        _begin(simulation, checkers, DrillId("drill-0002"))


def test_a_job_with_a_rank_that_is_known_to_be_dead_is_not_steady(
    simulation: Simulation, checkers: DrillCheckers
) -> None:
    order = _order(simulation, rank=1)
    victim = _job(simulation).runs[order.generation].ranks[0]
    simulation.fleet.rank_gone(victim)
    checkers.folded(
        f.RankExited(
            job=JobId("job0"), node=victim.node, session=victim.session, generation=order.generation, rank=0, slot=0,
            signal=9,
        )
    )  # fmt: skip
    with pytest.raises(CheckFailed, match=r"steady jobs only.*rank 0 has ended"):
        checkers.decided(_decision(orders=(order,), first=500))


def test_a_job_with_a_node_that_is_known_to_be_silent_is_not_steady(
    simulation: Simulation, checkers: DrillCheckers
) -> None:
    order = _order(simulation)
    silent = f.NodeUnreachable(job=order.job, node=order.node, session=order.session, silent_s=4.0)
    checkers.folded(silent)
    with pytest.raises(CheckFailed, match=r"steady jobs only.*is silent"):
        checkers.decided(_decision(orders=(order,), first=500))


def test_what_is_done_after_the_end_is_seen(simulation: Simulation, checkers: DrillCheckers) -> None:
    order = _begin(simulation, checkers)
    _end(checkers, DrillState.FAILED)
    with pytest.raises(CheckFailed, match="not after its end"):
        checkers.hit(order, _job(simulation).runs[order.generation], [])


def test_a_drill_that_passes_without_having_been_done_is_seen(simulation: Simulation, checkers: DrillCheckers) -> None:
    _begin(simulation, checkers)
    with pytest.raises(CheckFailed, match="it was never done"):
        _end(checkers, DrillState.PASSED)


def test_a_drill_that_was_done_and_is_called_off_is_seen(simulation: Simulation, checkers: DrillCheckers) -> None:
    order = _begin(simulation, checkers)
    checkers.hit(order, _job(simulation).runs[order.generation], [])
    with pytest.raises(CheckFailed, match="called off means not done"):
        _end(checkers, DrillState.CALLED_OFF)


def test_a_drill_that_was_refused_and_fails_is_seen(simulation: Simulation, checkers: DrillCheckers) -> None:
    _begin(simulation, checkers)
    checkers.folded(f.Answered(intent=500, outcome=f.Failed(reason="no")))
    with pytest.raises(CheckFailed, match="refused is no failure"):
        _end(checkers, DrillState.FAILED)


def test_a_drill_that_never_ends_is_seen(simulation: Simulation, checkers: DrillCheckers) -> None:
    _begin(simulation, checkers)
    with pytest.raises(CheckFailed, match="drill-0001 is still open"):
        checkers.ended()
    word = f.ProbeFailed(source="status", job=JobId("job0"), detail="")
    _pass(simulation, 4 * simulation.policy.drills.detect_s + 100.0)
    with pytest.raises(CheckFailed, match="drill-0001 is neither noticed nor failed"):
        checkers.folded(word)


def test_a_drill_that_waits_for_ever_is_seen(simulation: Simulation, checkers: DrillCheckers) -> None:
    _pass(simulation, simulation.policy.drills.wait_s + 100.0)
    with pytest.raises(CheckFailed, match="drill-0001 is neither begun nor called off"):
        checkers.folded(f.ProbeFailed(source="status", job=JobId("job0"), detail=""))


@pytest.mark.parametrize(
    ("by_drill", "charged", "what"),
    [
        (True, True, "charged to nobody"),
        (False, False, "real faults are charged"),
        (True, False, ""),
        (False, True, ""),
    ],
)
def test_what_is_charged_wrongly_is_seen(
    simulation: Simulation, checkers: DrillCheckers, by_drill: bool, charged: bool, what: str
) -> None:
    order = _begin(simulation, checkers)
    newest = _job(simulation).runs[order.generation]
    newest.ranks[0].drill = DRILL
    incident = IncidentId(next(iter(simulation.server.world.incidents)))
    found = Diagnosis(
        cause=Cause.HOST_SOFTWARE, confidence=0.7, summary="killed", culprits=(0 if by_drill else 1,), key="k"
    )
    failure = Failure(signature="s", step=1, key="k", resources=(), at_s=60.0) if charged else None
    diagnosed = _decision(d.Diagnose(incident=incident, diagnosis=found, new_attempt=False, failure=failure))
    if what:
        with pytest.raises(CheckFailed, match=what):
            checkers.decided(diagnosed)
    else:
        checkers.decided(diagnosed)
