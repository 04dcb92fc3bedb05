"""``keepstep precision`` from a journal: acts of each rule, and the sentence that sums them up."""

from pathlib import Path

import msgspec
import pytest
from tests.core.build import Plane, device

from keepstep.adapters.database.opening import open_journal
from keepstep.core import facts as f
from keepstep.server.precision import PrecisionReport


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    """A card is lost under a running job, and another one where nobody works."""
    plane = Plane().start(spares=1)
    for node in ("n1", "n2"):
        plane.tell(f.SignalSeen(resource=device(node, 0), signal="xid.79", part="gpu/0"))
    journal = open_journal(tmp_path / "journal.db")
    for at_s, record in plane.journal:
        journal.append(at_s, [record])
    journal.close()
    return tmp_path


def test_two_isolations_and_one_preemption_are_open(moved, keepstep):
    done = keepstep("precision", "--state-dir", moved, "--json")
    found = msgspec.json.decode(done.stdout, type=PrecisionReport)
    (rule,) = found.rules
    assert (rule.rule, rule.isolations, rule.preemptions) == ("xid.79", 2, 1)
    assert (found.preemptions, found.unnecessary, found.pending) == (1, 0, 1)


def test_the_table_names_the_rule_and_the_sum(moved, keepstep):
    done = keepstep("precision", "--state-dir", moved, columns=140)
    assert done.returncode == 0
    assert "xid.79" in done.stdout and "1 preemptions, 0 unnecessary, 1 not judged yet" in done.stdout


def test_a_journal_without_verdicts_says_so(recorded, keepstep):
    done = keepstep("precision", "--state-dir", recorded)
    assert "no rule has isolated anything yet" in done.stdout
