"""A signal that waited says for how long, by the agent's own clock, when it is sent at last."""

from keepstep.agent.spool import Spool
from keepstep.core.facts import AgentHeard, SignalSeen
from keepstep.core.ids import NodeId, ResourceId, Session

SEEN = SignalSeen(resource=ResourceId("node/n1"), signal="xid.79")


def test_what_waited_says_for_how_long() -> None:
    now = [100.0]
    spool = Spool(clock=lambda: now[0])
    assert spool.add(SEEN).fact == SEEN
    now[0] += 600.0
    spool.add(SEEN)
    now[0] += 30.0
    assert [report.fact.age_s for report in spool.waiting() if isinstance(report.fact, SignalSeen)] == [630.0, 30.0]


def test_a_clock_that_goes_back_makes_nothing_younger_than_now() -> None:
    now = [100.0]
    spool = Spool(clock=lambda: now[0])
    spool.add(SEEN)
    now[0] = 50.0
    (report,) = spool.waiting()
    assert isinstance(report.fact, SignalSeen) and report.fact.age_s == 0.0


def test_what_is_no_signal_has_no_age_and_what_is_acknowledged_is_forgotten() -> None:
    spool = Spool(facts_max=4)
    heard = AgentHeard(node=NodeId("n1"), session=Session("s"))
    for _ in range(6):
        spool.add(SEEN)
    report = spool.add(heard)
    assert spool.waiting()[-1].fact == heard
    spool.acknowledged(report.number)
    assert spool.waiting() == [] and spool.dropped == 3
