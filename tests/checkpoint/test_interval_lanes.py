"""Many restores at once: in order of priority, none starved, never above the capacity, tokens given back by the dead."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.checkpoint.interval.lanes import Capacity, Request, Token, admit, ranked, renew

GB = 10**9
LANES = ("urgent", "normal", "background")
CAPACITY = Capacity(bytes_s=20 * GB, useful_bytes_s=GB, reserved_bytes_s=4 * GB, token_s=10, aging_s=300)


def request(name: str, lane: str = "normal", size_gb: float = 100, **more: float) -> Request:
    fields = {"asked_s": 0.0, "cost_per_s": 1.0, "limit_bytes_s": 5 * GB, **more}
    return Request(id=name, lane=lane, size_bytes=int(size_gb * GB), **fields)  # type: ignore[arg-type]


class Storm:
    """A store with its holders, second by second. Holders take a second to confirm a lower rate; the dead say nothing."""

    def __init__(self, capacity: Capacity = CAPACITY) -> None:
        self.capacity, self.now_s = capacity, 0.0
        self.waiting: dict[str, Request] = {}
        self.running: dict[str, Token] = {}
        self.left: dict[str, float] = {}
        self.dead: set[str] = set()
        self.unconfirmed: dict[str, Token] = {}
        self.started_s: dict[str, float] = {}
        self.finished_s: dict[str, float] = {}
        self.moved_bytes = 0.0

    def ask(self, *requests: Request) -> None:
        for each in requests:
            self.waiting[each.id] = each
            self.left.setdefault(each.id, float(each.size_bytes))

    def second(self) -> None:
        for name, lower in self.unconfirmed.items():
            if name in self.running and name not in self.dead:
                self.running[name] = lower
        decided = admit(list(self.waiting.values()), list(self.running.values()), self.now_s, self.capacity)
        for name in decided.expired:
            del self.running[name]
        self.unconfirmed = {token.id: token for token in decided.lowered}
        for token in (*decided.granted, *decided.raised):
            self.running[token.id] = token
            if self.waiting.pop(token.id, None):
                self.started_s[token.id] = self.now_s
        assert sum(token.share_bytes_s for token in self.running.values()) <= self.capacity.bytes_s
        self.now_s += 1
        for name, token in list(self.running.items()):
            if name in self.dead:
                continue
            self.moved_bytes += min(token.share_bytes_s, self.left[name])
            self.left[name] -= token.share_bytes_s
            if self.left[name] <= 0:
                del self.running[name]
                self.unconfirmed.pop(name, None)
                self.finished_s[name] = self.now_s
            else:
                self.running[name] = renew(token, self.now_s, self.capacity)

    def until(self, done: Callable[[], bool], most_s: int = 20_000) -> None:
        for _ in range(most_s):
            if done():
                return
            self.second()
        raise AssertionError(f"not done after {most_s} s: {len(self.waiting)} wait, {len(self.running)} run")


def test_a_facility_event_of_200_jobs_ends_in_order_of_priority() -> None:
    draw = random.Random(11)
    jobs = [
        request(f"j{n:03}", draw.choice(LANES), draw.uniform(20, 400), cost_per_s=draw.uniform(1, 500))
        for n in range(200)
    ]  # fmt: skip
    storm = Storm(Capacity(bytes_s=20 * GB, useful_bytes_s=GB, reserved_bytes_s=4 * GB, token_s=10, aging_s=1e9))
    storm.ask(*jobs)
    storm.until(lambda: len(storm.finished_s) == 200)

    def starts(lane: str) -> list[float]:
        return [storm.started_s[job.id] for job in jobs if job.lane == lane]

    assert max(starts("urgent")) <= min(starts("normal")) <= max(starts("normal")) <= min(starts("background"))
    for lane in LANES:
        dearest_first = sorted((j for j in jobs if j.lane == lane), key=lambda j: -j.cost_per_s / j.size_bytes)
        in_order = [storm.started_s[job.id] for job in dearest_first]
        assert in_order == sorted(in_order)
    least_s = sum(job.size_bytes for job in jobs) / storm.capacity.bytes_s
    assert storm.now_s < 1.15 * least_s


def test_the_cost_of_waiting_is_lower_than_in_order_of_arrival() -> None:
    draw = random.Random(3)
    jobs = [request(f"j{n:02}", size_gb=draw.uniform(20, 400), cost_per_s=draw.uniform(1, 500)) for n in range(60)]

    def cost(asked: list[Request]) -> float:
        """Of the same restores, whatever their requests say of them."""
        storm = Storm()
        storm.left = {job.id: float(job.size_bytes) for job in jobs}
        storm.ask(*asked)
        storm.until(lambda: len(storm.finished_s) == len(jobs))
        return sum(job.cost_per_s * storm.finished_s[job.id] for job in jobs)

    assert cost(jobs) < 0.8 * cost([request(job.id) for job in jobs])


@pytest.mark.parametrize("reserved", [0, 4 * GB])
def test_a_background_restore_is_not_starved_by_a_stream_of_urgent_ones(reserved: int) -> None:
    storm = Storm(Capacity(bytes_s=10 * GB, useful_bytes_s=2 * GB, reserved_bytes_s=reserved, token_s=10, aging_s=60))
    storm.ask(request("patient", "background", 50))
    count = 0

    def stream() -> bool:
        nonlocal count
        # 12 GB/s of urgent restores are asked for, where 10 GB/s can be had.
        if int(storm.now_s) % 5 == 0:
            storm.ask(request(f"u{count:05}", "urgent", 60, asked_s=storm.now_s, cost_per_s=1000.0))
            count += 1
        return "patient" in storm.finished_s

    for n in range(30):
        storm.ask(request(f"first{n}", "urgent", 60, cost_per_s=1000.0))
    storm.until(stream, most_s=1000)
    assert len(storm.waiting) > 10


def test_a_stream_of_small_ones_does_not_pass_a_large_one_for_ever() -> None:
    storm = Storm(Capacity(bytes_s=10 * GB, useful_bytes_s=2 * GB, token_s=10, aging_s=60))
    storm.ask(request("large", "normal", 500))
    count = 0

    def stream() -> bool:
        nonlocal count
        storm.ask(request(f"s{count:05}", "normal", 12, asked_s=storm.now_s, cost_per_s=50.0))
        count += 1
        return "large" in storm.started_s

    for n in range(40):
        storm.ask(request(f"first{n}", "normal", 12, cost_per_s=50.0))
    storm.until(stream, most_s=200)


def test_one_that_needs_much_is_not_passed_by_those_that_need_little() -> None:
    """There is always room for a slow link, never for the useful rate of a fast one, unless somebody waits for it."""
    storm = Storm(Capacity(bytes_s=4 * GB, useful_bytes_s=3 * GB, token_s=10))
    storm.ask(*(request(f"s{n}", size_gb=10 + 5 * n, limit_bytes_s=GB) for n in range(4)))
    storm.second()
    assert len(storm.running) == 4
    storm.ask(request("fast", "urgent", 30))
    count = 0

    def stream() -> bool:
        nonlocal count
        storm.ask(request(f"t{count:04}", size_gb=10, asked_s=storm.now_s, limit_bytes_s=GB))
        count += 1
        return "fast" in storm.started_s

    storm.until(stream, most_s=30)
    assert all(at_s >= storm.started_s["fast"] for name, at_s in storm.started_s.items() if name.startswith("t"))


def test_the_same_holds_below_the_reserve_where_urgent_ones_may_pass() -> None:
    rules = Capacity(bytes_s=6 * GB, useful_bytes_s=3 * GB, reserved_bytes_s=2 * GB)
    running = [
        Token(id="a", lane="normal", share_bytes_s=GB, limit_bytes_s=GB, expires_s=99.0),
        Token(id="b", lane="normal", share_bytes_s=GB, limit_bytes_s=GB, expires_s=99.0),
    ]
    waiting = [
        request("fast", asked_s=0.0, cost_per_s=9.0),
        request("slow", asked_s=1.0, limit_bytes_s=GB),
        request("alarm", "urgent", asked_s=2.0, limit_bytes_s=GB),
    ]
    decided = admit(waiting, running, 3.0, rules)
    assert [token.id for token in decided.granted] == ["alarm"]
    assert [wait.id for wait in decided.waiting] == ["fast", "slow"]
    assert {wait.reason for wait in decided.waiting} == {"what is left is reserved for urgent restores"}


def test_a_holder_that_died_gives_its_share_back_when_its_token_expires() -> None:
    storm = Storm(Capacity(bytes_s=2 * GB, useful_bytes_s=2 * GB, token_s=10))
    storm.ask(request("a", limit_bytes_s=2 * GB))
    storm.second()
    storm.dead.add("a")
    storm.ask(request("b"))
    storm.until(lambda: "b" in storm.started_s, most_s=30)
    assert storm.started_s["b"] == 11
    assert "a" not in storm.running


def test_a_token_that_ran_out_is_not_renewed() -> None:
    token = Token(id="a", lane="normal", share_bytes_s=1, limit_bytes_s=1, expires_s=10.0)
    assert renew(token, 9.0, CAPACITY).expires_s == 19.0
    with pytest.raises(ValueError, match="ran out 3 s ago: ask for a new one"):
        renew(token, 13.0, CAPACITY)


def test_an_urgent_restore_begins_at_once_beside_a_crowd_of_others() -> None:
    storm = Storm()
    storm.ask(*(request(f"b{n:02}", "background", 5000) for n in range(40)))
    for _ in range(5):
        storm.second()
    assert len(storm.running) == 16
    storm.ask(request("u", "urgent", asked_s=storm.now_s))
    asked_s = storm.now_s
    storm.until(lambda: "u" in storm.started_s, most_s=3)
    assert storm.started_s["u"] <= asked_s + 2
    for _ in range(3):
        storm.second()
    assert storm.running["u"].share_bytes_s > 2 * storm.running["b00"].share_bytes_s


def test_what_one_gives_back_the_others_take() -> None:
    storm = Storm()
    storm.ask(request("a", size_gb=5000, limit_bytes_s=30 * GB), request("b", size_gb=50, limit_bytes_s=30 * GB))
    storm.second()
    assert storm.running["a"].share_bytes_s == storm.running["b"].share_bytes_s == 10 * GB
    storm.until(lambda: "b" in storm.finished_s, most_s=10)
    storm.second()
    assert storm.running["a"].share_bytes_s == 20 * GB


def test_urgent_ones_that_run_are_not_counted_against_what_others_may_have() -> None:
    """Else a stream of urgent ones would keep a patient one out for ever: these never end all at once."""
    rules = Capacity(bytes_s=10 * GB, useful_bytes_s=2 * GB, reserved_bytes_s=4 * GB)
    running = [
        Token(id=f"u{n}", lane="urgent", share_bytes_s=2 * GB, limit_bytes_s=5 * GB, expires_s=999.0) for n in range(4)
    ]
    waiting = [request("patient", "background", asked_s=-1000.0), request("u9", "urgent", asked_s=1.0)]
    assert [token.id for token in admit(waiting, running, 3.0, rules).granted] == ["patient"]
    together = [*(request(f"u{n}", "urgent") for n in range(4)), request("patient", "background")]
    assert "patient" in [token.id for token in admit(together, [], 3.0, rules).granted]


def test_a_store_that_got_slower_lowers_everybody_and_admits_nobody() -> None:
    storm = Storm()
    storm.ask(*(request(f"r{n:02}", size_gb=5000) for n in range(16)))
    for _ in range(5):
        storm.second()
    slow = Capacity(bytes_s=5 * GB, useful_bytes_s=GB, reserved_bytes_s=GB)
    decided = admit([request("new", "urgent")], list(storm.running.values()), storm.now_s, slow)
    assert not decided.granted
    assert not decided.raised
    assert len(decided.lowered) == 16
    assert sum(token.share_bytes_s for token in decided.lowered) <= 5 * GB
    assert decided.waiting[0].id == "new"
    assert "need all of the capacity" in decided.waiting[0].reason


def test_lanes_then_cost_per_byte_then_arrival_and_waiting_lifts_a_lane() -> None:
    waiting = [
        request("background", "background"),
        request("cheap", "normal", 100, cost_per_s=1),
        request("small", "normal", 10, cost_per_s=1),
        request("late", "urgent", asked_s=5.0),
        request("early", "urgent", asked_s=1.0),
    ]
    assert [r.id for r in ranked(waiting, 6.0, CAPACITY)] == ["early", "late", "small", "cheap", "background"]
    aged = [request("old", "background", asked_s=0.0), request("new", "urgent", asked_s=900.0)]
    assert [r.id for r in ranked(aged, 901.0, CAPACITY)] == ["old", "new"]


def test_impossible_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="less than the capacity may be reserved"):
        Capacity(bytes_s=10, useful_bytes_s=1, reserved_bytes_s=10)
    with pytest.raises(ValueError, match="above 0"):
        Capacity(bytes_s=10, useful_bytes_s=1, aging_s=0)


ANY_LANE = st.sampled_from(LANES)
WAITING = st.lists(
    st.tuples(ANY_LANE, st.floats(0, 1000), st.floats(0, 900), st.integers(1, 50 * GB), st.floats(0, 100)), max_size=30
)
RUNNING = st.lists(st.tuples(ANY_LANE, st.integers(0, GB), st.integers(1, 50 * GB), st.floats(900, 1100)), max_size=15)


@given(WAITING, RUNNING, st.integers(1, 40 * GB), st.integers(1, 4 * GB), st.floats(0, 0.9), st.randoms())
def test_whatever_comes_the_capacity_holds(
    waiting: list[tuple[str, float, float, int, float]],
    running: list[tuple[str, int, int, float]],
    bytes_s: int,
    useful: int,
    reserved: float,
    shuffle: random.Random,
) -> None:
    capacity = Capacity(bytes_s=bytes_s, useful_bytes_s=useful, reserved_bytes_s=int(bytes_s * reserved))
    requests = [
        request(f"w{n:02}", lane, size, asked_s=asked, limit_bytes_s=limit, cost_per_s=cost)
        for n, (lane, size, asked, limit, cost) in enumerate(waiting)
    ]  # fmt: skip
    tokens = [
        Token(id=f"r{n:02}", lane=lane, share_bytes_s=share, limit_bytes_s=limit, expires_s=until)  # type: ignore[arg-type]
        for n, (lane, share, limit, until) in enumerate(running)
    ]
    decided = admit(requests, tokens, 1000.0, capacity)
    alive = {token.id: token.share_bytes_s for token in tokens if token.expires_s > 1000.0}
    after = {**alive, **{token.id: token.share_bytes_s for token in (*decided.granted, *decided.raised)}}
    assert sum(after.values()) <= max(bytes_s, sum(alive.values()))
    assert all(token.share_bytes_s <= token.limit_bytes_s for token in decided.granted)
    lowered = {**after, **{token.id: token.share_bytes_s for token in decided.lowered}}
    assert sum(lowered.values()) <= max(bytes_s, sum(after.values()))
    told = [token.id for token in decided.granted] + [wait.id for wait in decided.waiting]
    assert sorted(told) == sorted(each.id for each in requests)
    # There is always somebody who goes on.
    assert after or not requests
    shuffle.shuffle(requests)
    shuffle.shuffle(tokens)
    assert admit(requests, tokens, 1000.0, capacity) == decided
