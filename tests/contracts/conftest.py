"""Both kinds of real database, for contracts that only a database can keep."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keepstep.adapters.database.opening import Database, open_database

OpenIt = Callable[[], Database]


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """Of a database that is not there yet."""
    return request.getfixturevalue("postgres_url") if request.param == "postgresql" else tmp_path / "journal.db"


@pytest.fixture
def open_it(where: str | Path) -> Iterator[OpenIt]:
    """Opens the same database each time it is called, as another process would."""
    opened: list[Database] = []

    def another() -> Database:
        opened.append(open_database(where, patience_s=60.0))
        return opened[-1]

    yield another
    for database in opened:
        database.close()
