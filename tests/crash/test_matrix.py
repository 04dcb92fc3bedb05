"""The library under a slice of the crash matrix; all of it is ``python -m tests.crash --full``."""

from collections.abc import Callable

import pytest
from tests.crash.matrix import Report
from tests.crash.programs import SCENARIOS
from tests.crash.workers import told

SLICE = {"saves:Saves": 4, "saves:Ranks": 2, "saves:First": 3, "saves:Pair": 6, "saves:Reader": 5}
"""Cases of each family. Seconds, not minutes."""
MORE = {"saves:Saves": 12, "saves:Ranks": 4, "saves:First": 8, "saves:Pair": 16, "saves:Reader": 12}
ORDERS = [
    *(pytest.param(name, budget, id=name) for name, budget in SLICE.items()),
    *(pytest.param(name, budget, id=f"{name}-more", marks=pytest.mark.deep) for name, budget in MORE.items()),
]


@pytest.mark.parametrize(("scenario", "budget"), ORDERS)
def test_D5_a_load_gives_a_committed_step_or_refuses(broken: Callable[..., Report], scenario: str, budget: int) -> None:
    families = SCENARIOS[scenario]
    report = broken(scenario, families=families, budget=budget)
    assert not report.findings, told(report)
    assert set(report.cases) == set(families), "a family of faults was left out"
    assert all(report.struck.values()), "a family of faults never struck"
    assert report.changes + report.looks > 100, "the program hardly touched a file"
