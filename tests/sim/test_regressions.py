"""Seeds that once found something."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from keepstep.sim.run import run

KNOWN: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("regressions.toml").read_text())["seed"]


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: f"{case['scenario']}-{case['seed']}")
def test_regression(case: dict[str, Any]) -> None:
    result = run(case["scenario"], case["seed"])
    assert result.failure is None, f"{result.failure}; it once found: {case['found']}"
