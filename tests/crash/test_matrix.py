"""The library under a slice of the crash matrix; all of it is ``python -m tests.crash --full``."""

from collections.abc import Callable

import pytest
from tests.crash.matrix import Report
from tests.crash.programs import SCENARIOS
from tests.crash.workers import told

BUDGET = {"saves:Saves": 12, "saves:Ranks": 4, "saves:First": 8, "saves:Pair": 16, "saves:Reader": 12}
"""Cases of each family. Seconds, not minutes."""
HALVES = [(name, half) for name, families in SCENARIOS.items() for half in (families[:5], families[5:]) if half]


@pytest.mark.parametrize(("scenario", "families"), HALVES, ids=[f"{name}-{half[0]}" for name, half in HALVES])
def test_D5_a_load_gives_a_committed_step_or_refuses(
    broken: Callable[..., Report], scenario: str, families: tuple[str, ...]
) -> None:
    report = broken(scenario, families=families, budget=BUDGET[scenario])
    assert not report.findings, told(report)
    assert set(report.cases) == set(families), "a family of faults was left out"
    assert all(report.struck.values()), "a family of faults never struck"
    assert report.changes + report.looks > 100, "the program hardly touched a file"
