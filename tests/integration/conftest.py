from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .driver import Cluster, Run


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Makes runs, the first in the test's own folder; ends all of them."""
    made: list[Run] = []

    def make(**options: object) -> Run:
        made.append(Run(tmp_path / f"run{len(made)}", **options))
        return made[-1]

    yield make
    for run in made:
        run.close()


@pytest.fixture
def run(make_run: Callable[..., Run]) -> Run:
    return make_run()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()
