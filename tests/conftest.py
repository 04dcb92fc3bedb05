"""Fixtures of every test: a real PostgreSQL, a warm interpreter. And what every program finds in its environment, and how
examples are drawn."""

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.postgres import PostgresServer
    from tests.warm import Warm

# Tests start our programs a thousand times. Where nothing may keep bytecode, each of them compiles the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A shell starts what it puts in the background deaf to Ctrl-C, which our programs would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# How long an example takes says more about the machine's other work than about the code. And a change is judged by the same
# examples as before it: new ones are looked for with ``--hypothesis-profile explore``.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", _UNTIMED)
settings.register_profile("same", _UNTIMED, derandomize=True)
settings.load_profile("same")


PATIENT = {"warm_torch", "runs_of", "browser"}
"""Fixtures with imports, whole trainings or the start of a browser in them, which whoever asks first waits for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if PATIENT & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """The server itself, of this test process alone: it may be stopped and killed, if it runs again afterwards."""
    from tests.postgres import PostgresServer, find_binaries

    binaries = find_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here: `make workshop` brings one")
    server = PostgresServer(binaries)
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres: "PostgresServer") -> Iterator[str]:
    """A fresh, empty database."""
    url = postgres.fresh()
    yield url
    postgres.drop(url)


@pytest.fixture(scope="session")
def warm_torch() -> "Iterator[Warm]":
    """Forks programs that need torch, with all of it that is imported on first use."""
    from tests.warm import Warm

    warm = Warm("torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo", "keepstep")
    yield warm
    warm.close()
