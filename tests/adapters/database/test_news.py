"""A follower hears of what another process appends, soon, and again after its connection was lost."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres import PostgresServer

from keepstep.adapters.database.news import News
from keepstep.adapters.database.opening import Database, open_database
from keepstep.core.facts import Overdue

FACT = Overdue(intent=1, waited_s=0.5)
DEADLINE_S = 60.0


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("postgres_url") if request.param == "postgresql" else str(tmp_path / "journal.db")


@pytest.fixture
def pair(where: str) -> Iterator[tuple[Database, News]]:
    """A writer, and what somebody else hears of it."""
    writer, listener = (open_database(where, patience_s=DEADLINE_S) for _ in range(2))
    news = listener.news()
    while news.wait(0.05):
        pass  # at first there may be a word without news
    yield writer, news
    news.close()
    listener.close()
    writer.close()


def test_an_append_is_heard_of_at_once_and_silence_is_none(pair: tuple[Database, News]) -> None:
    writer, news = pair
    assert news.wait(0.05) is False
    thread = threading.Timer(0.2, lambda: writer.journal.append(0.0, [FACT]))
    thread.start()
    assert news.wait(DEADLINE_S) is True
    thread.join()
    assert news.wait(0.1) is False, "once"
    writer.journal.append(0.0, [FACT])
    writer.journal.append(0.0, [FACT])
    assert news.wait(DEADLINE_S) is True, "what happened while nobody waited"


def test_closing_ends_a_wait(pair: tuple[Database, News]) -> None:
    _, news = pair
    heard: list[bool] = []
    thread = threading.Thread(target=lambda: heard.append(news.wait(100 * DEADLINE_S)))
    thread.start()
    time.sleep(0.1)
    news.close()
    thread.join(timeout=DEADLINE_S)
    assert heard == [False]
    assert news.wait(1.0) is False
    news.close()


def test_after_a_restart_of_postgresql_it_is_listened_to_again(postgres: PostgresServer, postgres_url: str) -> None:
    writer = open_database(postgres_url, patience_s=DEADLINE_S)
    news = writer.news()
    assert news.wait(DEADLINE_S) is True, "it listens from now on"
    postgres.stop()
    assert news.wait(0.2) is False
    postgres.start()
    assert news.wait(DEADLINE_S) is True, "something may have been missed"
    assert news.wait(0.1) is False
    writer.journal.append(0.0, [FACT])
    assert news.wait(DEADLINE_S) is True
    news.close()
    writer.close()
