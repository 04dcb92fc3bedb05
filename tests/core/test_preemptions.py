"""What a verdict took away is counted once, and judged by the gate and by a week of quiet."""

import pytest
from tests.core.build import JOB, Plane, device

from keepstep.core import facts as f
from keepstep.core.decision import Decision, OpenFault
from keepstep.core.ids import NodeId, ResourceId, Session
from keepstep.core.preemptions import PROVEN_AFTER_S, Ledger, Precision

CARD = device("n1", 0)
DAY_S = 86_400.0


class Book:
    """A plane whose every entry is noted, as the journal has it."""

    def __init__(self) -> None:
        self.plane, self.ledger, self._seen = Plane().start(spares=1), Ledger(), 0

    def tell(self, fact: f.Fact) -> None:
        entry, at_s = self.plane.world.seq + 1, self.plane.now_s
        self.ledger.note(entry, at_s, fact)
        for decision in self.plane.tell(fact):
            self.ledger.note(0, at_s, decision)

    def gate(self, passed: bool | None, resource: ResourceId = CARD) -> None:
        """As the gate of the node tells it; the plane's own course does not matter here."""
        gated = f.GateFinished(resource=resource, serial="s", boot_id="b", firmware="", passed=passed)
        self.ledger.note(0, self.plane.now_s, gated)

    def opened(self) -> OpenFault:
        """The first fault, as it was opened."""
        return next(c for x in self.plane.decisions for c in x.changes if isinstance(c, OpenFault))

    def after(self, seconds: float) -> Precision:
        (found,) = self.ledger.precision(self.plane.now_s + seconds)
        return found


def lost(slot: int = 0) -> f.SignalSeen:
    return f.SignalSeen(resource=device("n1", slot), signal="device.lost")


def test_a_card_that_then_passes_and_stays_quiet_was_taken_for_nothing() -> None:
    book = Book()
    book.tell(lost())
    assert (book.after(0.0).preemptions, book.after(0.0).preemptions_pending) == (1, 1)
    book.gate(True)
    assert book.after(PROVEN_AFTER_S - 1.0).preemptions_pending == 1
    assert book.after(PROVEN_AFTER_S).preemptions_unnecessary == 1


def test_a_card_that_does_not_pass_was_rightly_taken() -> None:
    book = Book()
    book.tell(lost())
    book.gate(False)
    assert (book.after(0.0).confirmed, book.after(30 * DAY_S).preemptions_confirmed) == (1, 1)


def test_a_gate_whose_tool_fails_proves_nothing() -> None:
    book = Book()
    book.tell(lost())
    book.gate(None)
    assert book.after(30 * DAY_S).pending == 1


@pytest.mark.parametrize(("days", "confirmed"), [(6.0, 1), (8.0, 0)])
def test_the_same_class_within_a_week_proves_the_verdict(days: float, confirmed: int) -> None:
    book = Book()
    book.tell(lost())
    book.gate(True)
    act = book.ledger.acts[0]
    again = book.opened()
    book.ledger.note(0, act.at_s + days * DAY_S, Decision(stage="assess", subject="", reason="", changes=(again,)))
    assert int(bool(act.confirmed)) == confirmed


def test_a_job_that_had_died_by_itself_was_not_preempted() -> None:
    book = Book()
    book.tell(book.plane.exited(0, error=f.ErrorRecord(kind="CUDA error", message="lost"), code=1))
    book.tell(lost())
    assert (book.after(0.0).isolations, book.after(0.0).preemptions) == (1, 0)


def test_a_card_without_a_job_is_isolated_and_nothing_preempted() -> None:
    book = Book()
    book.tell(f.SignalSeen(resource=device("n2", 0), signal="device.lost"))
    assert (book.after(0.0).isolations, book.after(0.0).preemptions) == (1, 0)


def test_a_move_at_a_checkpoint_is_a_preemption() -> None:
    book = Book()
    book.tell(f.SignalSeen(resource=CARD, signal="device.thermal"))
    assert book.after(0.0).preemptions == 0
    book.plane.now_s += 5.0
    book.tell(f.CheckpointCommitted(job=JOB, generation=1, step=7, key="k7", world_size=1))
    assert (book.after(0.0).preemptions, book.ledger.acts[0].job) == (1, JOB)


def test_members_of_a_domain_that_failed_were_rightly_taken() -> None:
    book = Book()
    for name in ("n1", "n2"):
        book.tell(
            f.AgentJoined(node=NodeId(name), session=Session(f"a-{name}"), boot_id="boot-1", domains={"rack": "r1"})
        )
    book.tell(lost())
    opened = book.opened()
    wide = OpenFault(fault=opened.fault, node=None, part="rack/r1", nature=opened.nature, members=(opened.fault,))
    book.ledger.note(0, 0.0, Decision(stage="assess", subject="", reason="", changes=(wide,)))
    assert book.ledger.acts[0].confirmed == "what it shares failed: rack/r1"
