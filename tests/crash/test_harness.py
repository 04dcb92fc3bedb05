"""The harness finds what it is for: a careful program passes, and each careless one is caught by the right faults."""

from collections.abc import Callable

import pytest
from tests.crash.matrix import FAMILIES, Report
from tests.crash.programs import TWO
from tests.crash.workers import told

Broken = Callable[..., Report]

CARELESS = {
    "NoDirectorySync": {"power": "AssertionError"},
    "NoFileSync": {"power": "the value is damaged"},
    "DirectOnly": {"power": "the value is damaged"},
    "InPlace": {"kill": "the value is damaged"},
    "Unlinks": {"kill": "No such file"},
    "TrustsOthers": {"resume": "AssertionError"},
    "SyncsAgain": {"sync": "the value is damaged"},
    "IgnoresShortWrites": {"short": "the value is damaged"},
    "HidesErrors": {"space": "the value is damaged"},
    "DiesOfErrors": {"error": "Input/output error", "lost answer": "Input/output error"},
    "LeavesTemporaries": {"kill": "left behind", "power": "left behind"},
    "BelievesReads": {"flip": "wrong bytes are used", "look": "wrong bytes are used"},
    "SyncsTooEarly": {"race": "AssertionError"},
    "SharesATemporary": {"pause": "the value is damaged"},
    "OneRead": {"short": "wrong bytes are used"},
}


@pytest.mark.parametrize("program", ["Careful", "Reading"])
def test_a_careful_program_passes(broken: Broken, program: str) -> None:
    families = TWO if program == "Reading" else tuple(family for family in FAMILIES if family != "race")
    report = broken(f"toys:{program}", families=families, budget=8)
    assert not report.findings, told(report)
    assert set(report.cases) == set(families)
    assert all(report.struck.values()), "a family of faults never struck"


@pytest.mark.parametrize("program", CARELESS)
def test_a_careless_program_is_caught(broken: Broken, program: str) -> None:
    wanted = CARELESS[program]
    report = broken(f"toys:{program}", families=tuple(wanted))
    found = {
        finding.case.split(", ")[1]
        for finding in report.findings
        if wanted[finding.case.split(", ")[1]] in finding.why.strip().splitlines()[-1]
    }
    assert found == set(wanted), told(report)


def test_a_program_that_hangs_is_ended(broken: Broken) -> None:
    report = broken("toys:Hangs", families=("space",), budget=6, deadline_s=1.0)
    assert any("did not end within" in finding.why for finding in report.findings), told(report)


def test_changes_that_are_not_seen_are_noticed(broken: Broken) -> None:
    with pytest.raises(RuntimeError, match="past the fault layer"):
        broken("toys:PastTheLayer", families=("kill",))


def test_stores_through_a_mapping_are_refused(broken: Broken) -> None:
    with pytest.raises(RuntimeError, match="SIGABRT"):
        broken("toys:Mapped", families=("kill",))


def test_shards_share_the_cases_and_leave_none_out(broken: Broken) -> None:
    whole, *shards = (
        broken("toys:Careful", families=("kill",), shards=n, shard=k) for n, k in ((1, 0), (2, 0), (2, 1))
    )
    assert sum(shard.cases["kill"] for shard in shards) == whole.cases["kill"]


def test_one_case_can_be_run_again(broken: Broken) -> None:
    first = broken("toys:InPlace", families=("kill",)).findings[0]
    [again] = broken("toys:InPlace", families=("kill",), only=first.case).findings
    assert (again.case, again.where) == (first.case, first.where)
