"""What waits for a server: numbers, order, bounds, age, and what goes first in an agent and in a launcher."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.adapters.server_link.spool import Spool
from keepstep.agent.worth import worth as of_agents
from keepstep.core.facts import (
    AgentHeard,
    AgentJoined,
    Answered,
    CheckpointCommitted,
    Done,
    Fact,
    RankExited,
    SignalSeen,
)
from keepstep.core.ids import JobId, NodeId, ResourceId, Session
from keepstep.launcher.worth import worth as of_launchers


def told(signal: str = "xid.79") -> Fact:
    return SignalSeen(resource=ResourceId("node/n0"), signal=signal)


def ended(rank: int) -> RankExited:
    return RankExited(
        job=JobId("j"), node=NodeId("n"), session=Session("s"), generation=1, rank=rank, slot=rank, exit_code=1
    )


def committed(step: int) -> CheckpointCommitted:
    return CheckpointCommitted(job=JobId("j"), generation=1, step=step, key=str(step), world_size=1)


JOINED = AgentJoined(node=NodeId("n0"), session=Session("s"), boot_id="b")


def test_an_agent_gives_up_mild_signals_first() -> None:
    spool = Spool(of_agents, facts_max=4)
    for fact in (JOINED, told("xid.79"), told("host.clock_step"), Answered(intent=1, outcome=Done())):
        spool.add(fact)
    for _ in range(3):
        spool.add(told("xid.48"))
    kept = [report.fact for report in spool.waiting()]
    assert kept[0] == JOINED
    assert isinstance(kept[1], Answered)
    assert [fact.signal for fact in kept[2:] if isinstance(fact, SignalSeen)] == ["xid.48", "xid.48"]
    assert spool.dropped == 3


def test_an_agent_keeps_answers_longest() -> None:
    spool = Spool(of_agents, facts_max=2)
    for fact in (Answered(intent=1, outcome=Done()), JOINED, Answered(intent=2, outcome=Done())):
        spool.add(fact)
    assert [report.number for report in spool.waiting()] == [1, 3]


def test_a_launcher_keeps_the_ends_of_ranks_and_drops_what_can_be_learned_again() -> None:
    spool = Spool(of_launchers, facts_max=4)
    facts: list[Fact] = [ended(0), committed(1), ended(1), committed(2), ended(2), ended(3)]
    for fact in facts:
        spool.add(fact)
    assert [report.fact for report in spool.waiting()] == [ended(0), ended(1), ended(2), ended(3)]
    assert [report.number for report in spool.waiting()] == [1, 3, 5, 6]
    assert spool.dropped == 2


def test_it_is_bounded_even_by_facts_that_matter() -> None:
    spool = Spool(of_launchers, facts_max=3)
    for rank in range(100):
        spool.add(ended(rank))
    assert [report.number for report in spool.waiting()] == [98, 99, 100]


def test_it_forgets_what_is_acknowledged_or_replaced() -> None:
    spool = Spool(of_launchers)
    for fact in (ended(0), committed(1), ended(1)):
        spool.add(fact)
    spool.acknowledged(1)
    spool.forget(CheckpointCommitted)
    assert [report.number for report in spool.waiting()] == [3]
    spool.acknowledged(99)
    assert spool.waiting() == []
    assert spool.add(ended(2)).number == 4


def test_a_later_word_about_the_node_does_not_come_behind_signals_that_need_one() -> None:
    spool = Spool(of_agents)
    for fact in (JOINED, told(), JOINED):
        spool.add(fact)
    spool.forget(AgentJoined, but_oldest=True)
    spool.add(JOINED)
    assert [type(report.fact) for report in spool.waiting()] == [AgentJoined, SignalSeen, AgentJoined]
    assert spool.holds(AgentJoined) and not spool.holds(Answered)


@pytest.mark.parametrize("worth", [of_agents, of_launchers])
@settings(max_examples=50, deadline=None)
@given(steps=st.lists(st.one_of(st.none(), st.integers(0, 40)), max_size=60))
def test_numbers_grow_and_what_is_acknowledged_is_gone(worth, steps: list[int | None]) -> None:  # type: ignore[no-untyped-def]
    """None reports a fact, a number acknowledges up to it."""
    spool, acked, reported = Spool(worth, facts_max=8), 0, 0
    for step in steps:
        if step is None:
            reported += 1
            assert spool.add(told()).number == reported
        else:
            spool.acknowledged(step)
            acked = max(acked, min(step, reported))
        numbers = [report.number for report in spool.waiting()]
        assert numbers == sorted(set(numbers))
        assert not numbers or numbers[0] > acked
        assert len(numbers) <= 8


# ---- age: a signal that waited says for how long, by our own clock


def test_what_waited_says_for_how_long() -> None:
    now = [100.0]
    spool = Spool(of_agents, clock=lambda: now[0])
    fact = told()
    assert spool.add(fact).fact == fact
    now[0] += 600.0
    spool.add(fact)
    now[0] += 30.0
    assert [report.fact.age_s for report in spool.waiting() if isinstance(report.fact, SignalSeen)] == [630.0, 30.0]


def test_a_clock_that_goes_back_makes_nothing_younger_than_now() -> None:
    now = [100.0]
    spool = Spool(of_agents, clock=lambda: now[0])
    spool.add(told())
    now[0] = 50.0
    (report,) = spool.waiting()
    assert isinstance(report.fact, SignalSeen) and report.fact.age_s == 0.0


def test_what_is_no_signal_has_no_age() -> None:
    spool = Spool(of_agents, facts_max=4)
    heard = AgentHeard(node=NodeId("n1"), session=Session("s"))
    for _ in range(6):
        spool.add(told())
    report = spool.add(heard)
    assert spool.waiting()[-1].fact == heard
    spool.acknowledged(report.number)
    assert spool.waiting() == [] and spool.dropped == 3
