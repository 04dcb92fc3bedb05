"""Who is looked at in a pass: only those whose silence may have become long enough, and each as often as it must be."""

from hypothesis import given
from hypothesis import strategies as st

from keepstep.core import facts as f
from keepstep.core.detect import detect
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.policy import Policy
from keepstep.core.vitals import Vitals
from keepstep.core.world import World

JOB = JobId("job")
LEASE_S = Policy().silence.agent_lease_s


def told(vitals: Vitals, now_s: float) -> list[tuple[str, str]]:
    return [(type(fact).__name__, fact.node) for fact in detect(vitals, World(), Policy(), now_s)]  # type: ignore[union-attr]


def test_a_pass_does_not_look_at_those_that_were_heard_within_the_lease() -> None:
    vitals = Vitals()
    for number in range(1000):
        vitals.agent_connected(NodeId(f"n{number}"), Session("s"), 0.0)
    looked = list(vitals.witnesses.due(LEASE_S, LEASE_S - 0.1))
    assert looked == []
    for number in range(1000):
        vitals.agent_heard(NodeId(f"n{number}"), Session("s"), 3.0)
    assert len(list(vitals.witnesses.due(LEASE_S, LEASE_S))) == 1000, "as far as is known they were heard a lease ago"
    assert list(vitals.witnesses.due(LEASE_S, LEASE_S + 1)) == []
    assert len(vitals.witnesses.waiting) == 1000


def test_silence_is_told_once_and_its_end_once() -> None:
    vitals = Vitals()
    vitals.agent_connected(NodeId("a"), Session("s"), 0.0)
    vitals.agent_connected(NodeId("b"), Session("s"), 0.0)
    vitals.agent_heard(NodeId("b"), Session("s"), 4.0)
    assert told(vitals, LEASE_S) == [("AgentSilent", "a")]
    assert told(vitals, LEASE_S + 1) == []
    vitals.agent_heard(NodeId("a"), Session("s"), LEASE_S + 1.5)
    assert told(vitals, LEASE_S + 2) == [("AgentHeard", "a")]
    assert told(vitals, 2 * LEASE_S + 2) == [("AgentSilent", "b"), ("AgentSilent", "a")]


def test_an_old_session_that_was_replaced_is_not_told_of() -> None:
    vitals = Vitals()
    vitals.connected(JOB, NodeId("a"), Session("old"), 0.0)
    vitals.connected(JOB, NodeId("a"), Session("new"), 1.0)
    assert told(vitals, 3.5) == []
    assert told(vitals, 4.0) == [("NodeUnreachable", "a")]


def test_reconnecting_for_ever_keeps_no_more_than_one_lease_of_it() -> None:
    vitals, now_s = Vitals(), 0.0
    for _ in range(2000):
        now_s += 0.1
        vitals.connected(JOB, NodeId("a"), Session("s"), now_s)
        vitals.disconnected(JOB, NodeId("a"), Session("s"))
        told(vitals, now_s)
    assert len(vitals.launchers.waiting) < 40
    assert len(vitals.launchers.urgent) <= 1


def test_a_broken_connection_is_asked_about_early_and_a_quick_return_is_not_told() -> None:
    vitals = Vitals()
    vitals.connected(JOB, NodeId("a"), Session("s"), 0.0)
    vitals.disconnected(JOB, NodeId("a"), Session("s"))
    assert told(vitals, 0.01) == []
    vitals.beat(JOB, NodeId("a"), 0.02, 0, ())
    assert told(vitals, 0.2) == []
    vitals.disconnected(JOB, NodeId("a"), Session("s"))
    assert told(vitals, 0.3) == [("NodeUnreachable", "a")]
    vitals.beat(JOB, NodeId("a"), 0.4, 0, ())
    assert told(vitals, 0.4) == [("NodeReachable", "a")]


WORDS = st.tuples(
    st.sampled_from(["hello", "beat", "break", "stall", "leave"]), st.sampled_from("abc"), st.floats(0.0, 4.0)
)


@given(st.lists(WORDS, max_size=60))
def test_it_tells_the_same_as_one_that_looks_at_everybody(words: list[tuple[str, str, float]]) -> None:
    """The plain way: at each pass, everybody that is known, by the same rule."""
    vitals, now_s, policy = Vitals(), 0.0, Policy()
    silent: dict[str, bool] = {}
    for what, name, gap_s in words:
        now_s += gap_s
        node = NodeId(name)
        match what:
            case "hello":
                vitals.connected(JOB, node, Session("s"), now_s)
                silent[name] = False
            case "beat":
                vitals.beat(JOB, node, now_s, 0, ())
            case "break":
                vitals.disconnected(JOB, node, Session("s"))
            case "stall":
                vitals.stood_still(gap_s, now_s)
            case _:
                vitals.left(JOB, node)
                silent.pop(name, None)
        expected = set()
        for known in vitals.nodes.values():
            limit_s = policy.silence.lease_s if known.connected else policy.silence.lost_connection_s
            is_silent = now_s - known.heard_s >= limit_s
            if is_silent != silent[known.node]:
                expected.add(("NodeUnreachable" if is_silent else "NodeReachable", known.node))
            silent[known.node] = is_silent
        assert set(told(vitals, now_s)) == expected


def test_a_part_of_the_fleet_that_is_off_costs_nothing_while_nobody_waits_for_it() -> None:
    world = World()
    from keepstep.core.fold import fold

    fold(world, f.BmcSeen(node=NodeId("a"), power="off", reachable=True), 1.0)
    fold(world, f.BmcSeen(node=NodeId("b"), power="on", reachable=True), 1.0)
    assert list(world.powered_off) == ["a"]
    fold(world, f.BmcSeen(node=NodeId("a"), power="off", reachable=False), 2.0)
    assert not world.powered_off
