"""The disk tier: what a checkpoint is, and that nothing else is ever taken for one."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from keepstep.checkpoint import (
    LocalCheckpoints,
    Repository,
    SaveFailed,
    StateInvalid,
    Superseded,
    flatten,
)
from keepstep.checkpoint.repository.pack_writer import Group
from keepstep.checkpoint.repository.save import Save, job_mark
from keepstep.checkpoint.state.blob import digest_chunks, pack
from keepstep.checkpoint.stores.posix import PosixStore


def groups(step: int, rank: int = 0) -> dict[str, Any]:
    model = {"w": np.random.default_rng(step).standard_normal(300)}
    return {"model": flatten(model), "rank": flatten({"step": step, "rank": rank})}


def repository(directory: Path, job: str = "job") -> Repository:
    return Repository(PosixStore(directory), job)


def packed(**trees: Any) -> dict[str, Group]:
    blobs = {name: pack(tree if name == "model" or name == "rank" else flatten(tree)) for name, tree in trees.items()}
    return {name: Group(blob, digest_chunks(blob)) for name, blob in blobs.items()}


def save(directory: Path, step: int, **where: Any) -> Any:
    return LocalCheckpoints(directory, job="job", **where).save(step, groups(step))


def newest_step(directory: Path) -> int | None:
    """The step a restart would take, bit-exactly, or None."""
    checkpoints = LocalCheckpoints(directory, job="job")
    commit = checkpoints.newest_valid()
    if commit is None:
        return None
    loaded = checkpoints.load(commit)
    assert loaded["model"]["w"].tobytes() == np.random.default_rng(commit.step).standard_normal(300).tobytes()
    assert loaded["rank"]["step"] == commit.step
    return commit.step


def files_of(directory: Path, step: int) -> list[Path]:
    [folder] = (directory / "steps").glob(f"{step:08d}-*")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_D10_none_is_a_valid_start(tmp_path: Path) -> None:
    checkpoints = LocalCheckpoints(tmp_path / "absent", job="job")
    assert checkpoints.newest_valid() is None
    assert not checkpoints.skipped


def test_every_rank_finds_its_own_part_and_equal_groups_are_written_once(tmp_path: Path) -> None:
    done = [LocalCheckpoints(tmp_path, job="job", run="r").save(7, groups(7, rank), rank, 3) for rank in range(3)]
    assert done[:2] == [None, None] and done[2] is not None
    assert len([path for path in files_of(tmp_path, 7) if path.suffix == ".pack"]) == 3
    reader = LocalCheckpoints(tmp_path, job="job")
    commit = reader.newest_valid()
    assert commit is not None and commit.world_size == 3
    assert [reader.load(commit, rank)["rank"]["rank"] for rank in range(4)] == [0, 1, 2, 0]


def test_another_job_in_the_same_directory_is_never_taken(tmp_path: Path) -> None:
    save(tmp_path, 1)
    other = LocalCheckpoints(tmp_path, job="other")
    assert other.newest_valid() is None
    other.save(9, groups(9))
    assert newest_step(tmp_path) == 1


def test_D2_leftover_partial_directory_neither_blocks_nor_counts(tmp_path: Path) -> None:
    save(tmp_path, 1)
    directory = repository(tmp_path)
    partial = Save(job="job", generation=0, step=2, attempt="dead", world_size=2)
    directory.write_part(partial, 0, packed(**groups(2)))
    assert directory.try_commit(partial) is None
    assert newest_step(tmp_path) == 1
    save(tmp_path, 2)
    assert newest_step(tmp_path) == 2


def test_D3_parts_of_two_attempts_never_make_one_checkpoint(tmp_path: Path) -> None:
    first = LocalCheckpoints(tmp_path, job="job", run="killed")
    assert first.save(5, groups(5, 0), 0, 2) is None
    second = LocalCheckpoints(tmp_path, job="job", run="again")
    assert second.save(5, groups(5, 1), 1, 2) is None, "rank 0's part is of another run"
    assert LocalCheckpoints(tmp_path, job="job").newest_valid() is None
    assert LocalCheckpoints(tmp_path, job="job", run="again").save(5, groups(5, 0), 0, 2) is not None
    assert newest_step(tmp_path) == 5


@pytest.mark.parametrize("size", [0, 1, -1], ids=["empty", "one byte", "one byte short"])
@pytest.mark.parametrize("kind", ["pack", "manifest", "commit"])
def test_D5_truncated_file_falls_back_to_the_previous_one(tmp_path: Path, kind: str, size: int) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    for path in _of_kind(tmp_path, kind):
        os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    assert newest_step(tmp_path) == 1
    save(tmp_path, 3)
    assert newest_step(tmp_path) == 3


def _of_kind(directory: Path, kind: str) -> list[Path]:
    if kind == "commit":
        return [sorted((directory / "commits").iterdir())[-2]]
    return [path for path in files_of(directory, 2) if path.suffix == f".{kind}"]


@pytest.mark.parametrize("kind", ["pack", "manifest", "commit"])
def test_D6_bit_flip_is_rejected_wherever_it_is(tmp_path: Path, kind: str) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    for path in _of_kind(tmp_path, kind):
        whole = path.read_bytes()
        every = range(0, len(whole) * 8, max(1, len(whole) * 8 // 97))
        for bit in every:
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            assert newest_step(tmp_path) == 1, f"bit {bit} of {path.name}"
        path.write_bytes(whole)
    assert newest_step(tmp_path) == 2


def test_D6_bit_flip_in_a_receipt_stops_the_commit(tmp_path: Path) -> None:
    writers = [LocalCheckpoints(tmp_path, job="job", run="r") for _ in range(2)]
    writers[0].save(1, groups(1, 0), 0, 2)
    [receipt] = [path for path in files_of(tmp_path, 1) if path.name == "0" and path.parent.name == "receipts"]
    data = bytearray(receipt.read_bytes())
    data[len(data) // 2] ^= 4
    receipt.write_bytes(data)
    with pytest.raises(SaveFailed, match="receipts/0"):
        writers[1].save(1, groups(1, 1), 1, 2)
    assert newest_step(tmp_path) is None


def test_skipped_checkpoints_say_why(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    missing = next(path for path in files_of(tmp_path, 2) if path.suffix == ".pack")
    missing.unlink()
    checkpoints = LocalCheckpoints(tmp_path, job="job")
    commit = checkpoints.newest_valid()
    assert commit is not None and commit.step == 1, "a checkpoint with a missing shard was taken"
    [skipped] = checkpoints.skipped
    assert missing.name in skipped.reason and "missing" in skipped.reason


def test_an_exchanged_commit_record_is_found_by_its_successor(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    other = tmp_path / "elsewhere"
    for step in (1, 9, 3):
        save(other, step)
    name = f"{2:020d}.json"
    (tmp_path / "commits" / name).write_bytes((other / "commits" / name).read_bytes())
    log = repository(tmp_path).log
    log.refresh()
    with pytest.raises(StateInvalid, match="exchanged"):
        log.record(2)


def test_D7_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    def seen() -> dict[Path, tuple[int, int]]:
        every = (path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith("latest"))
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in every}

    checkpoints = LocalCheckpoints(tmp_path, job="job", keep=10)
    checkpoints.save(1, groups(1))
    before = seen()
    checkpoints.save(1, groups(1))
    checkpoints.save(2, groups(2))
    after = seen()
    assert {path: after[path] for path in before} == before
    assert len(checkpoints.repository.commits()) == 3


def test_D16_load_then_save_then_load_gives_the_new_state(tmp_path: Path) -> None:
    weights = np.zeros(4)
    checkpoints = LocalCheckpoints(tmp_path, job="job")
    for step in (1, 2, 3):
        weights = weights + step
        checkpoints.save(step, {"model": flatten({"w": weights})})
        commit = checkpoints.newest_valid()
        assert commit is not None
        weights = checkpoints.load(commit)["model"]["w"]
        weights += 0.5
    assert weights.tolist() == [7.5] * 4


def test_a_group_that_vanished_before_the_commit_stops_it(tmp_path: Path) -> None:
    writers = [LocalCheckpoints(tmp_path, job="job", run="r") for _ in range(2)]
    writers[0].save(1, groups(1, 0), 0, 2)
    own = next(path for path in files_of(tmp_path, 1) if path.suffix == ".pack")
    own.unlink()
    with pytest.raises(SaveFailed, match="None bytes"):
        writers[1].save(1, groups(1, 1), 1, 2)
    assert repository(tmp_path).commits() == []


def test_latest_is_only_a_hint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    latest = tmp_path / f"latest-{job_mark('job')}"
    assert msgspec.json.decode(latest.read_bytes())["key"] == newest.key
    latest.write_text("00000000000000000001\n")
    assert newest_step(tmp_path) == 2
    latest.unlink()
    assert newest_step(tmp_path) == 2


def test_retention_keeps_the_newest_and_never_touches_what_it_does_not_know(tmp_path: Path) -> None:
    directory = repository(tmp_path)
    dead = Save(job="job", generation=0, step=1, attempt="dead", world_size=2)
    directory.write_part(dead, 0, packed(g={"x": 1}))
    foreign = Save(job="other", generation=0, step=1, attempt="dead", world_size=2)
    directory.write_part(foreign, 0, packed(g={"x": 1}))
    strange = tmp_path / "steps" / "step-1.backup"
    strange.mkdir()
    save(tmp_path, 2)
    note = files_of(tmp_path, 2)[0].parent / "notes.txt"
    note.write_text("mine")
    for step in (3, 4, 5, 6):
        save(tmp_path, step)
    left = {path.name for path in (tmp_path / "steps").iterdir()}
    steps = sorted({int(name[:8]) for name in left if name[:8].isdecimal()})
    assert steps == [1, 2, 4, 5, 6]
    assert strange.is_dir() and note.read_text() == "mine" and [note] == list(note.parent.iterdir())
    assert foreign.folder() in left and dead.folder() not in left
    assert [commit.step for commit in directory.commits()] == [6, 5, 4]


def test_D1_nothing_moves_or_goes_until_the_new_one_is_read_back(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    # The disk loses a group between its receipt and the commit: the last of two ranks finds it on reading back.
    writers = [LocalCheckpoints(tmp_path, job="job", run="r", keep=1) for _ in range(2)]
    writers[0].save(4, groups(4, 0), 0, 2)
    for path in files_of(tmp_path, 4):
        if path.suffix == ".pack":
            path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(SaveFailed, match="damaged"):
        writers[1].save(4, groups(4, 1), 1, 2)
    assert newest_step(tmp_path) == 3
    assert msgspec.json.decode((tmp_path / f"latest-{job_mark('job')}").read_bytes())["step"] == 3
    assert len(repository(tmp_path).commits()) == 4


def test_a_stale_generation_is_fenced_out_by_the_log(tmp_path: Path) -> None:
    old, new = repository(tmp_path), repository(tmp_path)
    old.log.open_generation("job", 1, "")
    save_1 = Save(job="job", generation=1, step=3, attempt="a", world_size=1)
    old.write_part(save_1, 0, packed(g={"x": 1}))
    new.log.open_generation("job", 2, "nothing")
    with pytest.raises(Superseded, match="generation 2"):
        old.try_commit(save_1)
    with pytest.raises(Superseded, match="another checkpoint directory"):
        old.write_part(Save(job="job", generation=1, step=4, attempt="a", world_size=1), 0, {})
    with pytest.raises(Superseded):
        old.log.open_generation("job", 1, "")
    assert new.commits() == []
    other = Save(job="other", generation=1, step=4, attempt="a", world_size=1)
    old.write_part(other, 0, packed(g={"x": 1}))
    assert old.try_commit(other) is not None


def test_two_savers_in_one_process_never_share_a_save(tmp_path: Path) -> None:
    for value in (1, 2):
        done = LocalCheckpoints(tmp_path, job="job").save(3, {"g": flatten({"x": value})})
        assert done is not None and repository(tmp_path).load(done.key, 0)["g"]["x"] == value


def test_many_committers_make_one_record(tmp_path: Path) -> None:
    wanted = Save(job="job", generation=1, step=3, attempt="a", world_size=1)
    repository(tmp_path).write_part(wanted, 0, packed(g={"x": 1}))
    start, keys = threading.Barrier(6), []

    def commit() -> None:
        directory = repository(tmp_path)
        start.wait()
        found = directory.try_commit(wanted)
        assert found is not None
        keys.append((found.key, found.fresh))

    threads = [threading.Thread(target=commit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(keys) == 6 and len({key for key, _ in keys}) == 1
    assert sum(fresh for _, fresh in keys) == 1
    assert len(list((tmp_path / "commits").glob("*.json"))) == 1


def test_other_bytes_under_the_same_save_are_refused(tmp_path: Path) -> None:
    wanted = Save(job="job", generation=1, step=3, attempt="a", world_size=2)
    directory = repository(tmp_path)
    directory.write_part(wanted, 0, packed(g={"x": 1}))
    with pytest.raises(SaveFailed, match="attempt of its own"):
        directory.write_part(wanted, 0, packed(g={"x": 2}))


def test_bytes_that_changed_after_the_seal_are_refused(tmp_path: Path) -> None:
    wanted = Save(job="job", generation=1, step=3, attempt="a", world_size=1)
    with pytest.raises(SaveFailed, match="changed in memory"):
        repository(tmp_path).write_part(wanted, 0, {"g": Group(pack(flatten(1)), packed(g=2)["g"].chunks)})


def test_D20_hardly_any_descriptors_are_enough_for_ever(tmp_path: Path, start_program: Callable[..., Any]) -> None:
    program = start_program("few_descriptors.py", tmp_path, 32, 40)
    said, _ = program.communicate(timeout=120)
    assert program.returncode == 0, said


def test_disk_full_fails_cleanly_and_the_next_save_works(tmp_path: Path, start_program: Callable[..., Any]) -> None:
    program = start_program("disk_full.py", tmp_path, 100_000)
    said, _ = program.communicate(timeout=120)
    assert program.returncode == 0, said
    assert "step 2 was not saved" in said
    names = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert not [name for name in names if name.startswith(".tmp-")]
    folders = sorted(path.name for path in (tmp_path / "steps").iterdir())
    assert [name[:8] for name in folders] == ["00000001", "00000002"], "the failed save left something behind"
