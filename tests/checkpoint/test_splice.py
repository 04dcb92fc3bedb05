"""Pieces of other steps, jobs and tenants in the place of the right ones, and what a forger without a key can do.

In the clear, a piece that stands in the wrong place is refused because its digest is not the one that was committed. Who may
write to the store and makes all digests anew is refused only where keys are used.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from keepstep.checkpoint.errors import CheckpointError, KeyStale, KeyUnusable, SaveFailed, StateInvalid
from keepstep.checkpoint.format.records import LogRecord, Manifest, unseal
from keepstep.checkpoint.keys.providers import FileProvider
from keepstep.checkpoint.keys.sessions import SessionKeys
from keepstep.checkpoint.repository.log import CommitLog, name_of
from keepstep.checkpoint.repository.notary import prove, read_manifest
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.retention import Policy, retain
from keepstep.checkpoint.repository.save import Save, job_mark, owned

from .forger import Forger, forged_commit
from .keyrings import put_key
from .shared_disk import JOB, Disk, View, commit_one, groups, packed, state, token_of

KINDS = ["pack", "manifest", "record"]


class World:
    """Stores of several jobs and tenants whose keys one provider wraps."""

    def __init__(self, directory: Path, *, is_sealed: bool) -> None:
        self._directory, self._is_sealed = directory, is_sealed
        put_key(directory, "1.key")

    def repository(self, disk: Disk, job: str = JOB, tenant: str = "") -> Repository:
        keys = SessionKeys(View(disk), [FileProvider(self._directory)]) if self._is_sealed else None
        return Repository(View(disk), job, tenant=tenant, keys=keys)

    def filled(self, job: str = JOB, tenant: str = "", tokens: tuple[int, int] = (1, 2), **where: Any) -> Disk:
        """A store with steps 1 and 2, in which the states ``tokens`` stand."""
        disk = Disk()
        for step, token in zip((1, 2), tokens, strict=True):
            commit_one(self.repository(disk, job, tenant), step, token=token, **where)
        return disk


@pytest.fixture(params=[False, True], ids=["clear", "sealed"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path / "keys", is_sealed=request.param)


@pytest.fixture
def sealed(tmp_path: Path) -> World:
    return World(tmp_path / "keys", is_sealed=True)


def objects(disk: Disk, step: int, kind: str) -> list[str]:
    if kind == "record":
        return [name_of(2 * step - 1)]
    folder = f"steps/{step:08d}-"
    endings = {"pack": ".pack", "manifest": ".manifest", "receipt": "receipts/0"}
    return [key for key in sorted(disk.objects) if key.startswith(folder) and key.endswith(endings[kind])]


def others(world: World) -> dict[str, tuple[Disk, int]]:
    """Where a piece may come from: a store, and the step in it."""
    return {
        "another job": (world.filled(job="other"), 2),
        "another tenant": (world.filled(tenant="other"), 2),
        "another run of the same job": (world.filled(tokens=(3, 4)), 2),
        "another generation": (world.filled(generation=7), 2),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_piece_of_another_step_is_never_taken_for_the_right_one(world: World, kind: str) -> None:
    disk = world.filled()
    [there], [here] = objects(disk, 1, kind), objects(disk, 2, kind)
    disk.objects[here] = disk.objects[there]
    _check_refused_or_right(world.repository(disk), wanted=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "source", ["another job", "another tenant", "another run of the same job", "another generation"]
)
def test_a_piece_from_elsewhere_is_never_taken_for_the_right_one(world: World, source: str, kind: str) -> None:
    disk = world.filled()
    foreign, step = others(world)[source]
    [there], [here] = objects(foreign, step, kind), objects(disk, 2, kind)
    disk.objects[here] = foreign.objects[there]
    if kind == "record":
        # With all that it names: its folder is there too.
        disk.objects |= {key: data for key, data in foreign.objects.items() if key.startswith("steps/")}
    _check_refused_or_right(world.repository(disk), wanted=1)


def _check_refused_or_right(repository: Repository, wanted: int) -> None:
    """Step 2 is refused, and ``wanted`` is what a restart takes."""
    found, skipped = repository.newest_valid()
    assert found is not None and found.step == wanted
    assert token_of(repository.load(found.key, 0)) == wanted
    assert skipped
    for commit in repository.commits():
        if commit.step != wanted:
            with pytest.raises((StateInvalid, KeyUnusable)):
                repository.load(commit.key, 0)


@pytest.mark.parametrize("source", ["step", "another job", "another generation"])
def test_a_receipt_of_another_save_stops_the_commit(world: World, source: str) -> None:
    disk = world.filled()
    foreign, step = (disk, 2) if source == "step" else others(world)[source]
    repository = world.repository(disk)
    save = Save(job=JOB, generation=0, step=3, attempt="a", world_size=2)
    repository.write_part(save, 0, groups(3))
    disk.objects[f"{save.prefix()}receipts/1"] = foreign.objects[objects(foreign, step, "receipt")[0]]
    with pytest.raises((StateInvalid, SaveFailed), match="of another save"):
        repository.try_commit(save)
    assert [commit.step for commit in repository.commits()] == [2, 1]


def test_packs_of_one_checkpoint_do_not_stand_in_for_each_other(world: World) -> None:
    disk = Disk()
    repository = world.repository(disk)
    save = Save(job=JOB, generation=0, step=1, attempt="a", world_size=2)
    for rank in range(2):
        repository.write_part(save, rank, groups(1, rank))
    commit = repository.try_commit(save)
    assert commit is not None
    first, second = objects(disk, 1, "pack")
    disk.objects[first], disk.objects[second] = disk.objects[second], disk.objects[first]
    for rank in range(2):
        with pytest.raises((StateInvalid, KeyUnusable)):
            repository.load(commit.key, rank)


@pytest.mark.parametrize("how", ["cut", "swapped", "doubled"])
def test_chunks_cannot_be_cut_off_reordered_or_repeated(world: World, how: str) -> None:
    disk = Disk()
    repository = world.repository(disk)
    save = Save(job=JOB, generation=0, step=1, attempt="a", world_size=1)
    tree = {name: np.random.default_rng(n).standard_normal(150_000) for n, name in enumerate("ab")}
    repository.write_part(save, 0, packed(model=tree))
    commit = repository.try_commit(save)
    assert commit is not None
    key = objects(disk, 1, "pack")[0]
    data = disk.objects[key]
    chunk = 1_200_128  # bytes of a leaf, and of its pages
    first, second = data[4096 : 4096 + chunk], data[4096 + chunk : 4096 + 2 * chunk]
    rest = data[4096 + 2 * chunk :]
    changed = {"cut": first + rest, "swapped": second + first + rest, "doubled": first + first + rest}[how]
    disk.objects[key] = data[:4096] + changed
    with pytest.raises((StateInvalid, KeyUnusable)):
        repository.load(commit.key, 0)


# ---- a forger who makes every digest right


def _load_all(repository: Repository) -> set[int]:
    """Tokens of everything that loads; a state that nobody saved fails."""
    loaded = set()
    for commit in repository.commits():
        try:
            loaded.add(token_of(repository.load(commit.key, 0)))
        except CheckpointError:
            continue
    return loaded


def test_a_manifest_that_names_older_groups_is_refused_with_keys(sealed: World) -> None:
    disk = sealed.filled()
    repository = sealed.repository(disk)
    newest, older = repository.commits()
    forger = Forger(disk)
    old = msgspec.to_builtins(repository.manifest(older.key))
    forger.put_manifest(forger.manifest | {name: old[name] for name in ("ranks", "sizes_bytes", "packs", "sessions")})
    again = sealed.repository(disk)
    with pytest.raises(StateInvalid, match="forged"):
        again.load(newest.key, 0)
    assert _load_all(again) == {1}


def test_one_without_a_key_commits_nothing_that_counts(sealed: World) -> None:
    disk = sealed.filled()
    repository = sealed.repository(disk)
    old = repository.manifest(repository.commits()[-1].key)
    stolen = repository.log.record(repository.commits()[0].seq)
    rollback = msgspec.structs.replace(old, step=9, attempt="x")
    forged_commit(disk, JOB, rollback)
    forged_commit(disk, JOB, msgspec.structs.replace(rollback, attempt="y"), session=stolen.session, tag=stolen.tag,
                  manifest_blake3=stolen.manifest_blake3)  # fmt: skip
    forged_commit(disk, JOB, msgspec.structs.replace(rollback, attempt="z"), session=stolen.session, tag="zz")
    again = sealed.repository(disk)
    assert [commit.step for commit in again.commits()] == [9, 9, 9, 2, 1]
    found, skipped = again.newest_valid()
    assert found is not None and found.step == 2 and len(skipped) == 3
    assert all("forged" in entry.reason for entry in skipped), skipped
    assert _load_all(again) == {1, 2}


def test_forged_checkpoints_do_not_push_out_real_ones(sealed: World) -> None:
    disk = sealed.filled()
    repository = sealed.repository(disk)
    old = repository.manifest(repository.commits()[-1].key)
    plain = Repository(View(disk), JOB)
    for number in range(4):
        forged = forged_commit(disk, JOB, msgspec.structs.replace(old, step=10 + number, attempt=f"x{number}"))
        plain.mark(f"{forged.seq:020d}", "verified")
    retain(sealed.repository(disk), Policy(keep=2))
    assert _load_all(sealed.repository(disk)) == {1, 2}


def test_a_tag_proves_the_record_and_the_manifest_and_nothing_else(sealed: World) -> None:
    disk = sealed.filled()
    repository = sealed.repository(disk)
    keys = repository.keys
    repository.log.refresh()
    record = repository.log.record(1)
    _, manifest = read_manifest(View(disk), record)
    prove(keys, "", record, manifest)
    prove(None, "", msgspec.structs.replace(record, tag=""), b"anything")
    for name, value in [
        ("seq", 2), ("step", 7), ("folder", "x"), ("manifest", "xxh3-0"), ("previous", "1"), ("writer", "x"),
        ("world_size", 9), ("attempt", "q"), ("manifest_blake3", "00"), ("tag", "00" * 16), ("tag", ""), ("tag", "zz"),
        ("at_unix_s", 1.0), ("kind", "state"),
    ]:  # fmt: skip
        with pytest.raises((StateInvalid, KeyUnusable)):
            prove(keys, "", msgspec.structs.replace(record, **{name: value}), manifest)
    with pytest.raises((StateInvalid, KeyUnusable)):
        prove(keys, "other tenant", record, manifest)
    with pytest.raises(StateInvalid, match="forged"):
        prove(keys, "", record, manifest + b" ")


def test_a_checkpoint_in_the_clear_is_not_taken_where_keys_are_configured(sealed: World, tmp_path: Path) -> None:
    disk = World(tmp_path / "unused", is_sealed=False).filled()
    found, skipped = sealed.repository(disk).newest_valid()
    assert found is None and "configure none" in skipped[0].reason


def test_a_key_that_was_forgotten_hides_its_own_checkpoints_and_no_others(sealed: World) -> None:
    disk = Disk()
    commit_one(sealed.repository(disk), 1, generation=1)
    commit_one(sealed.repository(disk), 2, generation=2)
    repository = sealed.repository(disk)
    newest, older = repository.commits()
    keys = repository.keys
    assert isinstance(keys, SessionKeys)
    keys.forget(repository.log.record(newest.seq).session)
    again = sealed.repository(disk)
    found, skipped = again.newest_valid()
    assert found is not None and found.key == older.key and "forgotten" in skipped[0].reason
    with pytest.raises(KeyStale):
        again.load(newest.key, 0)


def test_in_the_clear_the_chain_tells_who_was_exchanged_and_not_who_forged(tmp_path: Path) -> None:
    """The limit that the documentation states: without keys, one who may write to the store may write a checkpoint."""
    world = World(tmp_path / "unused", is_sealed=False)
    disk = world.filled()
    repository = world.repository(disk)
    old = repository.manifest(repository.commits()[-1].key)
    forged_commit(disk, JOB, msgspec.structs.replace(old, step=9, attempt="x"))
    found, _ = world.repository(disk).newest_valid()
    assert found is not None and found.step == 9 and token_of(repository.load(found.key, 0)) == 1
    record = unseal(disk.objects[name_of(1)], LogRecord, "record")
    assert record.tag == "" and state(1)["model"]["token"] == 1


def test_folders_of_two_jobs_never_meet(world: World) -> None:
    disk = Disk()
    for job in ("a", "b"):
        commit_one(world.repository(disk, job), 1)
    marks = {owner.mark for key in disk.objects if (owner := owned(key)) is not None}
    assert marks == {job_mark("a"), job_mark("b")}
    log = CommitLog(View(disk))
    log.refresh()
    record = next(record for record in log.records("b") if record.kind == "commit")
    manifest, _ = read_manifest(View(disk), record)
    stolen: Manifest = msgspec.structs.replace(manifest, job="a")
    forged = forged_commit(disk, "a", msgspec.structs.replace(stolen, attempt="x"))
    with pytest.raises(StateInvalid, match=r"forged|prove|no pack of its job"):
        world.repository(disk, "a").load(f"{forged.seq:020d}", 0)
