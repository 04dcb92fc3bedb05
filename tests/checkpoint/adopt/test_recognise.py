"""Whose checkpoint is it, which step, and is it whole: by content, each one alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keepstep.checkpoint import StateInvalid
from keepstep.checkpoint.adopt.inventory import step_from_name
from keepstep.checkpoint.adopt.recognise import recognise, recognise_all

Sample = Callable[[str], Path]


@pytest.mark.parametrize(
    ("kind", "form", "step"),
    [
        ("torch_zip", "torch", 7), ("torch_legacy", "torch", 7), ("dcp_plain", "dcp", 7), ("dcp_safetensors", "dcp", 7),
        ("dcp_shards", "dcp", 7), ("safetensors_file", "safetensors", 7), ("safetensors_sharded", "safetensors", None),
        ("trainer", "trainer", 10), ("lightning", "lightning", 8), ("orbax_ocdbt", "orbax", 10), ("orbax_zarr", "orbax", 10),
    ],
)  # fmt: skip
def test_each_format_is_known_by_its_content(originals: Sample, kind: str, form: str, step: int | None) -> None:
    found = recognise(originals(kind))
    assert found is not None
    assert (found.format, found.step, found.complete, found.why) == (form, step, True, "")


@pytest.mark.parametrize("kind", ["dcp_plain", "torch_zip", "safetensors_file"])
def test_a_name_that_only_begins_like_a_step_gives_no_step(sample: Sample, kind: str) -> None:
    path = sample(kind)
    backup = path.rename(path.with_name("step-100.backup"))
    found = recognise(backup)
    assert found is not None and found.complete
    assert found.step is None


def test_the_content_tells_the_step_where_a_name_says_otherwise(sample: Sample) -> None:
    path = sample("trainer")
    renamed = path.rename(path.with_name("checkpoint-5000"))
    found = recognise(renamed)
    assert found is not None and found.step == 10


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-10", 10), ("step-100", 100), ("100", 100), ("iter_0000100", 100), ("epoch=1-step=8.ckpt", 8),
        ("epoch=1-step=8-v2.ckpt", 8), ("global_step12", 12), ("checkpoint-10-best", None), ("step-100.backup", None),
        ("old-step-100", None), ("tmp-checkpoint-10", None), ("checkpoint-", None), ("1e3", None), ("-5", None),
        ("10.orbax-checkpoint-tmp-123", None), ("checkpoint-" + "9" * 40, None),
    ],
)  # fmt: skip
def test_only_exact_names_have_a_step(name: str, step: int | None) -> None:
    assert step_from_name(name) == step


def test_a_parent_gives_its_checkpoints_in_order_of_step_and_never_of_text(sample: Sample, tmp_path: Path) -> None:
    parent = tmp_path / "run"
    original = sample("dcp_plain")
    for step in (10, 9, 100, 1):
        shutil.copytree(original, parent / f"checkpoint-{step}")
    shutil.copytree(original, parent / "checkpoint-9.backup")
    (parent / "notes").mkdir()
    (parent / "readme.txt").write_text("PK")
    (parent / "latest").symlink_to("checkpoint-100")
    (parent / "checkpoint-10" / ".metadata").unlink()
    found = recognise_all(parent)
    assert [Path(one.path).name for one in found] == [
        "checkpoint-9.backup", "checkpoint-1", "checkpoint-9", "checkpoint-10", "checkpoint-100",
    ]  # fmt: skip
    assert [one.complete for one in found] == [True, True, True, False, True]


def test_both_steps_of_a_real_trainer_are_found(originals: Sample) -> None:
    assert [one.step for one in recognise_all(originals("trainer").parent)] == [9, 10]


@pytest.mark.parametrize(
    ("kind", "removed", "says"),
    [
        ("dcp_plain", ".metadata", "never completed"),
        ("trainer", "trainer_state.json", "written last"),
        ("orbax_ocdbt", "commit_success.txt _CHECKPOINT_METADATA", "lost the marker"),
    ],
)
def test_what_was_never_completed_is_reported_and_not_garbage(
    sample: Sample, kind: str, removed: str, says: str
) -> None:
    path = sample(kind)
    for name in removed.split():
        (path / name).unlink()
    found = recognise(path)
    assert found is not None and not found.complete
    assert says in found.why


@pytest.mark.parametrize("name", ["tmp-checkpoint-10", ".tmp-1", "step-7.tmp"])
def test_a_temporary_name_is_not_complete(sample: Sample, name: str) -> None:
    path = sample("dcp_plain")
    found = recognise(path.rename(path.with_name(name)))
    assert found is not None and not found.complete


def test_orbax_with_its_temporary_name_is_not_complete(sample: Sample) -> None:
    path = sample("orbax_ocdbt")
    found = recognise(path.rename(path.with_name("10.orbax-checkpoint-tmp-1234")))
    assert found is not None and not found.complete


def test_an_old_orbax_without_a_marker_file_is_complete_by_its_commit_time(sample: Sample) -> None:
    path = sample("orbax_ocdbt")
    for marker in path.rglob("commit_success.txt"):
        marker.unlink()
    found = recognise(path)
    assert found is not None and found.complete


@pytest.mark.parametrize("size", [0, 4, 400])
def test_a_torch_file_that_is_cut_short_is_known_and_not_complete(sample: Sample, size: int) -> None:
    path = sample("torch_zip")
    path.write_bytes(path.read_bytes()[:size])
    found = recognise(path)
    assert found is None if size < 400 else found is not None and not found.complete


def test_other_things_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04" + b"\0" * 100)
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(json.dumps({"a": 1}))
    for name in ("a.zip", "text.pt", "folder", "."):
        assert recognise(tmp_path / name) is None


def test_what_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(StateInvalid, match="cannot be opened"):
        recognise(tmp_path / "absent")
    with pytest.raises(StateInvalid, match="cannot be listed"):
        recognise_all(tmp_path / "absent")


def test_keepsteps_own_directory_is_known(tmp_path: Path) -> None:
    for name in ("commits/00000000000000000001.json", "steps/00000001-g1-a0-0123abcd/receipts/0"):
        (tmp_path / "own" / name).parent.mkdir(parents=True)
        (tmp_path / "own" / name).write_text("{}")
    found = recognise(tmp_path / "own")
    assert found is not None and found.format == "keepstep"
