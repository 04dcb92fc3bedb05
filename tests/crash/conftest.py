"""The crash harness for tests: worker processes that are ended, and a reason where there is no compiler."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.layer import NoCompiler, build
from tests.crash.matrix import Order, Report
from tests.crash.workers import finish, start

DEADLINE_S = 900.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "broken" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(DEADLINE_S + 60))


@pytest.fixture
def broken(tmp_path: Path) -> Callable[..., Report]:
    """Runs a scenario under faults: ``broken("toys:Careful", families=("kill",), budget=10)``."""
    try:
        build()
    except NoCompiler as reason:
        pytest.skip(str(reason))

    def run(scenario: str, **what: Any) -> Report:
        return finish(start(Order(scenario=scenario, **what), tmp_path / "scratch"), DEADLINE_S)

    return run
