"""Jobs that save to one store get out of each other's way by themselves, and one that is alone never waits."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from keepstep.checkpoint.repository.windows_in_store import (
    CLEARED_S,
    PREFIX,
    REACH,
    Said,
    SaveWindows,
    delay_of,
    parsed,
)
from keepstep.checkpoint.stores.posix import PosixStore

from .simulated_time import SlowStore, World

INTERVAL_S = 600.0
GB = 10**9


class Fleet:
    """Jobs that save at their own times, in simulated time."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.store = SlowStore(self.world)
        self.written: list[tuple[int, float, float]] = []
        """(save, begin, end)"""
        self.delays_s: list[float] = []

    def add(
        self, name: str, *, interval_s: float = INTERVAL_S, first_s: float = 0.0, write_s: float = 10.0,
        saves: int = 8, jitter_s: float = 0.0, priority: int = 0,
    ) -> None:  # fmt: skip
        draw = random.Random(name)

        def train() -> None:
            windows = SaveWindows(self.store, name, priority, self.world.clock)
            for number in range(saves):
                at_s = first_s + number * interval_s + draw.uniform(0, jitter_s)
                self.world.sleep(max(0.0, at_s - self._now_s()))
                delay_s = windows.delay_s(number)
                assert 0 <= delay_s <= REACH * interval_s + jitter_s
                self.world.sleep(delay_s)
                begin_s = self._now_s()
                self.world.sleep(write_s)
                self.written.append((number, begin_s, self._now_s()))
                self.delays_s.append(delay_s)
                windows.wrote(number, int(write_s * GB))

        self.world.spawn(name, 0, train)

    def _now_s(self) -> float:
        return self.world.now_s - self.world.start_s

    def at_once(self, first: int) -> int:
        """The most who write at one time, from save number ``first`` on."""
        edges = sorted(
            (at, more) for n, begin, end in self.written if n >= first for at, more in ((begin, 1), (end, -1))
        )
        most = now = 0
        for _, more in edges:
            now += more
            most = max(most, now)
        return most

    def shared_s(self, first: int) -> float:
        """How long more than one wrote, counted once for each that is too many."""
        edges = sorted(
            (at, more) for n, begin, end in self.written if n >= first for at, more in ((begin, 1), (end, -1))
        )
        now, total_s = 0, 0.0
        for (at_s, more), (next_s, _) in pairwise(edges):
            now += more
            total_s += max(0, now - 1) * (next_s - at_s)
        return total_s


def test_ten_jobs_that_save_at_the_same_second_spread_out() -> None:
    fleet = Fleet()
    for n in range(10):
        fleet.add(f"job{n}")
    fleet.world.run(1e6)
    first = [save for save in fleet.written if save[0] == 0]
    assert len(first) == 10 and max(begin for _, begin, _ in first) < 1
    assert fleet.at_once(0) == 10
    assert fleet.at_once(4) == 1


def test_the_place_of_one_that_is_gone_is_taken_by_one() -> None:
    fleet = Fleet()
    fleet.add("first", priority=9, saves=8)
    for n in range(9):
        fleet.add(f"job{n}", saves=16)
    fleet.world.run(1e6)
    assert fleet.at_once(4) == 1
    last = sorted(begin for number, begin, _ in fleet.written if number == 15)
    assert last[0] % INTERVAL_S < 1, "the first of those that were left does not wait"


@pytest.mark.parametrize("seed", range(2))
def test_they_stay_apart_though_their_steps_vary(seed: int) -> None:
    fleet = Fleet(seed)
    for n in range(10):
        fleet.add(f"job{n}-{seed}", jitter_s=4.0, saves=12)
    fleet.world.run(1e6)
    assert fleet.at_once(4) <= 2


def test_more_than_fit_within_reach_still_share_it() -> None:
    fleet = Fleet()
    for n in range(10):
        fleet.add(f"job{n}", write_s=40.0)
    fleet.world.run(1e6)
    # 400 s of writing do not fit into a quarter of the interval, 150 s, and what begins at its end.
    assert fleet.at_once(5) <= 4


@pytest.mark.parametrize(("write_s", "most"), [(10.0, 0.1), (20.0, 0.75)])
def test_jobs_of_many_intervals_do_not_pile_up(write_s: float, most: float) -> None:
    fleet, draw, undisturbed = Fleet(), random.Random(9), Fleet()
    for n in range(20):
        interval_s, first_s = draw.uniform(200, 900), draw.uniform(0, 300)
        saves = int(9000 / interval_s)
        fleet.add(f"job{n}", interval_s=interval_s, first_s=first_s, write_s=write_s, saves=saves)
        undisturbed.written += [(k, first_s + k * interval_s, first_s + k * interval_s + write_s) for k in range(saves)]
    fleet.world.run(1e6)
    # The store is written to for 40 % and for 80 % of the time; what is left of the second overlaps whatever one does.
    assert fleet.shared_s(3) < most * undisturbed.shared_s(3)
    assert fleet.at_once(3) <= undisturbed.at_once(3) == 4


def test_a_job_alone_is_never_delayed() -> None:
    fleet = Fleet()
    fleet.add("alone", jitter_s=200.0, write_s=100.0, saves=20)
    fleet.world.run(1e6)
    assert fleet.delays_s == [0.0] * 20
    assert fleet.store.lists == 20, "one look a save"
    assert len(fleet.store.objects) == 1


class Clock:
    """Of a test that sets it."""

    now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


def test_all_nodes_of_a_job_wait_alike_and_one_speaks_for_it(tmp_path: Path) -> None:
    store, clock = PosixStore(tmp_path), Clock()
    nodes = [SaveWindows(store, "job", clock=clock) for _ in range(3)]
    other = SaveWindows(store, "other", priority=1, clock=clock)
    for step in range(5):
        clock.now_s += INTERVAL_S - 20
        assert other.delay_s(step) == 0
        delays_s = [node.delay_s(step) for node in nodes]
        assert [node.delay_s(step) for node in nodes] == delays_s, "the same for every part of the step"
        clock.now_s += 20
        other.wrote(step, GB)
        for node in nodes:
            node.wrote(step, GB)
        if step >= 2:
            assert delays_s[0] > 1 and delays_s == pytest.approx([delays_s[0]] * 3, abs=0.002)
            assert len(list(store.list(PREFIX))) == 2


def test_a_job_that_is_gone_is_ignored_and_later_removed(tmp_path: Path) -> None:
    store, clock = PosixStore(tmp_path), Clock()
    gone = Said(
        mark="0" * 8, begins_s=clock.now_s, delay_s=0.0, interval_s=100.0, write_s=15.0, load_bytes_s=1, priority=5
    )
    store.create(gone.key(), b"")
    store.create(f"{PREFIX}notes", b"mine")
    job = SaveWindows(store, "job", clock=clock)

    def save(step: int) -> float:
        delay_s = job.delay_s(step)
        clock.now_s += delay_s + 10
        job.wrote(step, GB)
        clock.now_s += 90 - delay_s
        return delay_s

    assert [save(step) for step in range(5)] == [0.0, 0.0, pytest.approx(15, abs=1), pytest.approx(15, abs=1), 0.0]
    assert gone.key() in [entry.key for entry in store.list(PREFIX)]
    clock.now_s += CLEARED_S
    save(5)
    assert [parsed(entry.key) is None for entry in store.list(PREFIX)] == [False, True], "its own and the notes"


def test_the_greater_priority_stays() -> None:
    now_s = 1_700_000_000.0
    said = [
        Said(
            mark=mark, begins_s=now_s - INTERVAL_S, delay_s=0.0, interval_s=INTERVAL_S, write_s=30.0, load_bytes_s=GB,
            priority=priority,
        )
        for mark, priority in (("a" * 8, 0), ("b" * 8, 5), ("c" * 8, 1))
    ]  # fmt: skip
    delays_s = {one.mark: delay_of(one.mark, said, now_s) for one in said}
    assert delays_s["b" * 8] == 0
    assert sorted(delays_s.values()) == pytest.approx([0, 30, 60], abs=1.0)


def test_a_save_out_of_turn_does_not_wait(tmp_path: Path) -> None:
    store, clock = PosixStore(tmp_path), Clock()
    job = SaveWindows(store, "job", clock=clock)
    for step in (1, 2):
        clock.now_s += INTERVAL_S
        job.delay_s(step)
        clock.now_s += 20
        job.wrote(step, GB)
    clock.now_s += 100
    now_s = clock.now_s
    busy = Said(
        mark="0" * 8, begins_s=now_s, delay_s=0.0, interval_s=INTERVAL_S, write_s=30.0, load_bytes_s=GB, priority=9
    )
    store.create(busy.key(), b"")
    assert job.delay_s(3) == 0.0, "two minutes after the one before: somebody asked for it"


def test_a_store_that_fails_delays_nothing() -> None:
    class Failing:
        name = "failing"

        def list(self, prefix: str) -> None:
            raise OSError("the store fails")

    windows = SaveWindows(Failing(), "job")  # type: ignore[arg-type]
    for step in range(4):
        assert windows.delay_s(step) == 0.0
        windows.wrote(step, GB)


def test_names_say_all() -> None:
    said = Said(
        mark="0123abcd", begins_s=1_700_000_000.25, delay_s=1.5, interval_s=600.0, write_s=7.125, load_bytes_s=GB,
        priority=7,
    )  # fmt: skip
    assert parsed(said.key()) == said
    assert parsed(said.key() + "x") is None
    assert parsed(f"{PREFIX}0123abcd-1-0-5-6-7-0") is None, "writes for longer than its interval"


def test_a_priority_that_has_no_name_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 999"):
        SaveWindows(SlowStore(World()), "job", 1000)  # type: ignore[arg-type]
