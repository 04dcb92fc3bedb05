"""One server for the tests that only look, a fresh one for those that change something."""

from collections.abc import Iterator

import pytest
from tests.web.served import Served
from tests.web.site import running_site, story


@pytest.fixture(scope="session")
def told() -> list:
    return story()


@pytest.fixture(scope="module")
def served(told) -> Iterator[Served]:
    running = Served(lambda: running_site(told))
    yield running
    running.close()


@pytest.fixture
def fresh(told) -> Iterator[Served]:
    running = Served(lambda: running_site(told))
    yield running
    running.close()
