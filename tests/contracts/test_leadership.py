"""The contract of ports.Leadership, and of the fence that it puts around the journal, against both real databases."""

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from keepstep.adapters.database.opening import Database, open_database
from keepstep.core.facts import Overdue
from keepstep.ports import Deposed

OpenIt = Callable[[], Database]

FACT = Overdue(intent=1, waited_s=0.5)
DEADLINE_S = 120.0
ENOUGH = 60
"""Entries of each that fights."""


def test_nobody_leads_at_first(open_it: OpenIt) -> None:
    assert open_it().leadership.leader() is None


def test_one_leads_and_others_see_who(open_it: OpenIt) -> None:
    one, two = open_it(), open_it()
    assert one.leadership.acquire("one", "tcp:10.0.0.1:7000", 600.0) == 1
    assert two.leadership.acquire("two", "tcp:10.0.0.2:7000", 600.0) is None
    leader = two.leadership.leader()
    assert leader is not None
    assert (leader.term, leader.holder, leader.address) == (1, "one", "tcp:10.0.0.1:7000")
    assert 300.0 < leader.expires_in_s <= 600.0
    assert two.leadership.renew(30.0) is False


def test_a_lease_that_ran_out_is_taken_over_under_a_new_term(open_it: OpenIt) -> None:
    one, two = open_it(), open_it()
    assert one.leadership.acquire("one", "a", 0.05) == 1
    time.sleep(0.1)
    assert one.leadership.renew(0.05), "nobody took it meanwhile"
    time.sleep(0.1)
    assert two.leadership.acquire("two", "b", 30.0) == 2
    assert one.leadership.renew(30.0) is False
    leader = one.leadership.leader()
    assert leader is not None and leader.holder == "two"


def test_renewing_keeps_the_lease(open_it: OpenIt) -> None:
    one, two = open_it(), open_it()
    one.leadership.acquire("one", "a", 0.1)
    assert one.leadership.renew(600.0)
    time.sleep(0.15)
    assert two.leadership.acquire("two", "b", 1.0) is None


def test_who_steps_down_makes_room_at_once_and_writes_no_more(open_it: OpenIt) -> None:
    one, two = open_it(), open_it()
    one.leadership.acquire("one", "a", 30.0)
    one.leadership.release()
    left = two.leadership.leader()
    assert left is not None and left.expires_in_s <= 0
    with pytest.raises(Deposed, match="does not lead"):
        one.journal.append(0.0, [FACT])
    assert two.leadership.acquire("two", "b", 30.0) == 2
    one.leadership.release()  # of somebody who does not lead: nothing
    assert two.leadership.renew(30.0)
    two.leadership.release()
    assert one.leadership.acquire("one", "a", 30.0) == 3
    assert [entry.seq for entry in one.journal.append(0.0, [FACT])] == [1]


def test_terms_outlive_everybody(open_it: OpenIt) -> None:
    for term in (1, 2, 3):
        database = open_it()
        assert database.leadership.acquire("server", "a", 0.0) == term
        database.close()


def test_a_deposed_writer_keeps_nothing(open_it: OpenIt) -> None:
    one, two = open_it(), open_it()
    one.leadership.acquire("one", "a", 0.0)
    one.journal.append(0.0, [FACT])
    two.leadership.acquire("two", "b", 30.0)
    with pytest.raises(Deposed, match="newest term of the journal is 2, and this server led in term 1"):
        one.journal.append(1.0, [FACT] * 3)
    assert two.journal.last() == 1
    assert [entry.seq for entry in two.journal.append(1.0, [FACT])] == [2], (
        "the new leader goes on from the newest entry"
    )
    assert two.journal.verify() == 2


def test_where_somebody_led_only_a_leader_writes(open_it: OpenIt) -> None:
    stranger, leader = open_it(), open_it()
    stranger.journal.append(0.0, [FACT])
    leader.leadership.acquire("leader", "a", 0.0)
    with pytest.raises(Deposed):
        stranger.journal.append(0.0, [FACT])
    assert [entry.seq for entry in leader.journal.append(0.0, [FACT])] == [2]


def test_of_many_at_once_one_wins(open_it: OpenIt) -> None:
    databases = [open_it() for _ in range(6)]
    won: list[int | None] = []
    start = threading.Barrier(len(databases))

    def try_it(database: Database) -> None:
        start.wait()
        won.append(database.leadership.acquire("server", "a", 600.0))

    threads = [threading.Thread(target=try_it, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won, key=str) == [1] + [None] * 5


def test_two_that_fight_never_fork_the_chain(open_it: OpenIt) -> None:
    """Each leads whenever it can and writes until both have written enough; leases run out at once."""
    kept: dict[str, list[str]] = {"one": [], "two": []}
    give_up_s = time.monotonic() + DEADLINE_S

    def fight(name: str) -> None:
        database = open_it()
        while min(map(len, kept.values())) < ENOUGH and time.monotonic() < give_up_s:
            if len(kept[name]) > 2 * ENOUGH or database.leadership.acquire(name, "a", 0.0) is None:
                time.sleep(0.001)
                continue
            try:
                for _ in range(3):
                    kept[name] += [entry.hash for entry in database.journal.append(0.0, [FACT] * 2)]
            except Deposed:
                pass

    threads = [threading.Thread(target=fight, args=(name,)) for name in kept]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal = open_it().journal
    told = sorted(kept["one"] + kept["two"])
    assert min(map(len, kept.values())) >= ENOUGH
    assert sorted(entry.hash for entry in journal.read()) == told, "what was told as kept is there, and nothing else"


def test_on_one_machine_the_next_life_of_a_killed_server_need_not_wait(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    program = textwrap.dedent(
        """
        import sys
        from keepstep.adapters.database.opening import open_database
        database = open_database(sys.argv[1])
        print(database.leadership.acquire("first", "a", 3600.0), flush=True)
        sys.stdin.read()
        """
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program, str(path)], text=True, **pipes) as first:  # type: ignore[call-overload]
        assert first.stdout.readline() == "1\n"
        database = open_database(path)
        assert database.leadership.acquire("second", "b", 30.0) is None, "it lives"
        first.kill()
    assert database.leadership.acquire("second", "b", 30.0) == 2
    assert database.leadership.acquire("second", "b", 30.0) is None, "it leads already"
    database.close()
