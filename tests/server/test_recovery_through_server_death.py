"""The server dies with SIGKILL at every stage of a job's life: the same recovery, and no second launch."""

import itertools

import pytest

from keepstep.adapters.database.opening import open_journal
from keepstep.core.decision import Decision
from keepstep.core.intents import Launch
from keepstep.server.replay import replay

pytestmark = pytest.mark.timeout(600)
LIFE = ["Launch", "Fence", "VerifyCheckpoint", "Launch", "EndJob"]


def live_through(launcher):
    """A whole life: start, a rank is killed, recovery from RAM, the end."""
    launcher.pump_until_steady(1, 6)
    launcher.hold_state_of(launcher.step - 1)
    launcher.rank_exits(1, signal=9)
    launcher.pump_until_steady(2, 14)
    for rank in range(launcher.nproc):
        launcher.rank_exits(rank, exit_code=0)
    launcher.ranks = ()
    launcher.pump_until(lambda: launcher.ended is not None, "the job ends")


def check(server, launcher):
    assert launcher.ended.exit_code == 0
    launches = {order.number: order.intent for order in launcher.orders if isinstance(order.intent, Launch)}
    assert sorted(launch.generation for launch in launches.values()) == [1, 2], "one launch per generation"
    assert launcher.kinds() == LIFE
    server.kill()
    journal = open_journal(server.state.journal)
    journal.verify()
    decided = [i for e in journal.read() if isinstance(e.record, Decision) for i in e.record.intents]
    assert [i.generation for i in decided if isinstance(i, Launch)] == [1, 2]
    world = replay(journal).world
    journal.close()
    faults = [incident for incident in world.incidents.values() if incident.kind == "fault"]
    assert [incident.state.value for incident in faults] == ["recovered"]
    assert world.orders == {}
    return faults[0]


def test_without_a_death(server, launcher):
    one = launcher()
    live_through(one)
    incident = check(server, one)
    assert incident.lost_steps in (1, 2)


SLICE = {(1, True), (3, True), (4, True)}
"""Deaths before an answer are in the test after it, all of them in one life."""


@pytest.mark.parametrize(
    ("nth", "answered"),
    [
        pytest.param(
            nth, answered, id=f"{nth}-{kind}-{'after' if answered else 'before'} the answer",
            marks=() if (nth, answered) in SLICE else pytest.mark.deep,
        )
        for nth, kind in enumerate(LIFE)
        for answered in (False, True)
    ],
)  # fmt: skip
def test_server_killed_at_an_order(server, launcher, nth, answered):
    one = launcher()
    seen = itertools.count()
    kill_now = []

    def on_order(order):
        if order.number not in one.answers and next(seen) == nth:
            if answered:
                kill_now.append(order.number)
            else:
                server.restart()

    one.on_order = on_order
    pump = one.pump

    def pump_and_kill(timeout_s=0.02):
        pump(timeout_s)
        if kill_now:
            kill_now.clear()
            server.restart()

    one.pump = pump_and_kill
    live_through(one)
    check(server, one)


def test_server_killed_at_every_order(server, launcher):
    one = launcher()
    one.on_order = lambda order: None if order.number in one.answers else server.restart()
    live_through(one)
    check(server, one)


def test_server_killed_right_after_the_fault_was_reported(server, launcher):
    one = launcher()
    one.pump_until_steady(1, 6)
    one.hold_state_of(one.step - 1)
    one.rank_exits(1, signal=9)
    server.restart()
    one.pump_until_steady(2, 14)
    for rank in (0, 1):
        one.rank_exits(rank, exit_code=0)
    one.ranks = ()
    one.pump_until(lambda: one.ended is not None, "the job ends")
    check(server, one)


def test_losing_the_server_stops_no_step_and_opens_no_incident(server, launcher):
    one = launcher()
    one.pump_until_steady(1, 6)
    server.restart()
    reached = one.step
    one.pump_until(lambda: one.step >= reached + 60, "it goes on")
    assert one.kinds() == ["Launch"]
    journal = open_journal(server.state.journal, read_only=True)
    world = replay(journal).world
    journal.close()
    assert [incident.kind for incident in world.incidents.values()] == ["start"]


def test_the_end_is_told_to_late_comers(server, launcher, connect):
    one = launcher()
    live_through(one)
    from keepstep.core.ids import JobId
    from keepstep.wire.messages import JobEnded

    assert connect("front", job=JobId("j")).expect(JobEnded).exit_code == 0
    server.restart()
    assert connect("front", job=JobId("j")).expect(JobEnded).exit_code == 0


def test_two_nodes_one_connection_lost_for_a_moment(server, launcher):
    """A launcher that loses its connection and comes back at once costs nothing."""
    a, b = launcher("j", "n0", nodes=2), launcher("j", "n1", nodes=2)

    def both_until(true):
        def looked():
            a.pump(0.01)
            return true()

        b.pump_until(looked, "both go on")

    both_until(lambda: a.ranks and b.ranks and min(a.step, b.step) > 4)
    a.disconnect()
    reached = b.step
    both_until(lambda: b.step > reached + 60)
    assert a.generation == b.generation == 1
    assert "Fence" not in a.kinds() + b.kinds()
