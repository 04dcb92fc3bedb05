"""The simulator's own parts: time, faults and checkers that can say no."""

import pytest

from keepstep.core import facts as f
from keepstep.core.ids import JobId, NodeId, Session, device_resource
from keepstep.core.intents import Launch, RankPlace
from keepstep.core.policy import Policy
from keepstep.sim.checkers import CheckFailed
from keepstep.sim.clock import Timeline, stream
from keepstep.sim.run import Simulation
from keepstep.sim.training import Run, SimJob, SimRank

NODE = NodeId("n00000")


@pytest.fixture
def simulation() -> Simulation:
    """A fleet in which a job runs and nothing has happened yet."""
    simulation = Simulation("single", 1)
    simulation.build()
    simulation.server.start()
    while simulation.fleet.timeline.step(60.0):
        pass
    return simulation


def _job(simulation: Simulation) -> tuple[SimJob, Run]:
    job = next(iter(simulation.fleet.jobs.values()))
    run = job.run()
    assert run is not None and run.stepping, "the job should be training by now"
    return job, run


def _start(simulation: Simulation, rank: int, generation: int, slot: int = 0) -> None:
    job = next(iter(simulation.fleet.jobs.values()))
    run = job.run()
    assert run is not None
    place = RankPlace(rank=rank, local_rank=0, slot=slot)
    launch = Launch(
        job=job.id, node=NODE, session=Session("x"), generation=generation, argv=(), ranks=(place,),
        world_size=run.world_size, group_rank=0, group_world_size=1, store=run.store, restore=run.restore,
    )  # fmt: skip
    fresh = SimRank(job.id, rank, NODE, slot, generation, Session("x"))
    simulation.fleet.checkers.rank_starts(job, run, fresh, launch, 10_000)


def test_events_happen_in_order_of_time_then_of_scheduling() -> None:
    timeline, seen = Timeline(), []
    timeline.after(2.0, lambda: seen.append("later"))
    timeline.after(1.0, lambda: seen.append("first"))
    timeline.after(1.0, lambda: seen.append("second"))
    while timeline.step(10.0):
        pass
    assert seen == ["first", "second", "later"] and timeline.now_s == 10.0


def test_the_past_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot happen"):
        Timeline().after(-1.0, lambda: None)


def test_streams_are_apart() -> None:
    assert stream(1, "a").random() == stream(1, "a").random() != stream(1, "b").random()


def test_a_second_generation_is_seen(simulation: Simulation) -> None:
    with pytest.raises(CheckFailed, match="1 one live generation"):
        _start(simulation, rank=0, generation=99)


def test_a_second_copy_is_seen(simulation: Simulation) -> None:
    _, run = _job(simulation)
    with pytest.raises(CheckFailed, match="1 one live copy"):
        _start(simulation, rank=0, generation=run.generation)


def test_work_on_a_device_that_a_person_holds_is_seen(simulation: Simulation) -> None:
    checkers = simulation.fleet.checkers
    hold = f.HoldRequested(resource=device_resource(NODE, 0), source="person:alice", by="alice")
    checkers.folded(hold, Policy(), 60.0)
    job, _ = _job(simulation)
    for rank in job.alive():
        simulation.fleet.rank_gone(rank)
    with pytest.raises(CheckFailed, match="7 a person's hold"):
        _start(simulation, rank=0, generation=1)


def test_a_signalled_device_is_condemned_until_its_gate_passes(simulation: Simulation) -> None:
    simulation.fleet.checkers.folded(
        f.SignalSeen(resource=device_resource(NODE, 0), signal="device.lost"), Policy(), 60.0
    )
    job, _ = _job(simulation)
    for rank in job.alive():
        simulation.fleet.rank_gone(rank)
    with pytest.raises(CheckFailed, match="2 isolate first"):
        _start(simulation, rank=0, generation=1)


def test_the_end_of_a_healthy_job_by_a_fence_is_seen(simulation: Simulation) -> None:
    job, run = _job(simulation)
    with pytest.raises(CheckFailed, match="5 unknown never kills"):
        simulation.fleet.checkers.killed(job, run, "fence 1")
    run.faulty = True
    simulation.fleet.checkers.killed(job, run, "fence 1")


def test_a_vanished_checkpoint_is_seen(simulation: Simulation) -> None:
    job, run = _job(simulation)
    done = job.commit(run, 7)
    fact = f.CheckpointCommitted(job=JobId(job.id), generation=1, step=7, key=done.key, world_size=run.world_size)
    simulation.fleet.checkers.committed(fact)
    simulation.fleet.checkers.disk_kept()
    del job.disk[done.key]
    with pytest.raises(CheckFailed, match="4 checkpoints stay"):
        simulation.fleet.checkers.disk_kept()


def test_a_stale_word_that_changes_something_is_seen(simulation: Simulation) -> None:
    with pytest.raises(CheckFailed, match="8 stale words"):
        simulation.fleet.checkers.stale({"a": 1}, {"a": 2}, f.ServerStarted(server="s", version="v"))


def test_an_open_incident_at_the_end_is_seen(simulation: Simulation) -> None:
    with pytest.raises(CheckFailed, match="9 everything ends"):
        simulation.fleet.checkers.incidents_ended(simulation.server.world)
