"""Copies of checkpoints in further places: complete or not there, read where the own store fails, and put back from there."""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keepstep.checkpoint.errors import SaveFailed, StateInvalid
from keepstep.checkpoint.keys.providers import FileProvider
from keepstep.checkpoint.keys.sessions import SessionKeys
from keepstep.checkpoint.repository.copies import Copies, ErasureCopies, StoreCopies
from keepstep.checkpoint.repository.log import name_of
from keepstep.checkpoint.repository.repair import evidence_prefix, repair, repair_log
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.retention import Policy, retain
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.repository.tiers import Tier, Tiers, from_copies
from keepstep.checkpoint.stores.posix import PosixStore

from .erasure_stores import Site
from .keyrings import put_key
from .shared_disk import JOB, Disk, Killed, Trouble, View, commit_one, packed, token_of


class Place:
    """A job's own store, a second store, and six erasure-coded locations, of which any two may go."""

    def __init__(self) -> None:
        self.disk, self.second, self.site = Disk(), Disk(), Site()
        self.repository = Repository(View(self.disk), JOB)
        self.store = Tier(copies=StoreCopies(View(self.second, name="second")))
        self.coded = Tier(copies=ErasureCopies(self.site.tier), min_valid=1)
        self.tiers = Tiers(self.repository, [self.store, self.coded])

    def fill(self, *steps: int) -> None:
        for step in steps:
            commit_one(self.repository, step)

    def copy_all(self) -> None:
        for tier in self.tiers.tiers:
            for commit in self.tiers.due(tier):
                self.tiers.copy(commit.key, tier)

    def key(self, step: int) -> str:
        return next(commit.key for commit in self.repository.commits() if commit.step == step)

    def objects(self, step: int, ending: str) -> list[str]:
        return [k for k in sorted(self.disk.objects) if k.startswith(f"steps/{step:08d}-") and k.endswith(ending)]

    def again(self) -> Repository:
        return Repository(View(self.disk), JOB)


@pytest.fixture
def place() -> Place:
    return Place()


def copies_of(place: Place) -> list[Copies]:
    return [tier.copies for tier in place.tiers.tiers]


# ---- copying


def test_each_tier_has_its_own_cadence(place: Place) -> None:
    place.fill(1, 2, 3, 4)
    rare = Tier(copies=place.coded.copies, wants=lambda commit: commit.step % 2 == 0)
    tiers = Tiers(place.repository, [place.store, rare])
    assert [commit.step for commit in tiers.due(place.store)] == [1, 2, 3, 4]
    assert [commit.step for commit in tiers.due(rare)] == [2, 4]
    copied = tiers.copy(place.key(2), rare)
    assert copied.packs == 1 and copied.size_bytes > 0 and "4+2" in copied.tier
    assert [commit.step for commit in tiers.due(rare)] == [4]
    assert tiers.copy(place.key(2), rare).packs == 0, "what is there is not copied again"


def test_only_verified_checkpoints_are_copied(place: Place) -> None:
    place.fill(1, 2)
    place.repository.mark(place.key(2), "suspect", "NaN")
    assert [commit.step for commit in place.tiers.due(place.store)] == [1]
    with pytest.raises(StateInvalid, match="only VERIFIED"):
        place.tiers.copy(place.key(2), place.store)


def test_a_damaged_source_is_not_copied(place: Place) -> None:
    place.fill(1)
    place.disk.flip(place.objects(1, ".pack")[0], 40_000)
    with pytest.raises(StateInvalid, match="damaged"):
        place.tiers.copy(place.key(1), place.store)
    assert place.tiers.due(place.store) and from_copies(place.store.copies, JOB)[0] is None


def test_a_copy_that_arrives_damaged_does_not_count(place: Place) -> None:
    place.fill(1)

    def hook(when: str, call: str, key: str) -> None:
        if (when, call) == ("after", "finish"):
            place.second.flip(key, 40_000)

    bad = Tier(copies=StoreCopies(View(place.second, hook, "second")))
    with pytest.raises(SaveFailed, match="damaged"):
        place.tiers.copy(place.key(1), bad)
    assert [commit.step for commit in place.tiers.due(place.store)] == [1]
    assert place.tiers.copy(place.key(1), place.store).packs == 1, "a damaged copy is written anew"
    assert not place.tiers.due(place.store)


@pytest.mark.parametrize("kind", ["error", "lost", "kill", "killed"])
def test_a_copy_that_is_cut_short_is_none_and_is_finished_later(place: Place, kind: str) -> None:
    place.fill(1, 2)
    place.tiers.copy(place.key(1), place.store)
    for at in range(12):
        trouble = Trouble(kind, at)
        broken = Tier(copies=StoreCopies(View(place.second, trouble, "second")))
        try:
            place.tiers.copy(place.key(2), broken)
        except (OSError, Killed) as error:
            assert trouble.dead or isinstance(error, OSError)
        found, _ = from_copies(place.store.copies, JOB)
        assert found is not None and token_of(found.load(0)) == found.commit.step
    place.copy_all()
    found, _ = from_copies(place.store.copies, JOB)
    assert found is not None and found.commit.step == 2


def test_a_damaged_copy_of_a_small_object_is_replaced(place: Place) -> None:
    place.fill(1)
    place.copy_all()
    [manifest] = place.objects(1, ".manifest")
    for number, store in enumerate(place.site.stores):
        small = [key for key in store.objects if key == manifest or key.startswith("copied/")]
        assert len(small) == 2
        for key in small[: 1 + number % 2]:
            store.objects[key] = b"damaged"
    place.tiers.copy(place.key(1), place.coded)
    assert {store.objects[manifest] for store in place.site.stores} == {place.disk.objects[manifest]}


def test_a_large_manifest_is_coded_like_a_pack() -> None:
    copies = ErasureCopies(Site().tier)
    data = bytes(range(256)) * 1000
    copies.keep("steps/large", data)
    assert copies.kept("steps/large", lambda found: None) == data
    with pytest.raises(StateInvalid, match="not right"):
        copies.kept("steps/large", _refuse)
    copies.keep("steps/large", data[:-1])
    assert copies.kept("steps/large", lambda found: None) == data[:-1]
    copies.delete("steps/large")
    with pytest.raises(StateInvalid):
        copies.kept("steps/large", lambda found: None)


def _refuse(_: bytes) -> None:
    raise StateInvalid("not right")


# ---- reading


def test_D4_the_same_manifest_is_read_from_the_cheapest_place_that_has_it(place: Place) -> None:
    place.fill(1)
    place.copy_all()
    trees, missed = place.tiers.load(place.key(1), 0)
    assert token_of(trees) == 1 and not missed
    own, second = place.objects(1, ".pack")[0], place.store.copies
    place.disk.flip(own, 40_000)
    trees, missed = place.tiers.load(place.key(1), 0)
    assert token_of(trees) == 1 and {miss.place for miss in missed} == {"disk"}
    place.second.flip(own, 40_000)
    trees, missed = place.tiers.load(place.key(1), 0)
    assert token_of(trees) == 1 and {miss.place for miss in missed} == {"disk", second.name}
    for location in place.site.stores[:3]:
        location.objects.clear()
    with pytest.raises(StateInvalid, match="no place has a good copy"):
        place.tiers.load(place.key(1), 0)


def test_a_lost_manifest_is_read_from_a_tier(place: Place) -> None:
    place.fill(1)
    place.copy_all()
    del place.disk.objects[place.objects(1, ".manifest")[0]]
    assert token_of(place.tiers.load(place.key(1), 0)[0]) == 1


def test_a_stale_or_foreign_copy_is_never_taken_for_the_real_one(place: Place) -> None:
    place.fill(1, 2)
    place.copy_all()
    one, two = place.objects(1, ".pack")[0], place.objects(2, ".pack")[0]
    for key in (one, two):
        del place.disk.objects[key]
    place.second.objects[two] = place.second.objects[one]
    trees, missed = place.tiers.load(place.key(2), 0)
    assert token_of(trees) == 2 and "second" in {miss.place for miss in missed}
    with pytest.raises(StateInvalid, match="expired"):
        place.tiers.load("00000000000000000099", 0)


# ---- repair


@pytest.mark.parametrize("damage", ["flip", "gone", "short", "foreign"])
@pytest.mark.parametrize("ending", [".pack", ".manifest"])
def test_a_damaged_or_missing_piece_is_put_back_and_reported(place: Place, ending: str, damage: str) -> None:
    place.fill(1, 2)
    place.copy_all()
    whole, [key] = dict(place.disk.objects), place.objects(1, ending)
    if damage == "flip":
        place.disk.flip(key, len(whole[key]) * 4)
    elif damage == "short":
        place.disk.objects[key] = whole[key][:-1]
    elif damage == "foreign":
        place.disk.objects[key] = whole[place.objects(2, ending)[0]]
    else:
        del place.disk.objects[key]
    [done] = place.tiers.repair(place.key(1))
    assert done.key == key and done.source == "second" and done.reason
    assert place.disk.objects == whole
    assert place.tiers.repair(place.key(1)) == []


def test_a_good_copy_is_looked_for_in_every_tier(place: Place) -> None:
    place.fill(1)
    place.copy_all()
    whole, [key] = dict(place.disk.objects), place.objects(1, ".pack")
    place.disk.flip(key, 40_000)
    place.second.flip(key, 50_000)
    [done] = place.tiers.repair(place.key(1))
    assert done.source == place.coded.name and place.disk.objects == whole


def test_what_nobody_has_is_said_and_nothing_is_made_worse(place: Place) -> None:
    place.fill(1)
    place.copy_all()
    [key] = place.objects(1, ".pack")
    place.disk.flip(key, 40_000)
    damaged = dict(place.disk.objects)
    place.second.flip(key, 50_000)
    with pytest.raises(StateInvalid, match="nobody has a good copy") as told:
        repair(place.repository, place.key(1), [place.store.copies])
    assert key in str(told.value) and place.disk.objects == damaged


@pytest.mark.parametrize("kind", ["error", "lost", "kill", "killed"])
def test_a_repair_that_is_cut_short_is_done_by_the_next(place: Place, kind: str) -> None:
    place.fill(1)
    place.copy_all()
    whole = dict(place.disk.objects)
    for at, ending in itertools.product(range(3), (".pack", ".manifest")):
        place.disk.flip(place.objects(1, ending)[0], 999)
        trouble = Trouble(kind, at)
        try:
            repair(Repository(View(place.disk, trouble), JOB), place.key(1), copies_of(place))
        except (OSError, Killed) as error:
            assert trouble.dead or isinstance(error, OSError)
        repair(place.again(), place.key(1), copies_of(place))
        assert place.disk.objects == whole


def test_a_tier_mends_what_its_own_locations_lost(place: Place) -> None:
    place.fill(1)
    place.copy_all()
    [key] = place.objects(1, ".pack")
    before = place.site.contents(key)
    place.site.lose(key, 3)
    done = place.tiers.repair(place.key(1))
    assert [entry.key for entry in done] == [f"shard 3 of {key}"]
    assert place.site.contents(key) == before


def test_damaged_records_are_put_back_where_the_chain_proves_them(place: Place) -> None:
    place.fill(1, 2, 3)
    place.copy_all()
    place.tiers.copy_records(place.store)
    whole = dict(place.disk.objects)
    tail = place.repository.log.tail()
    place.disk.flip(name_of(2), 300)
    del place.disk.objects[name_of(3)]
    place.disk.flip(name_of(tail), 300)
    broken = place.again()
    done = repair_log(broken, copies_of(place))
    assert [entry.key for entry in done] == [name_of(tail), name_of(3), name_of(2)]
    assert place.disk.objects == whole and not broken.log.damaged()


def test_a_record_that_the_chain_does_not_prove_is_not_put_back(place: Place) -> None:
    place.fill(1, 2)
    place.copy_all()
    other = Place()
    other.fill(1, 2)
    place.disk.flip(name_of(2), 300)
    assert repair_log(place.again(), [StoreCopies(View(other.second))]) == []
    for name in [key for key in place.second.objects if key.startswith(evidence_prefix(JOB))]:
        place.second.flip(name, 300)
    assert repair_log(place.again(), [place.store.copies]) == []
    broken = place.again()
    broken.log.refresh()
    assert list(broken.log.damaged()) == [2]


def test_repair_in_real_directories(tmp_path: Path) -> None:
    repository = Repository(PosixStore(tmp_path / "own"), JOB)
    tiers = Tiers(repository, [Tier(copies=StoreCopies(PosixStore(tmp_path / "second")))])
    key = commit_one(repository, 1).key
    tiers.copy(key, tiers.tiers[0])
    files = [path for path in sorted((tmp_path / "own" / "steps").rglob("*")) if path.suffix in (".pack", ".manifest")]
    whole = [path.read_bytes() for path in files]
    for path in files:
        path.write_bytes(path.read_bytes()[:-9])
    assert len(tiers.repair(key)) == len(files) == 2
    assert [path.read_bytes() for path in files] == whole
    assert token_of(repository.load(key, 0)) == 1
    found, _ = from_copies(tiers.tiers[0].copies, JOB)
    assert found is not None and token_of(found.load(0)) == 1


# ---- the own store is gone


def test_the_newest_complete_checkpoint_is_found_without_the_own_store_after_any_loss(place: Place) -> None:
    place.fill(1, 2)
    place.copy_all()
    whole = [dict(store.objects) for store in place.site.stores]
    for lost in itertools.combinations(range(6), 2):
        for number, store in enumerate(place.site.stores):
            store.objects = {} if number in lost else dict(whole[number])
        copies = ErasureCopies(place.site.open())
        found, missed = from_copies(copies, JOB)
        assert found is not None and found.commit.step == 2 and not missed
        assert token_of(found.load(0)) == 2
    assert from_copies(ErasureCopies(place.site.open()), "other") == (None, [])


def test_a_copy_that_is_not_complete_is_passed_over(place: Place) -> None:
    place.fill(1, 2)
    place.copy_all()
    place.second.flip(place.objects(2, ".pack")[0], 40_000)
    found, [missed] = from_copies(place.store.copies, JOB)
    assert found is not None and token_of(found.load(0)) == 1 and "does not match" in missed.reason


def test_suspect_and_expired_checkpoints_are_passed_over_as_far_as_records_tell(place: Place) -> None:
    place.fill(1, 2, 3, 4)
    place.copy_all()
    place.repository.mark(place.key(4), "suspect", "loss diverged")
    found, _ = from_copies(place.store.copies, JOB)
    assert found is not None and found.commit.step == 4, "the mark was not copied yet"
    place.tiers.copy_records(place.store)
    found, [missed] = from_copies(place.store.copies, JOB)
    assert found is not None and found.commit.step == 3 and "suspect" in missed.reason


def test_a_newer_log_counts_more_than_an_older_one_with_higher_numbers(place: Place) -> None:
    place.fill(1, 2, 3)
    place.copy_all()
    second = Place()
    second.second = place.second
    store = Tier(copies=place.store.copies)
    second.tiers = Tiers(second.repository, [store])
    second.fill(4)
    assert [commit.step for commit in second.tiers.due(store)] == [4]
    second.copy_all()
    found, _ = from_copies(store.copies, JOB)
    assert found is not None and found.commit.step == 4 and token_of(found.load(0)) == 4
    second.repository.mark(found.commit.key, "suspect", "NaN")
    second.tiers.copy_records(store)
    found, _ = from_copies(store.copies, JOB)
    assert found is not None and found.commit.step == 3, "states of the newer log count, whatever the older one had"


def test_sealed_copies_open_where_only_the_tier_and_the_provider_are_left(tmp_path: Path) -> None:
    put_key(tmp_path / "keys", "1.key")
    provider = FileProvider(tmp_path / "keys")
    disk, second = Disk(), Disk()
    keys = SessionKeys(View(disk), [provider])
    repository = Repository(View(disk), JOB, keys=keys)
    tiers = Tiers(repository, [Tier(copies=StoreCopies(View(second, name="second")))])
    key = commit_one(repository, 1).key
    tiers.copy(key, tiers.tiers[0])
    disk.flip(next(name for name in disk.objects if name.endswith(".pack")), 40_000)
    trees, missed = tiers.load(key, 0)
    assert token_of(trees) == 1 and missed

    def without_own_store() -> Any:
        found, missed = from_copies(
            tiers.tiers[0].copies, JOB, keys=SessionKeys(View(second, name="second"), [FileProvider(tmp_path / "keys")])
        )
        return None if found is None else token_of(found.load(0)), missed

    assert without_own_store()[0] == 1
    put_key(tmp_path / "keys", "2.key")
    [session] = repository.manifest(key).sessions
    keys.rewrap(session)
    tiers.copy_records(tiers.tiers[0])
    assert without_own_store()[0] == 1
    names = {name for name in second.objects if name.startswith("keys/")}
    assert names == {name for name in disk.objects if name.startswith("keys/")} and len(names) == 1
    keys.forget(session)
    tiers.copy_records(tiers.tiers[0])
    found, missed = without_own_store()
    assert found is None and "forgotten" in missed[0].reason


def test_a_forged_copy_is_not_taken_with_keys(tmp_path: Path) -> None:
    put_key(tmp_path / "keys", "1.key")
    sealed, clear, second = Disk(), Disk(), Disk()
    store = Tier(copies=StoreCopies(View(second, name="second")))
    for disk, keys in ((sealed, [FileProvider(tmp_path / "keys")]), (clear, [])):
        repository = Repository(View(disk), JOB, keys=SessionKeys(View(disk), keys) if keys else None)
        commit = commit_one(repository, 1 + len(second.objects))
        Tiers(repository, [store]).copy(commit.key, store)
    opener = SessionKeys(View(second, name="second"), [FileProvider(tmp_path / "keys")])
    found, [missed] = from_copies(store.copies, JOB, keys=opener)
    assert found is not None and found.commit.step == 1 and "does not prove its origin" in missed.reason


# ---- letting go


def test_copies_of_expired_checkpoints_go_and_live_ones_stay(place: Place) -> None:
    place.fill(1, 2, 3, 4)
    place.copy_all()
    assert place.tiers.prune(place.store) == []
    gone = [*place.objects(1, ".pack"), *place.objects(2, ".manifest")]
    retain(place.repository, Policy(keep=2))
    for tier in place.tiers.tiers:
        assert set(gone) <= set(place.tiers.prune(tier))
        assert not [key for key in gone if tier.copies.size(key) is not None]
        found, missed = from_copies(tier.copies, JOB)
        assert found is not None and found.commit.step == 4 and not missed
    assert not place.tiers.due(place.store)


def test_nothing_goes_while_a_tier_has_too_few_live_ones(place: Place) -> None:
    place.fill(1, 2)
    place.copy_all()
    place.fill(3, 4)
    retain(place.repository, Policy(keep=2))
    assert place.tiers.prune(place.store) == []
    assert from_copies(place.store.copies, JOB)[0] is not None
    place.copy_all()
    assert place.tiers.prune(place.store)


def test_copies_go_even_when_the_log_has_forgotten_them(place: Place) -> None:
    place.fill(1, 2, 3, 4)
    place.copy_all()
    gone = [*place.objects(1, ".pack"), *place.objects(2, ".manifest")]
    retain(place.repository, Policy(keep=2, log_records=1, log_age_s=0.0), lambda: time.time() + 1)
    assert not [record for record in place.repository.log.records(JOB) if record.step in (1, 2)]
    removed = place.tiers.prune(place.store)
    assert set(gone) <= set(removed) and any(key.startswith("evidence/") for key in removed)
    assert not set(removed) & set(place.second.objects) and place.tiers.prune(place.store) == []
    found, missed = from_copies(place.store.copies, JOB)
    assert found is not None and found.commit.step == 4 and not missed


def test_a_removal_of_copies_that_is_cut_short_is_finished(place: Place) -> None:
    place.fill(1, 2, 3)
    place.copy_all()
    retain(place.repository, Policy(keep=2))
    for at in range(3):
        broken = Tier(copies=StoreCopies(View(place.second, Trouble("error", at), "second")))
        with pytest.raises(OSError, match="error"):
            place.tiers.prune(broken)
    place.tiers.prune(place.store)
    assert not [key for key in place.second.objects if key.startswith("steps/00000001")]
    assert len([key for key in place.second.objects if key.startswith("copied/")]) == 2


def test_packs_that_live_checkpoints_lean_on_stay_in_a_tier(place: Place) -> None:
    frozen: Any = np.random.default_rng(1).standard_normal(200_000)
    for step in (1, 2, 3):
        save = Save(job=JOB, generation=0, step=step, attempt="a", world_size=1)
        place.repository.write_part(save, 0, packed(model={"frozen": frozen, "step": step}))
        commit = place.repository.try_commit(save)
        assert commit is not None
        place.repository.mark(commit.key, "verified")
    place.copy_all()
    retain(place.repository, Policy(keep=2))
    assert place.tiers.prune(place.store)
    found, _ = from_copies(place.store.copies, JOB)
    assert found is not None and found.load(0)["model"]["frozen"].tobytes() == frozen.tobytes()
