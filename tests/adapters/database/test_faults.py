"""What becomes of the journal when PostgreSQL, its network, its disk or the server itself fails. Real ones, really failing."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError
from tests.adapters.database.cut import Wire
from tests.postgres import PostgresServer, name_of

from keepstep.adapters.database.engine import Connections, reach
from keepstep.adapters.database.opening import Database, open_database
from keepstep.core.decision import Entry
from keepstep.core.facts import Overdue
from keepstep.ports import JournalCorrupt, JournalUnavailable

FACT = Overdue(intent=1, waited_s=0.5)
PATIENCE_S = 60.0
"""Where it is not what is tested: a machine that is busy may stand still for seconds."""
DEADLINE_S = 90.0


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    opened = open_database(postgres_url, patience_s=PATIENCE_S)
    opened.leadership.acquire("server", "a", 600.0)
    yield opened
    opened.close()


@pytest.fixture
def hasty(postgres_url: str) -> Iterator[Database]:
    """One that soon gives up, with the schema made. It may fail where nothing is wrong but the machine is slow."""
    open_database(postgres_url, patience_s=PATIENCE_S).close()
    opened, deadline = None, time.monotonic() + DEADLINE_S
    while opened is None:
        try:
            opened = open_database(postgres_url, patience_s=2.0)
        except JournalUnavailable:
            assert time.monotonic() < deadline
    yield opened
    opened.close()


def append_until_kept(database: Database, at_s: float, count: int = 1) -> tuple[list[Entry], int]:
    """As the server's loop does: the same again until it is kept. Returns how often it failed, too."""
    failures = 0
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return database.journal.append(at_s, [FACT] * count), failures
        except JournalUnavailable:
            failures += 1
            assert time.monotonic() < deadline
            time.sleep(0.002)


def test_idle_connections_that_were_cut_are_made_anew(database: Database, postgres: PostgresServer) -> None:
    database.journal.append(0.0, [FACT])
    postgres.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'keepstep'"
    )
    assert [entry.seq for entry in database.journal.append(1.0, [FACT] * 3)] == [2, 3, 4]
    assert database.journal.verify() == 4


def test_nothing_is_lost_or_doubled_while_connections_are_cut_at_any_instant(
    database: Database, postgres: PostgresServer, postgres_url: str
) -> None:
    """Each append is cut at most once, at some instant of it, so that every machine gets on."""
    rng = random.Random(7)
    go, done = threading.Event(), threading.Event()

    def cut() -> None:
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as other:
            while not done.is_set():
                if go.wait(0.1):
                    go.clear()
                    done.wait(rng.random() * 0.003)
                    other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'keepstep'"
                    )

    cutter = threading.Thread(target=cut)
    cutter.start()
    told: list[Entry] = []
    failures, deadline = 0, time.monotonic() + DEADLINE_S
    try:
        while len(told) < 200 or (not failures and time.monotonic() < deadline):
            go.set()
            entries, failed = append_until_kept(database, float(len(told)), 2)
            told += entries
            failures += failed
    finally:
        done.set()
        cutter.join()
    assert failures
    look = open_database(postgres_url, patience_s=PATIENCE_S)
    assert list(look.journal.read()) == told
    look.close()


def test_connections_that_all_die_as_they_are_handed_out_are_an_outage(postgres_url: str) -> None:
    """Two in a row are enough for the pool to give up; that it says so in words of its own must not end the server."""
    connections = Connections(reach(postgres_url, read_only=False, patience_s=PATIENCE_S), read_only=False)

    def die(*_: object) -> None:
        raise DisconnectionError("cut")

    event.listen(connections.engine, "checkout", die)
    with pytest.raises(JournalUnavailable, match=r"no connection to the journal .* lasts"), connections.writing():
        pass
    event.remove(connections.engine, "checkout", die)
    with connections.reading() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    connections.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_answer_is_lost_is_found_out(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str, when: str
) -> None:
    wire = Wire(tmp_path, postgres.folder)
    database = open_database(postgres_url.replace(str(postgres.folder), str(tmp_path)), patience_s=PATIENCE_S)
    database.leadership.acquire("server", "a", 600.0)
    (first,) = database.journal.append(0.0, [FACT])
    wire.cut_next_commit = when
    with pytest.raises(JournalUnavailable, match="in the middle of a commit"):
        database.journal.append(1.0, [FACT] * 2)
    again = database.journal.append(1.0, [FACT] * 2)
    assert list(database.journal.read()) == [first, *again]
    assert [entry.seq for entry in database.journal.append(2.0, [FACT])] == [4]
    database.close()
    wire.close()


def test_what_was_kept_unnoticed_is_not_written_over(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str
) -> None:
    wire = Wire(tmp_path, postgres.folder)
    database = open_database(postgres_url.replace(str(postgres.folder), str(tmp_path)), patience_s=PATIENCE_S)
    wire.cut_next_commit = "after"
    with pytest.raises(JournalUnavailable):
        database.journal.append(1.0, [FACT])
    with pytest.raises(JournalCorrupt, match=r"entry 1 .* written by another"):
        database.journal.append(2.0, [FACT])  # something else
    assert [entry.at_s for entry in database.journal.read()] == [1.0]
    database.close()
    wire.close()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_of_postgresql(database: Database, postgres: PostgresServer, how: str) -> None:
    database.journal.append(0.0, [FACT])
    getattr(postgres, how)()
    try:
        for _ in range(2):
            with pytest.raises(JournalUnavailable):
                database.journal.append(1.0, [FACT])
            with pytest.raises(JournalUnavailable):
                database.leadership.renew(5.0)
        with pytest.raises(JournalUnavailable):
            database.archive.list("incident")
    finally:
        postgres.start()
    assert [entry.seq for entry in append_until_kept(database, 1.0)[0]] == [2]
    assert database.leadership.renew(5.0)
    assert database.journal.verify() == 2


def test_a_server_that_stands_still_holds_nobody_up(
    hasty: Database, postgres: PostgresServer, postgres_url: str
) -> None:
    """The machine is frozen or the network silent: no error comes, no answer either."""
    append_until_kept(hasty, 0.0)
    found = f"SELECT pid FROM pg_stat_activity WHERE datname = '{name_of(postgres_url)}'"
    pids = [int(str(pid)) for (pid,) in postgres.execute(found)]
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # of one that was closed just now
                os.kill(pid, signal.SIGSTOP)
        with pytest.raises(JournalUnavailable):
            hasty.journal.append(1.0, [FACT])  # it comes back although nobody goes on
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert [entry.seq for entry in append_until_kept(hasty, 1.0)[0]] == [2]
    look = open_database(postgres_url, patience_s=PATIENCE_S)
    assert look.journal.verify() == 2
    look.close()


def test_a_lock_that_somebody_holds_is_not_waited_for_long(hasty: Database, postgres_url: str) -> None:
    deadline, said = time.monotonic() + DEADLINE_S, ""
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE entries IN ACCESS EXCLUSIVE MODE")
        # Where the machine stands still meanwhile, our own watchdog may be sooner than the server.
        while not re.search("lock timeout|statement timeout", said):
            assert time.monotonic() < deadline, said
            with pytest.raises(JournalUnavailable) as refused:
                hasty.journal.append(0.0, [FACT])
            said = str(refused.value)
        other.rollback()
    assert [entry.seq for entry in append_until_kept(hasty, 0.0)[0]] == [1]


def test_two_writers_never_fork_the_chain(postgres_url: str) -> None:
    one, two = (open_database(postgres_url, patience_s=PATIENCE_S) for _ in range(2))
    one.journal.append(0.0, [FACT])
    with pytest.raises(JournalCorrupt, match="written by another process"):
        two.journal.append(0.0, [FACT])
    assert one.journal.verify() == 1
    one.close()
    two.close()


@pytest.mark.parametrize("after_lines", [1, 20])
def test_killed_in_the_middle_of_writing(postgres: PostgresServer, postgres_url: str, after_lines: int) -> None:
    """What was reported as durable is there, batches are whole, and the chain holds; SQLite: see the journal's contract."""
    program = textwrap.dedent(
        """
        import sys
        from keepstep.adapters.database.opening import open_journal
        from keepstep.core.facts import Overdue
        journal = open_journal(sys.argv[1], patience_s=60.0)
        while True:
            print(journal.append(0.0, [Overdue(intent=1, waited_s=0.5)] * 3)[-1].seq, flush=True)
        """
    )
    writer = subprocess.Popen([sys.executable, "-c", program, postgres_url], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        durable = [int(writer.stdout.readline()) for _ in range(after_lines)]
        writer.send_signal(signal.SIGKILL)
        durable += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    finally:
        writer.kill()
        writer.wait(timeout=60)
        writer.stdout.close()
    deadline = time.monotonic() + DEADLINE_S
    while postgres.is_used(postgres_url):  # its last commit may still be under way there
        assert time.monotonic() < deadline
        time.sleep(0.02)
    database = open_database(postgres_url, patience_s=PATIENCE_S)
    count = database.journal.verify()
    assert count >= durable[-1]
    assert count % 3 == 0
    assert len(database.journal.mentioning(["fact:Overdue"], limit=10_000)) == count
    database.close()


def test_a_full_disk_keeps_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    database = open_database(tmp_path / "journal.db")
    database.journal.append(0.0, [FACT])
    with database.connections.writing_bare() as cursor:
        pages = cursor.execute("PRAGMA page_count").fetchone()[0]
        cursor.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalUnavailable, match="full"):
        database.journal.append(1.0, [FACT] * 2000)
    assert database.journal.last() == 1
    with database.connections.reading() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 100000")
    assert [entry.seq for entry in database.journal.append(1.0, [FACT] * 2000)][-1] == 2001
    assert database.journal.verify() == 2001
    database.close()
