"""Fixtures of every test: a real PostgreSQL. And what every program that a test starts finds in its environment."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

# Tests start our programs a thousand times. Where nothing may keep bytecode, each of them compiles the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


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
