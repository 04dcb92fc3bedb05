"""Saves, commits, verification, retention, restores and crashes in every order that could be drawn.

What must hold whatever happens: a load gives a committed state bit-exactly or refuses; a VERIFIED count that was reached is not
taken below the minimum by retention; a generation that was superseded commits nothing; no object of a live commit, or of one
that is being read, is removed.
"""

import contextlib
import time
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keepstep.checkpoint.errors import CheckpointError, SaveFailed, StateInvalid, Superseded
from keepstep.checkpoint.format.records import Receipt, seal, unseal
from keepstep.checkpoint.repository.leases import Lease
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.retention import Policy, retain
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.repository.settle import settle

from .shared_disk import (
    JOB,
    Disk,
    Killed,
    Trouble,
    Turns,
    View,
    belongings,
    commit_one,
    forbid_removal_of_live,
    groups,
    token_of,
)

MIN_VALID = 2
TROUBLES = st.builds(Trouble, st.sampled_from(["", "", "error", "lost", "kill", "killed"]), st.integers(0, 14))
EXPECTED = (CheckpointError, OSError, Killed, ValueError)


class Process:
    """One that may fail or die at any call, and what it works on."""

    def __init__(self, disk: Disk, generation: int) -> None:
        self.view = View(disk)
        self.repository = Repository(self.view, JOB)
        self.generation = generation

    @contextlib.contextmanager
    def with_trouble(self, trouble: Trouble) -> Any:
        self.view.hook = trouble
        try:
            yield
        finally:
            if not trouble.dead:
                self.view.hook = Trouble()


class Everything(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.ahead_s = 0.0
        self.step = 0
        self.saves: dict[tuple[int, int, str], Save] = {}
        self.tokens: dict[tuple[int, int, str], int] = {}
        self.leases: dict[str, Lease] = {}
        self.damaged: set[str] = set()
        self.processes: list[Process] = []
        self.generation = 0
        self.verified = 0
        self.told: set[tuple[int, int, str]] = set()
        forbid_removal_of_live(self.disk)

    def clock(self) -> float:
        return time.time() + self.ahead_s

    def process(self, number: int) -> Process:
        """A process; a dead one is replaced by a new one, of the newest generation that it can see."""
        place = number % 3
        if getattr(self.processes[place].view.hook, "dead", False):
            self.processes[place] = Process(self.disk, self.generation)
        return self.processes[place]

    @initialize()
    def begin(self) -> None:
        self.processes = [Process(self.disk, 0) for _ in range(3)]

    # ---- what happens

    @rule(number=st.integers(0, 2), trouble=TROUBLES, ranks=st.integers(1, 2), back=st.integers(0, 3))
    def save(self, number: int, trouble: Trouble, ranks: int, back: int) -> None:
        """A save by one process for all its ranks; ``back``: at an earlier step than the last."""
        self.step += 1
        process = self.process(number)
        step = max(self.step - 2 * back, 0)
        save = Save(job=JOB, generation=process.generation, step=step, attempt=f"a{self.step}", world_size=ranks)
        at = (save.generation, save.step, save.attempt)
        self.saves[at], self.tokens[at] = save, self.step % 4
        with process.with_trouble(trouble), contextlib.suppress(*EXPECTED):
            for rank in range(ranks):
                process.repository.write_part(save, rank, groups(self.tokens[at], rank))
            commit = process.repository.try_commit(save)
            if commit is not None:
                self.told.add(at)
                settle(process.repository, commit, MIN_VALID)

    @precondition(lambda self: self.saves)
    @rule(number=st.integers(0, 2), trouble=TROUBLES, pick=st.integers(0, 50))
    def commit_again(self, number: int, trouble: Trouble, pick: int) -> None:
        """Another process, later, or a second time."""
        process, save = self.process(number), list(self.saves.values())[pick % len(self.saves)]
        with process.with_trouble(trouble), contextlib.suppress(*EXPECTED):
            if process.repository.try_commit(save) is not None:
                self.told.add((save.generation, save.step, save.attempt))

    @rule(number=st.integers(0, 2), trouble=TROUBLES)
    def open(self, number: int, trouble: Trouble) -> None:
        process = self.process(number)
        with process.with_trouble(trouble), contextlib.suppress(*EXPECTED):
            process.repository.log.open_generation(JOB, self.generation + 1, "")
            self.generation += 1
            process.generation = self.generation

    @rule(number=st.integers(0, 2), trouble=TROUBLES, keep=st.integers(1, 3), late=st.sampled_from([0.0, 60.0]))
    def retain(self, number: int, trouble: Trouble, keep: int, late: float) -> None:
        process = self.process(number)
        policy = Policy(keep=keep, min_valid=MIN_VALID, grace_s=late, delay_s=late, log_records=5, log_age_s=late)
        with process.with_trouble(trouble), contextlib.suppress(*EXPECTED):
            retain(process.repository, policy, self.clock)

    @rule(seconds=st.sampled_from([50.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.ahead_s += seconds

    @precondition(lambda self: self.live())
    @rule(number=st.integers(0, 2), trouble=TROUBLES, state=st.sampled_from(["verified", "suspect", "corrupt"]),
          pick=st.integers(0, 9))  # fmt: skip
    def mark(self, number: int, trouble: Trouble, state: Any, pick: int) -> None:
        process, live = self.process(number), self.live()
        with process.with_trouble(trouble), contextlib.suppress(*EXPECTED):
            key = live[pick % len(live)].key
            if state == "verified":
                process.repository.verify(key)
            process.repository.mark(key, state)
        self.verified = 0

    @precondition(lambda self: self.live())
    @rule(number=st.integers(0, 2), trouble=TROUBLES, pick=st.integers(0, 9))
    def begin_to_read(self, number: int, trouble: Trouble, pick: int) -> None:
        process, live = self.process(number), self.live()
        with process.with_trouble(trouble), contextlib.suppress(*EXPECTED):
            key = live[pick % len(live)].key
            self.leases[key] = Lease(process.repository, key, self.clock, duration_s=1e9)

    @precondition(lambda self: self.leases)
    @rule()
    def end_reading(self) -> None:
        key, lease = self.leases.popitem()
        if key not in self.damaged:
            reader = Repository(View(self.disk), JOB)
            self.check_load(reader, key, refused_only_if_damaged=True)
        with contextlib.suppress(*EXPECTED):
            lease.release()

    @precondition(lambda self: self.disk.objects)
    @rule(pick=st.integers(0, 10_000), bit=st.integers(0, 1_000_000))
    def flip(self, pick: int, bit: int) -> None:
        """Damage. Rare: once there is some, less can be said."""
        if pick % 5:
            return
        keys = sorted(key for key in self.disk.objects if key.startswith("steps/"))
        if keys:
            self.disk.flip(keys[pick % len(keys)], bit)
            self.damaged.add(keys[pick % len(keys)])

    # ---- what holds

    def live(self) -> list[Any]:
        return Repository(View(self.disk), JOB).commits()

    def check_load(self, reader: Repository, key: str, *, refused_only_if_damaged: bool) -> None:
        try:
            trees = reader.load(key, 0)
        except StateInvalid:
            assert self.damaged or not refused_only_if_damaged, f"{key} does not load"
            return
        record = reader.log.record(int(key))
        at = (record.generation, record.step, record.attempt)
        assert token_of(trees) == self.tokens[at], "another state than was saved"

    @invariant()
    def every_live_commit_loads_bit_exactly_or_is_damaged(self) -> None:
        reader = Repository(View(self.disk), JOB)
        for commit in reader.commits():
            self.check_load(reader, commit.key, refused_only_if_damaged=True)
        check_log(reader)

    @invariant()
    def what_was_told_committed_was_committed(self) -> None:
        if self.damaged:
            return
        newest = max(self.told, default=None)
        reader = Repository(View(self.disk), JOB)
        if newest is not None:
            assert reader.commits(), "a checkpoint was committed, and there is none"

    @invariant()
    def retention_leaves_the_minimum(self) -> None:
        reader = Repository(View(self.disk), JOB)
        reader.log.refresh()
        now = len(reader.history().verified())
        assert now >= min(self.verified, MIN_VALID)
        self.verified = now

    @invariant()
    def nothing_is_committed_by_an_older_generation(self) -> None:
        reader = Repository(View(self.disk), JOB)
        reader.log.refresh()
        newest = 0
        for record in reader.log.records(JOB):
            assert record.generation >= newest or record.seq <= reader.log.tail() - 10_000
            newest = max(newest, record.generation)


TestEverything = Everything.TestCase
TestEverything.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.deep
class TestMoreOfEverything(Everything.TestCase):
    settings = settings(
        max_examples=300, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )


# ---- processes that take turns, one store call at a time


def _turns(runs: list[tuple[int, int]]) -> list[int]:
    return [actor for actor, calls in runs for _ in range(calls)]


ORDERS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=2, max_size=12).map(_turns)
"""Who moves next: now and then another one, after a call or after many."""
_race = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def prepared(steps: int = 3) -> tuple[Disk, Repository]:
    disk = Disk()
    repository = Repository(View(disk), JOB)
    for step in range(1, steps + 1):
        commit_one(repository, step)
    forbid_removal_of_live(disk)
    return disk, repository


def judged(disk: Disk, minimum: int = MIN_VALID) -> Repository:
    reader = Repository(View(disk), JOB)
    commits = reader.commits()
    assert set(belongings(disk)) <= set(disk.objects)
    for commit in commits:
        assert token_of(reader.load(commit.key, 0)) == commit.step
    assert len(reader.history().verified()) >= minimum
    check_log(reader)
    return reader


def check_log(reader: Repository) -> None:
    """Sound, and no writer wrote what does not count. Of what a horizon kept, some only shuts out older generations."""
    horizon = max((record.of for record in reader.log.records(JOB) if record.kind == "horizon"), default=0)
    assert not reader.log.damaged()
    assert not [why for seq, why in reader.history().void.items() if seq > horizon]


def part(disk: Disk, step: int, generation: int = 0, attempt: str = "r") -> Save:
    save = Save(job=JOB, generation=generation, step=step, attempt=attempt, world_size=1)
    Repository(View(disk), JOB).write_part(save, 0, groups(step))
    return save


@given(ORDERS)
@_race
def test_retentions_that_race_leave_the_minimum(order: list[int]) -> None:
    disk, _ = prepared(5)
    turns = Turns(order)
    repositories = [Repository(View(disk, turns.hook(n)), JOB) for n in range(3)]
    turns.run([lambda r=r, n=n: retain(r, Policy(keep=n + 1)) for n, r in enumerate(repositories)])  # type: ignore[misc]
    assert len(judged(disk).commits()) == 2


@given(ORDERS)
@_race
def test_logs_that_are_cut_while_they_grow_say_all_that_counts(order: list[int]) -> None:
    disk, repository = prepared(5)
    for step in range(6, 9):
        retain(repository, Policy(keep=2, log_records=1000))
        commit_one(repository, step)
    turns = Turns(order)
    first, second, third = (Repository(View(disk, turns.hook(n)), JOB) for n in range(3))
    ahead = [lambda: time.time() + 1, lambda: time.time() + 2]
    policy = Policy(keep=2, log_records=2, log_age_s=0.0)
    turns.run([lambda: retain(first, policy, ahead[0]), lambda: retain(second, policy, ahead[1]),
               lambda: commit_one(third, 9)])  # fmt: skip
    assert turns.errors == [None] * 3
    assert [commit.step for commit in judged(disk).commits()][:2] == [9, 8]


def test_a_cut_that_was_planned_before_another_one_is_not_made() -> None:
    """At every call at which one may be held up until the other is done."""
    for turn in range(80):
        disk, repository = prepared(6)
        turns = Turns([0] * turn + [1] * 300)
        repositories = [Repository(View(disk, turns.hook(n)), JOB) for n in range(2)]
        policy = Policy(keep=2, log_records=2, log_age_s=0.0)
        ahead = [lambda: time.time() + 1, lambda: time.time() + 2]
        turns.run([lambda r=r, n=n: retain(r, policy, ahead[n]) for n, r in enumerate(repositories)])  # type: ignore[misc]  # noqa: B023
        assert [commit.step for commit in judged(disk).commits()] == [6, 5]
        assert repository.commits() and not repository.log.damaged()


@given(ORDERS, st.integers(0, 1))
@_race
def test_a_newer_one_that_turns_out_damaged_while_older_ones_expire(order: list[int], which: int) -> None:
    disk, repository = prepared(3)
    turns = Turns(order)
    key = repository.commits()[which].key
    marker, *others = (Repository(View(disk, turns.hook(n)), JOB) for n in range(3))
    turns.run([lambda: marker.mark(key, "corrupt", "x"), *(lambda r=r: retain(r, Policy(keep=2)) for r in others)])  # type: ignore[misc]
    judged(disk, minimum=0)
    history = Repository(View(disk), JOB)
    history.log.refresh()
    expired = [r.seq for r in history.log.records(JOB) if r.kind == "expire"]
    damaged = [r.seq for r in history.log.records(JOB) if r.state == "corrupt"]
    if damaged and (not expired or min(expired) > damaged[0]):
        assert len(history.commits()) == 3, "a VERIFIED one was expired when only two were left"


@given(ORDERS)
@_race
def test_a_restore_that_races_with_retention_is_refused_or_completes(order: list[int]) -> None:
    disk, repository = prepared(3)
    oldest = repository.commits()[-1]
    turns = Turns(order)
    reader, *others = (Repository(View(disk, turns.hook(n)), JOB) for n in range(3))
    outcome = []

    def restore() -> None:
        try:
            lease = Lease(reader, oldest.key)
        except StateInvalid:
            outcome.append("refused")
            return
        with lease:
            outcome.append(token_of(reader.load(oldest.key, 0)))

    turns.run([restore, *(lambda r=r: retain(r, Policy(keep=2)) for r in others)])  # type: ignore[misc]
    assert not turns.errors[0] and outcome in (["refused"], [1])
    judged(disk)


@given(ORDERS, st.booleans())
@_race
def test_a_late_commit_that_races_with_its_sweeping(order: list[int], is_fenced: bool) -> None:
    disk, _ = prepared(3)
    late = part(disk, 2, attempt="late")
    turns = Turns(order)
    committer, sweeper, opener = (Repository(View(disk, turns.hook(n)), JOB) for n in range(3))
    actors: list[Any] = [lambda: committer.try_commit(late), lambda: retain(sweeper, Policy(keep=3))]
    if is_fenced:
        actors.append(lambda: opener.log.open_generation(JOB, 1, ""))
    turns.run(actors)
    error = turns.errors[0]
    assert error is None or isinstance(error, (SaveFailed, Superseded, StateInvalid)), error
    reader = judged(disk)
    committed = [commit for commit in reader.commits() if commit.step == 2]
    assert len(committed) == (2 if error is None and reader.find(late) is not None else 1)


@given(ORDERS)
@_race
def test_committers_of_one_save_make_one_checkpoint(order: list[int]) -> None:
    disk, _ = prepared(1)
    save = part(disk, 2)
    turns = Turns(order)
    repositories = [Repository(View(disk, turns.hook(n)), JOB) for n in range(3)]
    found: list[Any] = []
    turns.run([lambda r=r: found.append(r.try_commit(save)) for r in repositories])  # type: ignore[misc]
    assert len({commit.key for commit in found}) == 1 and sum(commit.fresh for commit in found) == 1
    assert [commit.step for commit in judged(disk, minimum=1).commits()] == [2, 1]


@given(ORDERS)
@_race
def test_a_stale_generation_that_races_with_a_newer_one(order: list[int]) -> None:
    disk, _ = prepared(1)
    save = part(disk, 2)
    turns = Turns(order)
    old, new = (Repository(View(disk, turns.hook(n)), JOB) for n in range(2))
    turns.run([lambda: old.try_commit(save), lambda: new.log.open_generation(JOB, 1, "step 1")])
    reader = judged(disk, minimum=1)
    kinds = [record.kind for record in reader.log.records(JOB)]
    if turns.errors[0] is None:
        assert kinds.index("open") > max(n for n, kind in enumerate(kinds) if kind == "commit")
    else:
        assert isinstance(turns.errors[0], Superseded) and kinds.count("commit") == 1


@pytest.mark.parametrize("is_first", [True, False], ids=["the committer is held up", "the sweeper is held up"])
def test_a_base_that_is_leant_on_while_it_expires(is_first: bool) -> None:
    """A save leans on a pack of a checkpoint that no other one needs any more, and that retention lets go just then; at every
    call at which one may be held up until the other is done."""
    outcomes = set()
    for turn in range(60):
        disk, repository = prepared(3)
        bases = [msgspec.structs.replace(e, groups=()) for e in repository.manifest(repository.commits()[-1].key).packs]
        save = part(disk, 4)
        receipt = f"{save.prefix()}receipts/0"
        known = unseal(disk.objects[receipt], Receipt, receipt)
        disk.objects[receipt] = seal(msgspec.structs.replace(known, packs=(*known.packs, *bases)))
        turns = Turns([0] * turn + [1] * 200)
        committer, sweeper = (Repository(View(disk, turns.hook(n if is_first else 1 - n)), JOB) for n in range(2))
        actors = [lambda: committer.try_commit(save), lambda: retain(sweeper, Policy(keep=2))]  # noqa: B023
        turns.run(actors if is_first else actors[::-1])
        outcomes.add(type(turns.errors[0 if is_first else 1]).__name__)
        judged(disk)
    assert outcomes == {"NoneType", "SaveFailed", "StateInvalid"}


def test_the_drawn_orders_reach_both_outcomes_of_a_late_commit() -> None:
    """The races above would be worth nothing if one side always won."""
    outcomes = set()
    for turn in range(40):
        disk, _ = prepared(3)
        late = part(disk, 2, attempt="late")
        turns = Turns([0] * turn + [1] * 100)
        committer, sweeper = (Repository(View(disk, turns.hook(n)), JOB) for n in range(2))
        turns.run([lambda: committer.try_commit(late), lambda: retain(sweeper, Policy(keep=3))])  # noqa: B023
        outcomes.add(type(turns.errors[0]).__name__)
    assert {"NoneType", "SaveFailed"} <= outcomes, outcomes


def test_who_is_superseded_right_after_its_commit_has_committed() -> None:
    disk, _ = prepared(1)
    save = part(disk, 2)

    def superseded(when: str, call: str, key: str) -> None:
        if (when, call) == ("after", "create") and key.startswith("commits/"):
            Repository(View(disk), JOB).log.open_generation(JOB, 1, "")

    assert Repository(View(disk, superseded), JOB).try_commit(save) is not None
    with pytest.raises(Superseded):
        Repository(View(disk), JOB).write_part(save, 0, {})


def test_a_killed_process_does_nothing_any_more() -> None:
    disk, _ = prepared(1)
    repository = Repository(View(disk, Trouble("kill", 2)), JOB)
    with pytest.raises(Killed):
        commit_one(repository, 2)
    with pytest.raises(Killed):
        repository.commits()
    assert [commit.step for commit in Repository(View(disk), JOB).commits()] == [1]
