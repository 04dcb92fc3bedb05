"""Lightning through its CheckpointIO: killed runs go on bit-exactly, and what its users have lost is not lost here."""

import functools
import importlib.util
import itertools
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.checkpoint.libraries import POINTS, Runs

from keepstep.checkpoint import SaveFailed, SnapshotClient, StateInvalid
from keepstep.checkpoint.plugs.keeping import Settings
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.state import generators
from keepstep.checkpoint.stores.posix import PosixStore

from .runs import FullStore, Later, by_name, damage

if importlib.util.find_spec("lightning") is None:
    pytest.skip("lightning is not installed", allow_module_level=True)
pl, lightning = Later("lightning.pytorch"), Later("keepstep.checkpoint.plugs.lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


def saved(step: int) -> dict[str, Any]:
    """A checkpoint as Lightning hands it over."""
    return {
        "epoch": step // 4, "global_step": step, "pytorch-lightning_version": "2.6.0",
        "state_dict": {"w": torch.full((50,), float(step)), "b": torch.arange(3, dtype=torch.bfloat16)},
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": step}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(1.5), "dirpath": "/x"}},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(50) * step}}, "param_groups": [{"lr": 0.1}]}],
        "lr_schedulers": [{"_last_lr": [0.1]}],
    }  # fmt: skip


def step_of(checkpoint: dict[str, Any]) -> int:
    """Which step a loaded checkpoint is of; all of it is."""
    step = int(checkpoint["global_step"])
    assert torch.equal(checkpoint["state_dict"]["w"], torch.full((50,), float(step)))
    assert torch.equal(checkpoint["optimizer_states"][0]["state"][0]["exp_avg"], torch.ones(50) * step)
    return step


@pytest.fixture
def names(tmp_path: Path) -> Path:
    return tmp_path / "names"


@pytest.fixture
def store(tmp_path: Path) -> FullStore:
    return FullStore(tmp_path / "store")


@pytest.fixture
def io(store: FullStore) -> Any:
    return lightning.KeepstepIO(store, job="run")


# ---- whole runs


def test_lightning_688_a_run_killed_in_the_middle_of_a_save_goes_on_bit_exactly(
    runs_of: Callable[[str], Runs],
) -> None:
    """With dropout; saved at the ends of epochs with an ordinary shuffled loader, and in the middle with a stateful one."""
    runs = by_name(runs_of("lightning").killed)
    for kind, point in itertools.product(("epochs", "steps"), POINTS["lightning"]):
        whole, resumed = runs[kind], runs[f"{kind}-{point}"]
        assert resumed["last"] is not None, (kind, point)
        assert len(resumed["losses"]) < len(whole["losses"]) == 16, (kind, point)
        assert resumed["losses"] == whole["losses"][-len(resumed["losses"]) :], (kind, point)
        assert resumed["digest"] == whole["digest"], (kind, point)


@functools.cache
def module_type() -> Any:
    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, **parameters: Any) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    return Module


def fit(io: Any, names: Path, steps: int, *, ckpt_path: str | None = None, **how: Any) -> Any:
    saving = pl.callbacks.ModelCheckpoint(names, every_n_train_steps=2, **how)
    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", plugins=[io], callbacks=[saving, io.callback()], logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=names,
    )  # fmt: skip
    module = module_type()(width=3, loss=torch.nn.MSELoss())
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(4, 4), 1), ckpt_path=ckpt_path)
    return trainer


def test_orbax_605_a_full_disk_is_reported_and_training_goes_on(io: Any, store: FullStore, names: Path) -> None:
    class Fill(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            store.full = trainer.global_step in (3, 4)

    saving = pl.callbacks.ModelCheckpoint(names, every_n_train_steps=2, save_top_k=1)
    trainer = pl.Trainer(
        max_steps=6, accelerator="cpu", plugins=[io], callbacks=[Fill(), saving, io.callback()], logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=names,
    )  # fmt: skip
    trainer.fit(module_type()(), torch.utils.data.DataLoader(torch.randn(4, 4), 1))
    assert trainer.global_step == 6
    assert [failure.step for failure in io.failures] == [4]
    assert "space" in io.failures[0].reason
    assert [commit.step for commit in Repository(store, "run").commits()] == [6, 2]


def test_verl_7952_training_does_not_start_at_step_0_over_checkpoints(io: Any, store: FullStore, names: Path) -> None:
    fit(io, names, 4)
    with pytest.raises(StateInvalid, match=r"begin at step 0, and job run has checkpoints of steps \[4, 2\]"):
        fit(lightning.KeepstepIO(store, job="run"), names, 4)
    anywhere = lightning.KeepstepIO(store, job="run", settings=Settings(start_anywhere=True))
    assert fit(anywhere, names, 2).global_step == 2
    assert fit(lightning.KeepstepIO(store, job="other"), names, 2).global_step == 2


def test_lightning_finds_its_own_names(io: Any, store: FullStore, names: Path) -> None:
    """``last`` and ``best`` go by Lightning's files, which are notes, links to notes, and no bytes."""
    fit(io, names, 4, save_last="link", save_top_k=-1)
    assert {path.name for path in names.glob("*.ckpt")} == {"epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt", "last.ckpt"}
    assert max(path.stat().st_size for path in names.glob("*.ckpt")) < 200
    again = lightning.KeepstepIO(store, job="run")
    assert again.load_checkpoint(names / "last.ckpt")["global_step"] == 4
    assert fit(again, names, 6, ckpt_path="last", save_last=True).global_step == 6


def test_parameters_that_are_objects_are_left_out_and_named(
    io: Any, names: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(io, names, 2)
    assert "hyper_parameters.loss is left out" in caplog.text
    found = io.load_checkpoint(io.last_valid())
    assert found["hyper_parameters"] == {"width": 3}


# ---- one call at a time


def test_what_is_loaded_is_what_was_saved(io: Any, names: Path) -> None:
    io.save_checkpoint(saved(5), names / "a.ckpt")
    before, after = saved(5), io.load_checkpoint(names / "a.ckpt")
    assert list(after) == [*before, "keepstep"]
    assert after["loops"] == before["loops"]
    assert torch.equal(after["state_dict"]["b"], before["state_dict"]["b"])
    assert step_of(after) == 5


def test_lightning_1150_the_older_one_goes_only_when_the_newer_is_safe(io: Any, store: FullStore, names: Path) -> None:
    io.save_checkpoint(saved(1), names / "one.ckpt")
    store.full = True
    io.save_checkpoint(saved(2), names / "two.ckpt")
    io.remove_checkpoint(names / "one.ckpt")
    store.full = False
    again = lightning.KeepstepIO(store, job="run")
    assert step_of(again.load_checkpoint(again.last_valid())) == 1
    assert [commit.pinned for commit in Repository(store, "run").commits()] == [True]
    io.save_checkpoint(saved(3), names / "three.ckpt")
    assert [commit.pinned for commit in Repository(store, "run").commits()] == [True, False]


def test_retention_keeps_what_lightning_holds_and_never_the_minimum_less(store: FullStore, names: Path) -> None:
    io = lightning.KeepstepIO(store, job="run", settings=Settings(keep=2))
    for step in range(1, 9):
        io.save_checkpoint(saved(step), names / f"{step}.ckpt")
        if step not in (3, 8):
            io.remove_checkpoint(names / f"{step}.ckpt")
    assert [commit.step for commit in Repository(store, "run").commits()] == [8, 7, 3]
    io.remove_checkpoint(names / "3.ckpt")
    io.remove_checkpoint(names / "8.ckpt")
    assert [commit.step for commit in Repository(store, "run").commits()] == [8, 7, 3]
    io.save_checkpoint(saved(9), names / "9.ckpt")
    io.save_checkpoint(saved(10), names / "10.ckpt")
    assert [commit.step for commit in Repository(store, "run").commits()] == [10, 9]


def test_a_name_that_was_removed_and_is_used_again_is_held_again(io: Any, store: FullStore, names: Path) -> None:
    io.save_checkpoint(saved(1), names / "one.ckpt")
    io.remove_checkpoint(names / "one.ckpt")
    for step, name in ((2, "two.ckpt"), (3, "one.ckpt"), (4, "four.ckpt")):
        io.save_checkpoint(saved(step), names / name)
    assert {commit.step: commit.pinned for commit in Repository(store, "run").commits()}[3]


def test_lightning_21431_the_checkpoint_that_was_resumed_from_is_not_deleted(store: FullStore, names: Path) -> None:
    first = lightning.KeepstepIO(store, job="run")
    first.save_checkpoint(saved(4), names / "four.ckpt")
    again = lightning.KeepstepIO(store, job="run")
    again.load_checkpoint(last := again.last_valid())
    again.remove_checkpoint(last)
    again.remove_checkpoint(names / "four.ckpt")
    assert step_of(again.load_checkpoint(last)) == 4


def test_a_name_that_is_used_again_stands_for_the_newest_sound_one(
    io: Any, store: FullStore, names: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        io.save_checkpoint(saved(step), names / "last.ckpt")
    assert step_of(io.load_checkpoint(names / "last.ckpt")) == 2
    assert [commit.pinned for commit in Repository(store, "run").commits()] == [True, False]
    damage(tmp_path / "store", 2)
    again = lightning.KeepstepIO(store, job="run")
    assert step_of(again.load_checkpoint(again.last_valid())) == 1
    assert "is skipped" in caplog.text


def test_pytorch_126952_a_flipped_bit_is_never_loaded(io: Any, store: FullStore, names: Path, tmp_path: Path) -> None:
    io.save_checkpoint(saved(1), names / "one.ckpt")
    damage(tmp_path / "store", 1)
    again = lightning.KeepstepIO(store, job="run")
    with pytest.raises(StateInvalid, match="1 checkpoints of job run exist and none can be used"):
        again.last_valid()
    with pytest.raises(StateInvalid):
        again.load_checkpoint(names / "one.ckpt")


def test_two_trainings_of_one_process_do_not_take_over_each_others_saves(store: FullStore, names: Path) -> None:
    first, second = (lightning.KeepstepIO(store, job="run") for _ in range(2))
    first.save_checkpoint(saved(4), names / "one.ckpt")
    other = saved(4) | {"state_dict": {"w": torch.zeros(50)}}
    second.save_checkpoint(other, names / "two.ckpt")
    assert second.failures == []
    assert torch.equal(second.load_checkpoint(names / "two.ckpt")["state_dict"]["w"], torch.zeros(50))
    assert step_of(second.load_checkpoint(names / "one.ckpt")) == 4


def test_a_name_that_was_never_committed_is_refused_with_advice(io: Any, names: Path) -> None:
    with pytest.raises(StateInvalid, match=r"Resume from last_valid\(\)"):
        io.load_checkpoint(names / "never.ckpt")
    assert io.last_valid() is None


def test_failures_raise_where_the_settings_say_so(store: FullStore, names: Path) -> None:
    io = lightning.KeepstepIO(store, job="run", settings=Settings(raise_failures=True))
    store.full = True
    with pytest.raises(SaveFailed, match="space"):
        io.save_checkpoint(saved(1), names / "one.ckpt")


def test_state_that_cannot_be_kept_is_named(io: Any, names: Path) -> None:
    with pytest.raises(TypeError, match=r"in the state of lightning: rest\.callbacks\.Mine"):
        io.save_checkpoint(saved(1) | {"callbacks": {"Mine": {"when": {1, 2}}}}, names / "one.ckpt")


def test_files_of_lightning_itself_are_loaded_and_never_touched(io: Any, names: Path) -> None:
    names.mkdir()
    torch.save(saved(7), names / "old.ckpt")
    before = (names / "old.ckpt").read_bytes()
    assert step_of(io.load_checkpoint(names / "old.ckpt")) == 7
    io.save_checkpoint(saved(8), names / "old.ckpt")
    io.remove_checkpoint(names / "old.ckpt")
    assert (names / "old.ckpt").read_bytes() == before
    assert step_of(io.load_checkpoint(io.last_valid())) == 8


def test_a_rank_that_was_not_there_before_draws_numbers_of_its_own(io: Any) -> None:
    """Derived from the saved seed, the step and the rank: the same every time, and no other rank's."""
    callback = io.callback()
    drawn = []
    for rank in (0, 1, 2, 1):
        trainer = SimpleNamespace(
            global_rank=rank, global_step=5, strategy=SimpleNamespace(broadcast=lambda key: key),
        )  # fmt: skip
        torch.manual_seed(9)
        callback.on_load_checkpoint(trainer, None, {"keepstep": {"generators": [generators.capture()], "key": "1"}})
        torch.rand(4)
        callback.on_fit_start(trainer, None)
        drawn.append(torch.rand(1).item())
    torch.manual_seed(9)
    assert drawn[0] == torch.rand(1).item()
    assert len(set(drawn)) == 3
    assert drawn[1] == drawn[3]


# ---- written behind by a snapshot server


def test_written_behind_a_save_is_named_when_it_is_committed(start_node: Any, tmp_path: Path, names: Path) -> None:
    """AsyncCheckpointIO tells its errors at the next save, and ModelCheckpoint removes the older one at once."""
    node = start_node()
    node.begin(1, 1)
    client: SnapshotClient = node.client(0, 1)
    directory = tmp_path / "checkpoints"
    io = lightning.KeepstepIO(directory, job="job", settings=Settings(client=client))
    state = saved(1)
    io.save_checkpoint(state, names / "one.ckpt")
    state["state_dict"]["w"].zero_()
    io.save_checkpoint(saved(2), names / "two.ckpt")
    io.save_checkpoint(saved(2), names / "last.ckpt")
    io.remove_checkpoint(names / "one.ckpt")
    io.teardown()
    assert io.failures == []
    again = lightning.KeepstepIO(directory, job="job")
    assert step_of(again.load_checkpoint(again.last_valid())) == 2
    assert step_of(again.load_checkpoint(names / "one.ckpt")) == 1
    assert (
        step_of(again.load_checkpoint(names / "two.ckpt")) == step_of(again.load_checkpoint(names / "last.ckpt")) == 2
    )
    commits = Repository(PosixStore(directory), "job").commits()
    assert [(commit.step, commit.pinned) for commit in commits] == [(2, True), (2, True), (1, False)]


def test_kempnerforge_102_a_save_that_was_only_dispatched_is_no_checkpoint(
    start_node: Any, tmp_path: Path, names: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = start_node()
    node.begin(1, 1)
    directory = tmp_path / "checkpoints"
    io = lightning.KeepstepIO(directory, job="job", settings=Settings(client=node.client(0, 1)))
    io.save_checkpoint(saved(1), names / "one.ckpt")
    io._keeping.finish()
    node.process.send_signal(signal.SIGSTOP)
    io.save_checkpoint(saved(2), names / "two.ckpt")
    assert io.failures == []
    io.remove_checkpoint(names / "one.ckpt")
    node.kill()
    with caplog.at_level(logging.ERROR):
        io.teardown()
    assert [failure.step for failure in io.failures] == [2]
    assert "the run goes on with the older one" in caplog.text
    again = lightning.KeepstepIO(directory, job="job")
    assert step_of(again.load_checkpoint(again.last_valid())) == 1
    with pytest.raises(StateInvalid, match="was committed as"):
        again.load_checkpoint(names / "two.ckpt")


def test_several_ranks_are_not_written_behind(start_node: Any, tmp_path: Path) -> None:
    node = start_node()
    node.begin(1, 2)
    with pytest.raises(ValueError, match="rank 0 alone"):
        lightning.KeepstepIO(tmp_path / "checkpoints", job="job", settings=Settings(client=node.client(0, 2)))
