"""Many restores from one store, with nobody in charge: turns, shares, and what happens to the dead, the late and the blind."""

import itertools
import random
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from keepstep.checkpoint.interval.lanes import Lane
from keepstep.checkpoint.repository import traffic
from keepstep.checkpoint.repository.traffic import PREFIX, SKEW_S, Pace, Traffic, parsed
from keepstep.checkpoint.stores.posix import PosixStore

from .simulated_time import SlowStore, World

MB = 10**6
CHUNK_BYTES = 8 * MB
CAPACITY_BYTES_S = 1000 * MB
LOOK_S = 5.0


class Storm:
    """Restores in simulated time, each a thread, and what they did to the store."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.store = SlowStore(self.world)
        self.store.changed = self._account
        self.begun_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.reads: list[tuple[float, int]] = []
        self.words: list[str] = []
        self._promised, self._since_s, self.too_much_bytes = 0, self.world.now_s, 0.0

    def _account(self) -> None:
        """Of shares in force: how many bytes more than the capacity they allowed."""
        too_much = max(0, self._promised - CAPACITY_BYTES_S)
        self.too_much_bytes += too_much * (self.world.now_s - self._since_s)
        newest = {}
        for key in sorted(self.store.objects):
            one = parsed(key)
            if one is not None and one.expires_s + SKEW_S > self.world.now_s:
                newest[one.id] = one.share_bytes_s
        self._promised, self._since_s = sum(newest.values()), self.world.now_s

    def add(self, name: str, size_bytes: int, at_s: float = 0.0, reads: int = 100, **pace: object) -> None:
        settings = Pace(bytes_s=CAPACITY_BYTES_S, **pace)  # type: ignore[arg-type]

        def restore() -> None:
            with self.traffic(name, settings).enter(size_bytes) as passage:
                self.begun_s[name] = self.since_start_s()
                step = max(CHUNK_BYTES, size_bytes // reads)
                for at in range(0, size_bytes, step):
                    size = min(step, size_bytes - at)
                    self.reads.append((self.since_start_s(), size))
                    passage.progress(size)
            self.ended_s[name] = self.since_start_s()

        self.world.spawn(name, at_s, restore)

    def traffic(self, name: str, pace: Pace) -> Traffic:
        return Traffic(self.store, name, pace, self.words.append, clock=self.world.clock, sleep=self.world.sleep)

    def since_start_s(self) -> float:
        return self.world.now_s - self.world.start_s

    def busiest_bytes_s(self, over_s: float) -> float:
        """Greatest mean rate of any stretch of so many seconds."""
        most, total, first = 0, 0, 0
        for at_s, size in self.reads:
            total += size
            while self.reads[first][0] < at_s - over_s:
                total -= self.reads[first][1]
                first += 1
            most = max(most, total)
        return most / over_s


def test_two_hundred_restores_end_in_order_of_priority_and_within_the_capacity() -> None:
    storm, draw = Storm(), random.Random(2)
    lanes: dict[str, Lane] = {
        f"job{n:03}": lane for n, lane in enumerate(draw.choices(("urgent", "normal", "background"), k=200))
    }
    storm.add("before", 2000 * MB)
    total = 2000 * MB
    for name, lane in lanes.items():
        size = draw.randrange(100, 1000) * MB
        total += size
        storm.add(name, size, draw.uniform(0.5, 2.0), 25, lane=lane, cost_per_s=draw.randrange(1, 500))
        storm.world.skew_s[name] = draw.uniform(-3, 3)
    took_s = storm.world.run(1000)
    assert storm.ended_s.keys() == {"before", *lanes} and not storm.words

    def begun(lane: Lane) -> list[float]:
        return sorted(storm.begun_s[name] for name in lanes if lanes[name] == lane)

    # To within a look: who is granted a turn takes it when it looks.
    assert begun("urgent")[-1] < begun("normal")[0] + 2 * LOOK_S
    assert begun("normal")[-1] < begun("background")[0] + 2 * LOOK_S
    assert took_s < 1.25 * total / CAPACITY_BYTES_S
    assert storm.too_much_bytes < 0.01 * total
    assert storm.busiest_bytes_s(10) < 1.1 * CAPACITY_BYTES_S
    assert not storm.store.objects


@pytest.mark.parametrize("seed", range(5))
def test_two_that_begin_at_once_and_do_not_see_each_other_share(seed: int) -> None:
    storm = Storm(seed)
    for name in "abc":
        storm.add(name, 5000 * MB)
    took_s = storm.world.run(200)
    assert storm.too_much_bytes < 0.2 * CAPACITY_BYTES_S
    assert 15 <= took_s < 18
    assert max(storm.begun_s.values()) < 3 * LOOK_S


def test_one_that_is_killed_while_it_runs_gives_its_share_back() -> None:
    storm = Storm()
    storm.add("dies", 50_000 * MB)
    storm.world.spawn("killer", 5, lambda: storm.world.kill("dies"))
    for n in range(12):
        storm.add(f"job{n}", 4000 * MB, 2 + n / 10)
    took_s = storm.world.run(300)
    assert len(storm.ended_s) == 12 and not storm.words
    assert took_s < 48 + Pace().token_s + SKEW_S + 2 * LOOK_S
    # For the second half of the time nothing is kept for the dead one.
    assert sum(size for at_s, size in storm.reads if at_s > took_s - 15) > 0.8 * 15 * CAPACITY_BYTES_S


def test_one_that_is_killed_while_it_waits_does_not_hold_up_those_behind_it() -> None:
    storm = Storm()
    for n in range(9):
        storm.add(f"first{n}", 4000 * MB)
    storm.add("dies", 1000 * MB, 2, lane="urgent", cost_per_s=1000)
    storm.world.spawn("killer", 4, lambda: storm.world.kill("dies"))
    for n in range(9):
        storm.add(f"later{n}", 1000 * MB, 3)
    storm.world.run(36 + 9 + Pace().token_s + SKEW_S + 4 * LOOK_S)
    assert len(storm.ended_s) == 18 and "dies" not in storm.begun_s and not storm.words


def test_what_the_dead_left_is_removed_by_whoever_sees_it() -> None:
    storm = Storm()
    storm.add("dies", 50_000 * MB)
    storm.world.spawn("killer", 5, lambda: storm.world.kill("dies"))
    storm.add("later", 100 * MB, 5 + Pace().token_s + SKEW_S + traffic.CLEARED_S + 5)
    storm.world.run(300)
    assert not storm.store.objects


def test_a_background_restore_is_not_starved_by_a_stream_of_urgent_ones() -> None:
    storm = Storm()
    for n in range(180):
        storm.add(f"urgent{n}", 5000 * MB, max(0, n - 20) * 5, 20, lane="urgent", patience_s=10_000)
    storm.add("patient", 500 * MB, 2, lane="background", patience_s=10_000)
    storm.world.run(2000)
    # Two lanes to climb; without that it would begin when all others have ended.
    assert 600 < storm.begun_s["patient"] < storm.begun_s["urgent179"] - 50


def test_one_whose_patience_is_over_goes_on_and_says_so_within_the_capacity() -> None:
    storm = Storm()
    for n in range(8):
        storm.add(f"job{n}", 12_000 * MB, lane="urgent")
    storm.add("late", 500 * MB, 3, lane="background", patience_s=20)
    storm.world.run(300)
    assert 23 < storm.begun_s["late"] < 25
    assert len(storm.words) == 1 and "without its turn" in storm.words[0] and "waited 20 s" in storm.words[0]
    # The others are lower at their next look.
    assert storm.too_much_bytes <= 125 * MB * 2 * LOOK_S
    assert storm.busiest_bytes_s(30) < 1.05 * CAPACITY_BYTES_S


def test_a_reader_that_hung_has_lost_its_share_and_waits_for_another() -> None:
    storm = Storm()
    asked, both = 0, list[None]()

    def alive(_: int) -> None:
        nonlocal asked
        asked += 1

    def hang() -> None:
        with storm.traffic("hangs", Pace(bytes_s=CAPACITY_BYTES_S)).enter(3000 * MB, alive=alive) as passage:
            passage.progress(1000 * MB)
            storm.world.spawn("second", storm.since_start_s() + 101, lambda: both.append(passage.progress(1)))
            storm.world.sleep(100)
            before = asked
            passage.progress(1000 * MB)
            assert storm.since_start_s() > min(storm.ended_s.values()), "when there was room"
            assert asked > before + 3 and not both, "neither of its threads goes on"
            passage.progress(1000 * MB)

    storm.world.spawn("hangs", 0, hang)
    for n in range(8):
        storm.add(f"urgent{n}", 16_000 * MB, 50, lane="urgent")
    storm.world.run(400)
    assert storm.too_much_bytes < 1000 * MB
    assert len(storm.ended_s) == 8 and len(both) == 1 and not storm.store.objects


def test_a_thread_that_reads_on_when_the_passage_is_left_announces_nothing_more() -> None:
    storm, back = Storm(), list[None]()

    def read() -> None:
        with storm.traffic("left", Pace(bytes_s=CAPACITY_BYTES_S)).enter(3000 * MB) as passage:
            storm.world.spawn("second", storm.since_start_s() + 1, lambda: back.append(passage.progress(60_000 * MB)))
            storm.world.sleep(2)

    storm.world.spawn("left", 0, read)
    storm.world.run(400)
    assert len(back) == 1 and not storm.store.objects


def test_one_that_is_slowed_down_is_seen_to_live() -> None:
    storm = Storm()
    seen_s: list[float] = []

    def restore() -> None:
        roads = storm.traffic("slow", Pace(bytes_s=CAPACITY_BYTES_S))
        with roads.enter(60_000 * MB, alive=lambda _: seen_s.append(storm.since_start_s())) as passage:
            passage.progress(60_000 * MB)

    storm.world.spawn("slow", 0, restore)
    took_s = storm.world.run(100)
    assert took_s > 50 and max(b - a for a, b in pairwise([0.0, *seen_s, took_s])) < 2 * LOOK_S


def test_a_restore_does_not_fail_where_nothing_can_be_announced() -> None:
    storm = Storm()
    storm.store.broken = True
    storm.add("blind", 1000 * MB)
    took_s = storm.world.run(60)
    assert len(storm.words) == 1 and "nothing can be announced" in storm.words[0]
    assert 7 < took_s < 10, "at the rate that is useful, an eighth of all"


def test_one_that_could_not_announce_itself_does_so_as_soon_as_it_can() -> None:
    storm = Storm()
    storm.store.broken = True
    storm.add("blind", 4000 * MB)

    def mend() -> None:
        storm.store.broken = False

    storm.world.spawn("mend", 8, mend)
    took_s = storm.world.run(60)
    assert took_s < 20, "alone it gets everything"
    assert not storm.store.objects


def test_a_store_that_fails_for_a_while_costs_no_restore() -> None:
    storm = Storm()
    for n in range(4):
        storm.add(f"job{n}", 20_000 * MB, patience_s=30)

    def turn(broken: bool) -> Callable[[], None]:
        return lambda: setattr(storm.store, "broken", broken)

    storm.world.spawn("break", 10, turn(True))
    storm.world.spawn("mend", 90, turn(False))
    storm.world.run(400)
    assert len(storm.ended_s) == 4
    assert len(storm.words) == 4, "once each"
    assert storm.busiest_bytes_s(20) < 1.05 * CAPACITY_BYTES_S


def test_reads_that_follow_each_other_wait_as_one_restore() -> None:
    storm = Storm()
    asked_s: dict[str, int] = {}

    def node() -> None:
        roads = storm.traffic("node", Pace(bytes_s=CAPACITY_BYTES_S))
        for name, pause_s in (("first", 0.0), ("second", 10.0), ("much later", 100.0)):
            storm.world.sleep(pause_s)
            with roads.enter(1000 * MB) as passage:
                (one,) = (said for key in storm.store.objects if (said := parsed(key)) is not None)
                asked_s[name] = one.asked_s - int(storm.world.start_s)
                passage.progress(1000 * MB)

    storm.world.spawn("node", 7, node)
    storm.world.run(200)
    assert asked_s["first"] == asked_s["second"] == 7
    assert asked_s["much later"] > 100


def test_without_a_limit_nothing_is_announced() -> None:
    class NoStore:
        name = "none"

    with Traffic(NoStore(), "job", Pace(), print).enter(1000) as passage:  # type: ignore[arg-type]
        passage.progress(1000)
        assert passage.share_bytes_s == 0


@pytest.mark.parametrize("fields", [{"bytes_s": -1}, {"cost_per_s": 0}, {"patience_s": -1.0}, {"token_s": 0.0}])
def test_a_pace_that_means_nothing_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="the pace of restores needs"):
        Pace(**fields)  # type: ignore[arg-type]


def test_names_that_are_not_announcements_are_left_alone(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.create(f"{PREFIX}notes", b"mine")
    with Traffic(store, "job", Pace(bytes_s=10**12), print).enter(1000) as passage:
        passage.progress(1000)
        assert len(list(store.list(PREFIX))) == 2
    assert [entry.key for entry in store.list(PREFIX)] == [f"{PREFIX}notes"]


def test_two_threads_of_one_reader_keep_to_one_share() -> None:
    storm = Storm()
    passage = storm.traffic("job", Pace(bytes_s=CAPACITY_BYTES_S)).enter(8000 * MB)
    done = itertools.count(1)

    def first() -> None:
        with passage:
            storm.world.spawn("second", storm.since_start_s(), read)
            read()
            storm.world.sleep(10)

    def read() -> None:
        for _ in range(500):
            storm.reads.append((storm.since_start_s(), CHUNK_BYTES))
            passage.progress(CHUNK_BYTES)
        next(done)

    storm.world.spawn("first", 0, first)
    storm.world.run(60)
    assert next(done) == 3
    assert 7 < storm.reads[-1][0] < 8.5
    assert storm.busiest_bytes_s(2) < 1.6 * CAPACITY_BYTES_S


def test_four_processes_share_a_directory(tmp_path: Path, start_program: Callable[..., subprocess.Popen[str]]) -> None:
    rate, size = 4 * MB, 2 * MB
    lanes = ("background", "normal", "urgent", "urgent")
    processes = [start_program("restoring.py", tmp_path, f"job{n}", lane, rate, size) for n, lane in enumerate(lanes)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    times = []
    for process in processes:
        out, _ = process.communicate(timeout=150)
        begun_s, ended_s, words = out.split("|")
        assert process.returncode == 0 and words == "\n"
        times.append((float(begun_s), float(ended_s)))
    took_s = max(ended_s for _, ended_s in times) - min(begun_s for begun_s, _ in times)
    assert took_s > 0.8 * len(lanes) * size / rate
    assert not list(PosixStore(tmp_path).list(PREFIX))
