"""Hugging Face's Trainer with keepstep's callback: killed runs go on bit-exactly, and what its users have lost is not lost."""

import importlib.util
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.libraries import POINTS, Runs

from keepstep.checkpoint import SaveFailed, StateInvalid
from keepstep.checkpoint.plugs.keeping import Settings
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.stores.posix import PosixStore

from .runs import FullStore, Later, by_name, damage

if any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate")):
    pytest.skip("transformers or accelerate is not installed", allow_module_level=True)
transformers, plug = Later("transformers"), Later("keepstep.checkpoint.plugs.transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
FILES = {
    "config.json", "generation_config.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt",
    "trainer_state.json",
}  # fmt: skip


def train(out: Path, steps: int, last: str | None = None, *callbacks: Any, **arguments: Any) -> Any:
    """A trainer that has trained a tiny model, with a checkpoint at every step."""
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=1
    )
    data = [{"input_ids": (ids := torch.randint(0, 32, (4,))), "labels": ids} for _ in range(20)]
    how = transformers.TrainingArguments(
        str(out), max_steps=steps, save_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        disable_tqdm=True, **arguments,
    )  # fmt: skip
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config), how, train_dataset=data, callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=last)
    return trainer


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of eleven steps with save_total_limit=1. Not to be changed."""
    out = tmp_path_factory.mktemp("trained") / "out"
    train(out, 11, None, plug.KeepstepCallback(), save_total_limit=1)
    return out


@pytest.fixture
def out(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "out"))


def steps_of(out: Path) -> list[int]:
    return [commit.step for commit in Repository(PosixStore(out / "keepstep"), plug.JOB).commits()]


def test_transformers_17032_a_run_killed_in_the_middle_of_a_save_goes_on_bit_exactly(
    runs_of: Callable[[str], Runs],
) -> None:
    """In the middle of an epoch, with dropout, a shuffled loader and tied weights."""
    runs = by_name(runs_of("transformers").killed)
    for point in POINTS["transformers"]:
        resumed = runs[f"steps-{point}"]
        assert resumed["last"].endswith("checkpoint-6" if point == "record:3" else "checkpoint-3"), point
        assert resumed["losses"] == runs["steps"]["losses"], point
        assert resumed["digest"] == runs["steps"]["digest"], point


def test_transformers_25129_save_total_limit_1_deletes_nothing(trained: Path) -> None:
    assert {path.name for path in trained.glob("checkpoint-*")} == {f"checkpoint-{step}" for step in range(1, 12)}
    assert steps_of(trained) == [11, 10, 9]


def test_torchtitan_909_rotation_takes_only_what_is_verified_and_exactly_named(tmp_path: Path) -> None:
    store, out = FullStore(tmp_path / "store"), tmp_path / "out"
    (out / "checkpoint-1.backup").mkdir(parents=True)

    class Fill(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            store.full = state.global_step > 3

    train(out, 6, None, Fill(), plug.KeepstepCallback(store, rotate=True), save_total_limit=1)
    left = {path.name for path in out.glob("checkpoint-*")}
    assert left == {"checkpoint-1.backup", "checkpoint-4", "checkpoint-5", "checkpoint-6"}


def test_transformers_26961_the_newest_is_the_last_committed_whatever_names_and_times_say(out: Path) -> None:
    for at, step in enumerate((10, 11, 9, 2)):
        os.utime(out / f"checkpoint-{step}", (at, at))
    assert plug.last_valid(out).endswith("checkpoint-11")
    damage(out / "keepstep", 11)
    assert plug.last_valid(out).endswith("checkpoint-10")


def test_transformers_35782_an_incomplete_directory_is_not_resumed_from(out: Path) -> None:
    (out / "checkpoint-12").mkdir()
    shutil.copy(out / "checkpoint-11" / "config.json", out / "checkpoint-12")
    assert transformers.trainer_utils.get_last_checkpoint(out).endswith("checkpoint-12")
    assert plug.last_valid(out).endswith("checkpoint-11")


def test_metaseq_53_a_damaged_file_of_the_trainer_does_no_harm(out: Path) -> None:
    for path in out.glob("checkpoint-*/*"):
        path.write_bytes(path.read_bytes()[:-5] if path.suffix != ".pt" else b"")
    last = plug.last_valid(out)
    assert {path.name for path in Path(last).iterdir()} == FILES
    assert train(out, 13, last, plug.KeepstepCallback()).state.global_step == 13


def test_what_is_restored_is_what_the_trainer_wrote(out: Path) -> None:
    from safetensors.torch import load_file

    written, restored = out / "checkpoint-11", Path(plug.last_valid(out))
    weights = load_file(restored / "model.safetensors")
    for name, tensor in load_file(written / "model.safetensors").items():
        assert torch.equal(weights[name], tensor)
    for name in ("optimizer.pt", "scheduler.pt"):
        assert repr(torch.load(written / name)) == repr(torch.load(restored / name))
    for name in ("config.json", "trainer_state.json"):
        assert (written / name).read_bytes() == (restored / name).read_bytes()


def test_the_trainers_directories_are_left_as_they_are(out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.glob("checkpoint-*/*")}
    plug.last_valid(out)
    assert {path: path.stat().st_mtime_ns for path in out.glob("checkpoint-*/*")} == before


def test_transformers_28015_several_ranks_make_one_directory(out: Path) -> None:
    found: list[str | None] = []
    ranks = [threading.Thread(target=lambda: found.append(plug.last_valid(out))) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert len(set(found)) == 1
    assert [path.name for path in (out / "keepstep-restored").glob("*/*")] == ["checkpoint-11"]
    assert {path.name for path in Path(found[0] or "").iterdir()} == FILES


def test_only_the_directory_that_is_needed_stays(out: Path) -> None:
    first = plug.last_valid(out)
    damage(out / "keepstep", 11)
    second = plug.last_valid(out)
    assert Path(second).is_dir()
    assert not Path(first).exists()


def test_verl_7952_training_does_not_start_at_step_0_over_checkpoints(out: Path, tmp_path: Path) -> None:
    with pytest.raises(StateInvalid, match=r"begin at step 0, and job trainer has checkpoints of steps \[11, 10, 9\]"):
        train(out, 2, None, plug.KeepstepCallback())
    for step in (9, 10, 11):
        damage(out / "keepstep", step)
    with pytest.raises(StateInvalid, match="3 checkpoints of job trainer exist and none can be used"):
        plug.last_valid(out)
    assert plug.last_valid(tmp_path / "nothing") is None


def test_resuming_from_what_was_never_committed_is_refused(out: Path) -> None:
    with pytest.raises(StateInvalid, match="begin at step 5"):
        train(out, 12, str(out / "checkpoint-5"), plug.KeepstepCallback())
    anywhere = plug.KeepstepCallback(settings=Settings(start_anywhere=True))
    assert train(out, 6, str(out / "checkpoint-5"), anywhere).state.global_step == 6


def test_lightning_688_a_full_disk_is_reported_and_training_goes_on(tmp_path: Path) -> None:
    store = FullStore(tmp_path / "store")

    class Fill(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            store.full = state.global_step == 2

    callback = plug.KeepstepCallback(store)
    assert train(tmp_path / "out", 3, None, Fill(), callback).state.global_step == 3
    assert [failure.step for failure in callback.failures] == [2]
    assert [commit.step for commit in Repository(store, plug.JOB).commits()] == [3, 1]
    strict = plug.KeepstepCallback(store, job="strict", settings=Settings(raise_failures=True))
    with pytest.raises(SaveFailed, match="space"):
        train(tmp_path / "strict", 2, None, Fill(), strict)


def test_directories_from_before_keepstep_are_judged_by_their_content(
    out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(out / "keepstep")
    (out / "checkpoint-11" / "optimizer.pt").unlink()
    with (out / "checkpoint-10" / "model.safetensors").open("ab") as file:
        file.truncate(2000)
    (out / "checkpoint-9").rename(out / "checkpoint-9.backup")
    assert plug.last_valid(out) == str(out / "checkpoint-8")
    assert "checkpoint-11 is skipped: it has no optimizer" in caplog.text
    for path in out.glob("checkpoint-*/trainer_state.json"):
        path.unlink()
    with pytest.raises(StateInvalid, match="none of the 10 checkpoints"):
        plug.last_valid(out)


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
def test_a_commit_cannot_write_outside_its_directory(tmp_path: Path, name: str) -> None:
    import numpy as np

    groups: dict[str, Any] = {"files": {name: np.zeros(3, np.uint8)}, "model": {}}
    with pytest.raises(StateInvalid, match="outside the checkpoint"):
        plug._write(tmp_path, groups, [])
    assert list(tmp_path.iterdir()) == []


def test_sharded_training_is_refused_before_it_starts(tmp_path: Path) -> None:
    class Arguments:
        deepspeed, fsdp = None, "full_shard"

    with pytest.raises(ValueError, match="FSDP"):
        plug.KeepstepCallback().on_train_begin(Arguments(), None)


def test_written_behind_by_a_snapshot_server(start_node: Callable[..., Any], tmp_path: Path) -> None:
    node = start_node()
    node.begin(1, 1)
    settings = Settings(client=node.client(0, 1))
    callback = plug.KeepstepCallback(tmp_path / "checkpoints", job="job", settings=settings)
    train(tmp_path / "out", 3, None, callback)
    assert callback.failures == []
    last = plug.last_valid(tmp_path / "out", tmp_path / "checkpoints", job="job")
    assert last.endswith("checkpoint-3")
    assert {path.name for path in Path(last).iterdir()} == FILES
