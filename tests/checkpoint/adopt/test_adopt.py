"""What is adopted is whole, and every bit of it is known again."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from keepstep.checkpoint import StateInvalid
from keepstep.checkpoint.adopt.adopted import Adopted, adopt, compare
from keepstep.checkpoint.adopt.recognise import inspect
from keepstep.checkpoint.adopt.validate import validate

from .makers import MAKERS, nan_orbax

Sample = Callable[[str], Path]
KINDS = sorted(MAKERS)


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_checkpoint_is_adopted_without_a_problem(originals: Sample, kind: str) -> None:
    path = originals(kind)
    adopted = adopt(path)
    assert adopted.problems == ()
    assert adopted.tensors.count > 0
    assert {file.path for file in adopted.files} == {
        str(file.relative_to(path if path.is_dir() else path.parent)) for file in files_of(path)
    }
    assert compare(adopted, path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_survives_json(originals: Sample, kind: str) -> None:
    adopted = adopt(originals(kind))
    assert msgspec.json.decode(msgspec.json.encode(adopted), type=Adopted) == adopted


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_any_file_is_found_afterwards(sample: Sample, kind: str) -> None:
    path = sample(kind)
    adopted = adopt(path)
    for file in files_of(path):
        size = file.stat().st_size
        for at in {0, size // 2, size - 1} if size else ():
            before = file.read_bytes()
            flip(file, at)
            changes = compare(adopted, path)
            assert [(change.path.rpartition("/")[2], change.what) for change in changes] == [(file.name, "content")]
            file.write_bytes(before)
    assert compare(adopted, path) == []


@pytest.mark.parametrize("kind", ["torch_zip", "dcp_plain", "trainer", "lightning"])
def test_a_flipped_bit_in_a_pytorch_file_is_found_even_before(sample: Sample, kind: str) -> None:
    """Their own loaders look at no checksum; the archive has one of each record."""
    path = sample(kind)
    inventory = inspect(path)
    done = 0
    for tensor in inventory.tensors:
        for piece in tensor.pieces:
            file = path / piece.file if path.is_dir() else path
            if not piece.size_bytes or file.suffix == ".safetensors":
                continue
            flip(file, piece.offset)
            assert any("does not match its own checksum" in line for line in validate(inventory).problems)
            flip(file, piece.offset)
            done += 1
    assert done >= 4
    assert validate(inventory).problems == ()


UNCHECKED = ("commit_success.txt", "_CHECKPOINT_METADATA", "_sharding", "ocdbt.process_", "array_metadatas")
"""Files of Orbax that the arrays can be read without, and that nothing says the length of."""


def outcome(path: Path) -> list[str]:
    try:
        return list(adopt(path).problems)
    except StateInvalid as error:
        return [str(error)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", ["nothing", "half", "all but a byte"])
def test_a_file_that_is_cut_short_is_found_by_the_first_look(sample: Sample, kind: str, left: str) -> None:
    path = sample(kind)
    for file in files_of(path):
        inner = str(file.relative_to(path)) if path.is_dir() else file.name
        if any(part in inner for part in UNCHECKED):
            continue
        data = file.read_bytes().rstrip(b"\n")
        file.write_bytes({"nothing": b"", "half": data[: len(data) // 2], "all but a byte": data[:-1]}[left])
        assert outcome(path), file
        file.write_bytes(data)


@pytest.mark.parametrize("kind", ["torch_zip", "torch_legacy", "dcp_plain", "safetensors_file", "dcp_shards"])
def test_bytes_behind_the_end_are_found_by_the_first_look(sample: Sample, kind: str) -> None:
    path = sample(kind)
    for file in files_of(path):
        data = file.read_bytes()
        file.write_bytes(data + b"\0" * 7)
        assert outcome(path), file
        file.write_bytes(data)


@pytest.mark.parametrize(
    "kind", ["torch_zip", "dcp_plain", "safetensors_sharded", "trainer", "orbax_ocdbt", "orbax_zarr"]
)
def test_values_that_are_not_finite_are_a_problem(kind: str, tmp_path: Path, originals: Sample) -> None:
    if kind == "orbax_ocdbt" or kind == "orbax_zarr":
        path = nan_orbax(tmp_path, ocdbt=kind == "orbax_ocdbt")
    elif kind == "torch_zip":
        path = tmp_path / "a.pt"
        torch.save({"model": {"w": torch.tensor([1.0, float("nan"), float("inf")])}}, path)
    else:
        path = tmp_path / "copy"
        shutil.copytree(originals(kind), path)
        tensor = next(t for t in inspect(path).tensors if t.dtype == "float32" and len(t.shape) == 1)
        with open(path / tensor.pieces[0].file, "r+b") as file:
            file.seek(tensor.pieces[0].offset)
            file.write(b"\0\0\xc0\x7f")
    assert any("NaN or infinite" in line for line in adopt(path).problems)
    assert not any("NaN or infinite" in line for line in adopt(path, finite=False).problems)


def test_a_lone_number_may_be_infinite(tmp_path: Path) -> None:
    torch.save({"best_score": torch.tensor(float("inf")), "w": torch.ones(2)}, tmp_path / "a.pt")
    adopted = adopt(tmp_path / "a.pt")
    assert adopted.problems == () and any("infinite" in line for line in adopted.warnings)


def test_a_file_that_went_or_came_is_told(sample: Sample) -> None:
    path = sample("trainer")
    adopted = adopt(path)
    (path / "scheduler.pt").rename(path / "scheduler.bak")
    (path / "config.json").write_text("{}")
    assert [(change.path, change.what) for change in compare(adopted, path)] == [
        ("config.json", "length"), ("scheduler.bak", "added"), ("scheduler.pt", "missing"),
    ]  # fmt: skip
    shutil.rmtree(path)
    assert {change.what for change in compare(adopted, path)} == {"missing"}


def test_a_copy_is_as_good_as_the_original(originals: Sample, sample: Sample) -> None:
    for kind in ("torch_zip", "dcp_plain"):
        adopted = adopt(originals(kind))
        copy = sample(kind)
        assert compare(adopted, copy.rename(copy.with_name("elsewhere"))) == []


def test_progress_reaches_the_end(originals: Sample) -> None:
    calls: list[tuple[int, int]] = []
    adopt(originals("dcp_plain"), progress=lambda done, total: calls.append((done, total)))
    assert all(done <= total for done, total in calls)
    assert calls[-1][0] == calls[-1][1] == sum(file.stat().st_size for file in files_of(originals("dcp_plain")))


def test_what_changes_meanwhile_is_not_adopted(sample: Sample) -> None:
    path = sample("dcp_plain")
    # Long before: the time of a change is a coarse one.
    os.utime(path / ".metadata", (1, 1))
    touched = []

    def touch(*_: int) -> None:
        if not touched:
            touched.append(1)
            flip(path / ".metadata", 3)
            flip(path / ".metadata", 3)

    with pytest.raises(StateInvalid, match="changed while it was read"):
        adopt(path, progress=touch)


def test_a_link_out_of_the_directory_is_not_followed(sample: Sample, tmp_path: Path) -> None:
    path = sample("trainer")
    secret = tmp_path / "secret"
    secret.write_text("{}")
    (path / "config.json").unlink()
    (path / "config.json").symlink_to(secret)
    adopted = adopt(path)
    assert any("config.json is a symbolic link" in line for line in adopted.problems)
    assert "config.json" not in {file.path for file in adopted.files}


def test_parts_that_are_not_there_are_named(sample: Sample) -> None:
    path = sample("trainer")
    assert adopt(path).missing_parts == ()
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (path / name).unlink()
    assert adopt(path).missing_parts == ("optimizer", "scheduler", "random generators")


def test_a_missing_rank_of_generators_is_a_problem(sample: Sample) -> None:
    path = sample("trainer")
    for rank in (0, 1, 3):
        shutil.copy(path / "rng_state.pth", path / f"rng_state_{rank}.pth")
    (path / "rng_state.pth").unlink()
    adopted = adopt(path)
    assert adopted.world_size == 4
    assert any("ranks [2] are missing" in line for line in adopted.problems)


def test_a_shard_that_the_index_names_must_be_there_with_its_tensors(sample: Sample) -> None:
    path = sample("safetensors_sharded")
    index = path / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    told["weight_map"]["c"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(told))
    assert any("lacks 1 of the tensors" in line for line in adopt(path).problems)
    (path / "model-00002-of-00002.safetensors").unlink()
    assert any("missing or unreadable" in line for line in adopt(path).problems)
    told["weight_map"]["c"] = "../../secret.safetensors"
    index.write_text(json.dumps(told))
    assert any("outside the checkpoint" in line for line in adopt(path).problems)


def test_a_name_that_disagrees_with_the_state_is_a_warning(sample: Sample) -> None:
    path = sample("trainer")
    adopted = adopt(path.rename(path.with_name("checkpoint-11")))
    assert adopted.step == 10
    assert any("named after step 11" in line for line in adopted.warnings)


@pytest.mark.parametrize("kind", ["orbax_ocdbt", "orbax_zarr"])
def test_an_array_of_orbax_that_is_gone_is_found(sample: Sample, kind: str) -> None:
    pytest.importorskip("tensorstore")
    path = sample(kind)
    chunks = sorted((path / "state").glob("**/d/*" if kind == "orbax_ocdbt" else "params.w/0.0"))
    found = 0
    for chunk in chunks:
        data = chunk.read_bytes()
        chunk.unlink()
        gone = outcome(path)
        chunk.write_bytes(data[:-1])
        # Some files of OCDBT are left over from the merge of the processes, and nothing refers to them.
        assert bool(gone) == bool(outcome(path))
        found += bool(gone)
        chunk.write_bytes(data)
    assert found and outcome(path) == []


def test_a_damaged_manifest_of_orbax_is_found(sample: Sample) -> None:
    path = sample("orbax_ocdbt")
    manifest = path / "state" / "manifest.ocdbt"
    for at in (0, 5, 20, manifest.stat().st_size - 1):
        flip(manifest, at)
        assert any("manifest" in line for line in outcome(path))
        flip(manifest, at)


def test_a_torch_file_without_checksums_says_so(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    adopted = adopt(tmp_path / "a.pt")
    assert adopted.problems == ()
    assert any("without checksums" in line for line in adopted.warnings)


def test_a_tree_of_checkpoints_is_not_one(originals: Sample) -> None:
    with pytest.raises(StateInvalid, match="no checkpoint that keepstep knows"):
        adopt(originals("trainer").parent)
