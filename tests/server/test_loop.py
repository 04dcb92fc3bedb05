"""The loop by itself, with a journal whose medium fails at will and a clock in the test's hand."""

import pytest

from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.core import facts as f
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import Launch
from keepstep.core.policy import Policy
from keepstep.ports import JournalUnavailable
from keepstep.server.desk import Desk
from keepstep.server.loop import SESSIONS_MAX, ControlLoop, Received
from keepstep.server.queries import answer
from keepstep.server.replay import replay

S = Session("s")
SPEC = f.JobSpec(argv=("train.py",), nproc_per_node=1, elasticity=f.Elasticity(min_nodes=1, max_nodes=1))
SUBMITTED = f.JobSubmitted(job=JobId("j"), spec=SPEC)
JOINED = f.NodeJoined(
    job=JobId("j"),
    node=NodeId("n0"),
    session=S,
    boot_id="b",
    devices=(f.Device(slot=0, serial="x"),),
    address="127.0.0.1",
    store="127.0.0.1:1",
)


class Clock:
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


class FailingJournal(MemoryJournal):
    """Fails as often as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.calls = 0

    def append(self, at_s, records, origins=()):
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise JournalUnavailable("disk full")
        return super().append(at_s, records, origins)


@pytest.fixture
def journal():
    return FailingJournal()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def loop(journal, clock):
    made = ControlLoop(journal, replay(journal), Policy(), clock)
    made.start("test", "0")
    made.work()
    made.collect()
    return made


def submit_and_join(loop):
    loop.receive(Received(SUBMITTED, S, 1))
    loop.receive(Received(JOINED, S, 2))


def same(one, other):
    """Two Worlds are alike, seen through everything that can be asked."""
    for what in ("jobs", "resources", "incidents", "report"):
        views = [answer(Desk(books, None, 2000.0), what, {}) for books in (one, other)]
        assert views[0] == views[1]
    assert one.world.seq == other.world.seq
    assert list(one.world.orders) == list(other.world.orders)


def test_one_pass_is_one_transaction_with_facts_first(loop, journal):
    before = journal.calls
    submit_and_join(loop)
    loop.work()
    assert journal.calls == before + 1
    kinds = [type(entry.record).__name__ for entry in journal.read()]
    assert kinds[:3] == ["ServerStarted", "JobSubmitted", "NodeJoined"]
    assert set(kinds[3:]) == {"Decision"}
    outcome = loop.collect()
    assert outcome.acks == {S: 2}
    assert [type(order.intent) for order in outcome.orders] == [Launch]


@pytest.mark.parametrize("failures", [1, 3])
def test_nothing_leaves_before_it_is_kept(loop, journal, failures):
    journal.failures = failures
    submit_and_join(loop)
    for _ in range(failures):
        with pytest.raises(JournalUnavailable):
            loop.work()
        outcome = loop.collect()
        assert (outcome.acks, outcome.orders, outcome.ended) == ({}, [], [])
        assert loop.open_orders() == []
        assert loop.acked(S) == 0
    loop.work()
    outcome = loop.collect()
    assert outcome.acks == {S: 2}
    assert [type(order.intent) for order in outcome.orders] == [Launch]
    assert [order.number for order in loop.open_orders()] == [outcome.orders[0].number]
    same(loop.books, replay(journal))


def test_reports_repeated_while_the_journal_fails_are_kept_once(loop, journal):
    journal.failures = 2
    submit_and_join(loop)
    for _ in range(2):
        with pytest.raises(JournalUnavailable):
            loop.work()
        submit_and_join(loop)
    loop.work()
    facts = [entry.record for entry in journal.read()]
    assert facts.count(SUBMITTED) == facts.count(JOINED) == 1
    assert loop.collect().acks == {S: 2}


def test_a_replay_gives_the_world_that_was(loop, journal, clock):
    submit_and_join(loop)
    loop.work()
    (order,) = loop.collect().orders
    for number, fact in enumerate(
        [
            f.Answered(intent=order.number, outcome=f.Launched(pids={0: 7})),
            f.RankExited(job=JobId("j"), node=NodeId("n0"), session=S, generation=1, rank=0, slot=0, signal=11),
            f.CheckpointCommitted(job=JobId("j"), generation=1, step=3, key="k", world_size=1),
        ],
        start=3,
    ):
        clock.at_s += 0.25
        loop.receive(Received(fact, S, number))
        loop.work()
    same(loop.books, replay(journal))


def test_a_restarted_loop_goes_on_where_it_was(loop, journal, clock):
    submit_and_join(loop)
    loop.work()
    (order,) = loop.collect().orders
    again = ControlLoop(journal, replay(journal), Policy(), clock)
    again.start("second", "0")
    again.work()
    outcome = again.collect()
    assert outcome.orders == [], "nothing is decided twice"
    assert again.open_orders() == [order], "what is unanswered is known"
    assert again.acked(S) == 2


def test_a_launcher_that_does_not_come_back_after_a_restart_is_noticed(loop, journal, clock):
    submit_and_join(loop)
    loop.work()
    again = ControlLoop(journal, replay(journal), Policy(), clock)
    again.start("second", "0")
    again.work()
    for _ in range(int(Policy().silence.lease_s / 0.1) + 2):
        clock.at_s += 0.1
        again.work()
    assert any(isinstance(entry.record, f.NodeUnreachable) for entry in journal.read())


def test_a_standstill_of_the_server_itself_is_no_silence_of_a_launcher(loop, journal, clock):
    """A suspended machine: no pass came while the time went by, so nobody could have been heard."""
    submit_and_join(loop)
    loop.work()
    clock.at_s += Policy().silence.lease_s * 5
    loop.work()
    assert not any(isinstance(entry.record, f.NodeUnreachable) for entry in journal.read())


def test_of_sessions_beyond_the_bound_those_heard_longest_ago_are_forgotten(loop, journal, clock):
    submit_and_join(loop)
    loop.work()
    crowd = {Session(f"ask-{number}"): 1 for number in range(SESSIONS_MAX - 1)}
    journal._received |= crowd  # what so many requests leave behind, without writing each of them
    again = ControlLoop(journal, replay(journal), Policy(), clock)
    again.start("next", "0")
    assert len(again.sessions("")) == SESSIONS_MAX and again.acked(S) == 2
    again.receive(Received(JOINED, S, 3))
    again.receive(Received(JOINED, Session("late"), 1))
    again.work()
    assert len(again.sessions("")) == SESSIONS_MAX
    assert again.acked(Session("ask-0")) == 0, "nobody was silent for longer"
    assert again.acked(S) == 3 and again.acked(Session("late")) == 1


def test_an_older_session_may_not_speak(loop):
    submit_and_join(loop)
    loop.work()
    new = Session("s2")
    assert loop.is_present(JobId("j"), NodeId("n0"), new), "never seen: it may be the next"
    other = f.NodeJoined(
        job=JobId("j"), node=NodeId("n0"), session=new, boot_id="b", devices=JOINED.devices, address="127.0.0.1"
    )
    loop.receive(Received(other, new, 1))
    loop.work()
    assert loop.is_present(JobId("j"), NodeId("n0"), new)
    assert not loop.is_present(JobId("j"), NodeId("n0"), S)
