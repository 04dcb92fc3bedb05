"""What retention lets go of, and what it never does, whoever else is at work."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.checkpoint.errors import SaveFailed, StateInvalid, Superseded
from keepstep.checkpoint.format.records import LogRecord
from keepstep.checkpoint.repository.history import MOVES, Commit, read
from keepstep.checkpoint.repository.leases import Lease, leased
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.retention import Policy, plan_retention, retain, sweep
from keepstep.checkpoint.repository.save import Save, job_mark

from .shared_disk import JOB, Disk, View, commit_one, forbid_removal_of_live, groups, packed, token_of


@pytest.fixture
def disk() -> Disk:
    made = Disk()
    forbid_removal_of_live(made)
    return made


@pytest.fixture
def repository(disk: Disk) -> Repository:
    return Repository(View(disk), JOB)


def later(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


def steps(repository: Repository) -> list[int]:
    return [commit.step for commit in repository.commits()]


def folders(disk: Disk) -> set[int]:
    """Steps that have any object."""
    return {int(key.split("/")[1][:8]) for key in disk.objects if key.startswith("steps/0")}


def made(*states: str, step: int = 10) -> list[Commit]:
    """Commits, newest first, written oldest first: states, ``!`` for pinned."""
    commits = [
        Commit(
            key=f"{seq:020d}", job=JOB, generation=0, step=seq * step, world_size=1, size_bytes=1,
            state=what.rstrip("!"), pinned=what.endswith("!"),
        )
        for seq, what in enumerate(states, 1)
    ]  # fmt: skip
    return commits[::-1]


V, C, S, X = "verified", "committed", "suspect", "corrupt"
PLANS: list[tuple[str, list[Commit], Policy, set[int], list[int]]] = [
    ("nothing there", made(), Policy(), set(), []),
    ("fewer than keep", made(V, V), Policy(keep=3), set(), []),
    ("as many as keep", made(V, V, V), Policy(keep=3), set(), []),
    ("one more", made(V, V, V, V), Policy(keep=3), set(), [1]),
    ("keep is raised to min_valid", made(V, V, V), Policy(keep=1), set(), [1]),
    ("unverified ones do not count", made(V, V, C, C, C), Policy(keep=2), set(), []),
    ("what is newer than the oldest kept stays", made(V, C, V, S, V), Policy(keep=2), set(), [1, 2]),
    ("damaged ones do not count", made(V, V, X, V), Policy(keep=2), set(), [1]),
    ("old damaged ones go", made(X, S, C, V, V), Policy(keep=2), set(), [1, 2, 3]),
    ("a pin holds", made("verified!", V, V, V), Policy(keep=2), set(), [2]),
    ("a pin counts as VERIFIED only if it is", made("verified!", "committed!", V), Policy(keep=2), set(), []),
    ("a lease holds", made(V, V, V, V), Policy(keep=2), {1}, [2]),
    ("milestones: the first of each stretch", made(V, V, V, V, V, V), Policy(keep=2, milestone_steps=20), set(), [3]),
    ("a milestone must be VERIFIED", made(C, V, V, V, V), Policy(keep=2, milestone_steps=1000), set(), [1, 3]),
]


@pytest.mark.parametrize(("commits", "policy", "held", "gone"), [p[1:] for p in PLANS], ids=[p[0] for p in PLANS])
def test_the_plan(commits: list[Commit], policy: Policy, held: set[int], gone: list[int]) -> None:
    assert [commit.seq for commit in plan_retention(commits, policy, held)] == gone


_STATES = st.lists(st.sampled_from([V, V, V, C, S, X, "verified!", "corrupt!"]), max_size=30)


@given(_STATES, st.integers(1, 6), st.integers(1, 4), st.sampled_from([0, 30, 70]), st.sets(st.integers(1, 30)))
@settings(max_examples=300, deadline=None)
def test_no_plan_goes_below_the_minimum_or_takes_what_is_held(
    states: list[str], keep: int, min_valid: int, milestone_steps: int, held: set[int]
) -> None:
    commits = made(*states)
    policy = Policy(keep=keep, min_valid=min_valid, milestone_steps=milestone_steps)
    gone = plan_retention(commits, policy, held)
    left = [commit for commit in commits if commit not in gone]
    before = sum(commit.state == V for commit in commits)
    assert sum(commit.state == V for commit in left) >= min(before, max(keep, min_valid))
    assert not [commit for commit in gone if commit.pinned or commit.seq in held]
    assert plan_retention(left, policy, held) == [], "what is left would not stay"
    newest = [commit for commit in commits if commit.state == V][:1]
    assert not set(newest) & set(gone)


def test_a_policy_without_a_floor_is_refused() -> None:
    for wrong in ({"keep": 0}, {"min_valid": 0}, {"grace_s": -1.0}, {"delay_s": -1.0}, {"milestone_steps": -1}):
        with pytest.raises(ValueError, match="must"):
            Policy(**wrong)


# ---- records and their readers


def record(seq: int, kind: Any, **fields: Any) -> LogRecord:
    fields = {"generation": 0, "at_unix_s": float(seq)} | fields
    return LogRecord(seq=seq, kind=kind, job=JOB, previous="", writer=str(seq), **fields)


def verified_commits(count: int) -> list[LogRecord]:
    records = []
    for number in range(count):
        records.append(record(2 * number + 1, "commit", step=number, folder=f"f{number}"))
        records.append(record(2 * number + 2, "state", of=2 * number + 1, state=V))
    return records


def test_an_expire_record_counts_only_if_enough_are_verified_when_it_lands() -> None:
    log = verified_commits(3)
    log.append(record(7, "expire", of=1, min_valid=2))
    log.append(record(8, "expire", of=3, min_valid=2))
    history = read(log)
    assert sorted(history.live) == [3, 5] and "only 1 are VERIFIED" in history.void[8]
    late = [*verified_commits(3), record(7, "state", of=5, state=X), record(8, "expire", of=1, min_valid=2)]
    assert sorted(read(late).live) == [1, 3, 5]
    assert sorted(read([*verified_commits(1), record(3, "expire", of=1)]).live) == [1], "the last one never goes"


def test_a_pin_and_an_expire_record_are_judged_in_their_order() -> None:
    pinned = [*verified_commits(3), record(7, "pin", of=1), record(8, "expire", of=1, min_valid=2)]
    assert 1 in read(pinned).live and read(pinned).live[1].pinned
    late = [*verified_commits(3), record(7, "expire", of=1, min_valid=2), record(8, "pin", of=1)]
    assert 1 not in read(late).live and "expired" in read(late).void[8]


def test_a_stale_generation_and_a_save_that_was_given_up_never_become_a_checkpoint() -> None:
    stale = [record(1, "open", generation=2), record(2, "commit", generation=1, folder="f")]
    assert not read(stale).live
    given_up = [*verified_commits(1), record(3, "expire", folder="late"), record(4, "commit", folder="late", step=0)]
    assert sorted(read(given_up).live) == [1] and "given up" in read(given_up).void[4]
    committed = [*verified_commits(1), record(3, "expire", folder="f0")]
    assert sorted(read(committed).live) == [1] and "was committed" in read(committed).void[3]
    twice = [*verified_commits(1), record(3, "commit", folder="f0")]
    assert sorted(read(twice).live) == [1]


@pytest.mark.parametrize("before", ["committed", V, S, X])
@pytest.mark.parametrize("after", [V, S, X])
def test_the_moves_between_states(repository: Repository, before: str, after: Any) -> None:
    commit = commit_one(repository, 1)
    if before == "committed":
        save = Save(job=JOB, generation=0, step=2, attempt="b", world_size=1)
        repository.write_part(save, 0, groups(2))
        found = repository.try_commit(save)
        assert found is not None
        commit = found
    elif before != V:
        commit = repository.mark(commit.key, before)  # type: ignore[arg-type]
    assert commit.state == before
    if after in MOVES[before]:
        assert repository.mark(commit.key, after, "why").state == after
    else:
        with pytest.raises(ValueError, match="cannot become"):
            repository.mark(commit.key, after)
        forged = record(99, "state", of=commit.seq, state=after)
        assert repository.history().objection(forged)


def test_an_expired_checkpoint_has_no_further_state(repository: Repository) -> None:
    for step in (1, 2, 3):
        commit_one(repository, step)
    key = repository.commits()[-1].key
    retain(repository, Policy(keep=2))
    for act in (repository.mark, repository.pin):
        with pytest.raises(StateInvalid, match="expired"):
            act(key, "corrupt")


# ---- doing it


def test_only_what_the_plan_says_goes_and_the_rest_loads(disk: Disk, repository: Repository) -> None:
    for step in range(1, 7):
        commit_one(repository, step)
    repository.pin(repository.commits()[-1].key, "paper")
    done = retain(repository, Policy(keep=2))
    assert steps(repository) == [6, 5, 1] and len(done.expired) == 3 and not done.waiting
    assert folders(disk) == {1, 5, 6}
    assert [token_of(repository.load(commit.key, 0)) for commit in repository.commits()] == [6, 5, 1]
    assert retain(repository, Policy(keep=2)).removed == ()


def test_base_packs_of_live_checkpoints_stay(disk: Disk, repository: Repository) -> None:
    frozen = np.random.default_rng(1).standard_normal(200_000)
    for step in (1, 2, 3):
        save = Save(job=JOB, generation=0, step=step, attempt="a", world_size=1)
        repository.write_part(save, 0, packed(model={"frozen": frozen, "step": step}))
        commit = repository.try_commit(save)
        assert commit is not None
        repository.mark(commit.key, "verified")
    assert retain(repository, Policy(keep=2)).removed
    assert steps(repository) == [3, 2]
    left = {key.rpartition(".")[2] for key in disk.objects if key.startswith("steps/00000001")}
    assert left == {"pack"}, "the pack of step 1 is the base of the others"
    for commit in repository.commits():
        assert repository.load(commit.key, 0)["model"]["frozen"].tobytes() == frozen.tobytes()


def test_what_comes_back_after_its_base_has_expired_is_written_anew(repository: Repository) -> None:
    committed = []
    for step, seed in enumerate([1, 2, 2, 2, 1, 1, 1]):
        tree = {"w": np.random.default_rng(seed).standard_normal(200_000), "step": step}
        save = Save(job=JOB, generation=0, step=step, attempt="a", world_size=1)
        repository.write_part(save, 0, packed(model=tree))
        try:
            commit = repository.try_commit(save)
        except (SaveFailed, StateInvalid):
            continue
        assert commit is not None
        repository.verify(commit.key)
        repository.mark(commit.key, "verified")
        retain(repository, Policy(keep=2))
        committed.append(step)
    assert committed == list(range(7))


def test_two_steps_the_record_first_the_objects_after_the_delay(disk: Disk, repository: Repository) -> None:
    for step in (1, 2, 3):
        commit_one(repository, step)
    policy = Policy(keep=2, delay_s=1000.0)
    first = retain(repository, policy)
    assert len(first.expired) == 1 and not first.removed
    assert steps(repository) == [3, 2] and folders(disk) == {1, 2, 3}
    assert not retain(repository, policy, later(500)).removed
    assert retain(repository, policy, later(1100)).removed
    assert folders(disk) == {2, 3}


def test_a_restore_in_progress_holds_its_checkpoint(disk: Disk, repository: Repository) -> None:
    for step in range(1, 5):
        commit_one(repository, step)
    reader = Repository(View(disk), JOB)
    with Lease(reader, reader.commits()[-1].key) as lease:
        retain(repository, Policy(keep=2))
        assert steps(repository) == [4, 3, 1] and lease.commit.step == 1
        lease.renew()
        assert len([key for key in disk.objects if key.startswith("leases/")]) == 1
        retain(repository, Policy(keep=2))
        assert token_of(reader.load(lease.commit.key, 0)) == 1
    assert not [key for key in disk.objects if key.startswith("leases/")]
    retain(repository, Policy(keep=2))
    assert steps(repository) == [4, 3] and folders(disk) == {3, 4}


def test_a_lease_that_is_taken_after_the_record_refuses(disk: Disk, repository: Repository) -> None:
    for step in (1, 2, 3):
        commit_one(repository, step)
    reader = Repository(View(disk), JOB)
    key = reader.commits()[-1].key
    retain(repository, Policy(keep=2, delay_s=1000.0))
    with pytest.raises(StateInvalid, match="expired"):
        Lease(reader, key)
    assert not [key for key in disk.objects if key.startswith("leases/")]


def test_a_lease_taken_before_the_record_keeps_the_objects_after_it(disk: Disk, repository: Repository) -> None:
    for step in (1, 2, 3):
        commit_one(repository, step)
    reader = Repository(View(disk), JOB)
    retain(repository, Policy(keep=2, delay_s=1000.0))
    held = list(repository.history().expired)
    disk.objects[f"leases/{job_mark(JOB)}-{held[0]:020d}-{int(time.time()) + 500}-{'0' * 16}"] = b""
    assert not sweep(repository, Policy(keep=2))[0] and folders(disk) == {1, 2, 3}
    assert reader.manifest(f"{held[0]:020d}").step == 1
    assert sweep(repository, Policy(keep=2), later(600))[0] and folders(disk) == {2, 3}


def test_a_dead_holder_does_not_hold_for_ever(disk: Disk, repository: Repository) -> None:
    commit_one(repository, 1)
    Lease(repository, repository.commits()[0].key, duration_s=500.0)
    assert leased(View(disk), JOB, time.time()) == {1}
    assert leased(View(disk), "other", time.time()) == set()
    assert leased(View(disk), JOB, time.time() + 505) == {1}, "clocks differ by a minute"
    assert leased(View(disk), JOB, time.time() + 570) == set()
    assert not [key for key in disk.objects if key.startswith("leases/")]


def test_D19_a_slow_rank_has_its_grace_and_then_its_save_fails(disk: Disk, repository: Repository) -> None:
    slow = Repository(View(disk), JOB)
    late = Save(job=JOB, generation=0, step=5, attempt="slow", world_size=2)
    slow.write_part(late, 0, groups(5))
    for step in (6, 7):
        commit_one(repository, step)
    policy = Policy(keep=2, grace_s=1000.0)
    assert not retain(repository, policy, later(500)).removed
    slow.write_part(late, 1, groups(5, 1))
    assert retain(repository, policy, later(1100)).removed
    with pytest.raises(SaveFailed, match="given up"):
        slow.try_commit(late)
    assert steps(repository) == [7, 6] and folders(disk) == {6, 7}


def test_a_commit_that_raced_with_giving_up_is_refused_by_the_record(disk: Disk, repository: Repository) -> None:
    for step in (6, 7):
        commit_one(repository, step)
    late = Save(job=JOB, generation=0, step=5, attempt="slow", world_size=1)
    calls = []

    def just_before_the_record(when: str, call: str, key: str) -> None:
        if when == "before" and call == "create" and key.startswith("commits/") and not calls:
            calls.append(key)
            assert retain(repository, Policy(keep=2)).removed

    slow = Repository(View(disk, just_before_the_record), JOB)
    slow.write_part(late, 0, groups(5))
    with pytest.raises(SaveFailed, match="given up"):
        slow.try_commit(late)
    assert calls and steps(repository) == [7, 6]


def test_a_job_that_was_rolled_back_keeps_its_open_saves(disk: Disk, repository: Repository) -> None:
    for step in (8, 9):
        commit_one(repository, step)
    commit_one(repository, 6, attempt="again")
    open_save = Save(job=JOB, generation=0, step=7, attempt="again", world_size=2)
    repository.write_part(open_save, 0, groups(7))
    assert not retain(repository, Policy(keep=3), later(1e6)).removed
    repository.write_part(open_save, 1, groups(7, 1))
    assert repository.try_commit(open_save) is not None


def test_saves_of_a_fenced_generation_go_whatever_their_step(disk: Disk, repository: Repository) -> None:
    commit_one(repository, 6, generation=1)
    repository.write_part(Save(job=JOB, generation=1, step=99, attempt="a", world_size=2), 0, groups(99))
    repository.log.open_generation(JOB, 2, "step 6")
    assert not retain(repository, Policy(grace_s=1000.0), later(500)).removed
    assert retain(repository, Policy(grace_s=1000.0), later(1100)).removed
    assert folders(disk) == {6}


def test_unknown_objects_and_other_jobs_are_never_touched(disk: Disk, repository: Repository) -> None:
    other = Repository(View(disk), "other")
    commit_one(other, 1)
    for step in range(2, 6):
        commit_one(repository, step)
    [folder] = {key.split("/")[1] for key in disk.objects if key.startswith("steps/00000002")}
    strange = {
        "steps/step-1.backup/model.bin": b"1",
        f"steps/{folder}/notes.txt": b"2",
        f"steps/{folder}.backup/{'0' * 32}.pack": b"3",
        f"steps/{folder}/receipts/0.orig": b"4",
        f"steps/{folder}/sub/{'0' * 32}.pack": b"5",
        "leases/mine": b"6",
        "commits/00000000000000000001.json.bak": b"7",
    }
    disk.objects |= strange
    retain(repository, Policy(keep=2), later(1e9))
    assert steps(repository) == [5, 4]
    assert {key: disk.objects.get(key) for key in strange} == strange
    assert token_of(other.load(other.commits()[0].key, 0)) == 1


def test_a_folder_that_a_commit_of_another_job_names_is_that_job_s(disk: Disk, repository: Repository) -> None:
    """Marks of two jobs may be the same by chance."""
    for step in range(2, 6):
        commit_one(repository, step, generation=1)
    for generation in (0, 1):
        folder = f"00000001-g{generation}-a-{job_mark(JOB)}"
        named = record(0, "commit", folder=folder, step=1)
        repository.log.append(msgspec.structs.replace(named, job="twin"), lambda _: False)
        disk.objects[f"steps/{folder}/{'0' * 32}.pack"] = b"of the twin"
    retain(repository, Policy(keep=2), later(1e9))
    assert folders(disk) == {1, 4, 5} and sum(data == b"of the twin" for data in disk.objects.values()) == 2


def test_disk_full_refuses_the_save_and_keeps_what_is_valid(disk: Disk, repository: Repository) -> None:
    for step in (1, 2, 3):
        commit_one(repository, step)
    retain(repository, Policy(keep=2, delay_s=1000.0))
    disk.room_bytes = sum(map(len, disk.objects.values())) + 3000
    with pytest.raises(SaveFailed, match="No space"):
        repository.write_part(Save(job=JOB, generation=0, step=4, attempt="a", world_size=1), 0, groups(4))
    assert [token_of(repository.load(commit.key, 0)) for commit in repository.commits()] == [3, 2]
    # What was let go before can still be removed: that needs no room.
    assert retain(repository, Policy(keep=2), later(0)).removed
    commit_one(repository, 5)
    assert steps(repository) == [5, 3, 2]


def test_a_damaged_record_stops_every_removal(disk: Disk, repository: Repository) -> None:
    for step in range(1, 5):
        commit_one(repository, step)
    disk.flip("commits/00000000000000000005.json", 999)
    fresh = Repository(View(disk), JOB)
    done = retain(fresh, Policy(keep=2))
    assert not done.expired and not done.removed and "repair" in done.waiting


def test_a_verified_checkpoint_whose_manifest_is_damaged_pushes_nothing_out(disk: Disk, repository: Repository) -> None:
    for step in (1, 2, 3):
        commit_one(repository, step)
    newest = next(key for key in disk.objects if key.startswith("steps/00000003") and key.endswith(".manifest"))
    disk.flip(newest, 77)
    done = retain(repository, Policy(keep=2))
    assert not done.expired and steps(repository) == [3, 2, 1] and folders(disk) == {1, 2, 3}


def test_a_superseded_process_retains_nothing(disk: Disk, repository: Repository) -> None:
    for step in (1, 2, 3):
        commit_one(repository, step, generation=1)
    newer = Repository(View(disk), JOB)

    def opened_meanwhile(when: str, call: str, key: str) -> None:
        if when == "before" and call == "create" and key.startswith("commits/"):
            newer.log.open_generation(JOB, 2, "")

    old = Repository(View(disk, opened_meanwhile), JOB)
    with pytest.raises(Superseded):
        retain(old, Policy(keep=2))
    assert steps(newer) == [3, 2, 1]


# ---- the restart-loop breaker


def test_a_checkpoint_that_cannot_be_restored_is_left_alone_after_two_tries(disk: Disk, repository: Repository) -> None:
    for step in (1, 2):
        commit_one(repository, step)
    newest, older = repository.commits()
    for rank in range(8):
        Repository(View(disk), JOB).note_failed_restore(newest.key, "try-1", f"rank {rank}: NaN")
    assert repository.commit(newest.key).state == V, "all ranks of one try count once"
    assert repository.newest_valid()[0] is not None and repository.newest_valid()[0].key == newest.key  # type: ignore[union-attr]
    assert repository.note_failed_restore(newest.key, "try-2", "NaN in layer 3").state == S
    found, skipped = repository.newest_valid()
    assert found is not None and found.key == older.key
    assert "2 restores from it failed; the last: NaN in layer 3" in skipped[0].reason


def test_ranks_that_race_to_note_one_failure_count_once() -> None:
    failures = [record(7 + n, "failed", of=1, attempt="try-1") for n in range(4)]
    assert read([*verified_commits(3), *failures]).live[1].failed_restores == ("try-1",)


def test_progress_clears_earlier_failures(repository: Repository) -> None:
    key = commit_one(repository, 1).key
    for attempt in ("a", "b", "c"):
        repository.note_failed_restore(key, attempt, "link down")
        assert repository.note_progress(key).failed_restores == ()
    assert repository.commit(key).state == V
    repository.note_progress(key)
    assert sum(found.kind == "progress" for found in repository.log.records(JOB)) == 3


def test_a_suspect_that_is_verified_again_starts_anew(repository: Repository) -> None:
    key = commit_one(repository, 1).key
    for attempt in ("a", "b"):
        repository.note_failed_restore(key, attempt, "NaN")
    assert repository.mark(key, "verified", "the loss was in the data").failed_restores == ()
    assert repository.note_failed_restore(key, "c", "NaN").state == V
