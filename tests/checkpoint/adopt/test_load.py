"""Imports from the real libraries: the same values, as those libraries load them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keepstep.checkpoint import StateInvalid, flatten
from keepstep.checkpoint.adopt.adopted import adopt
from keepstep.checkpoint.adopt.load import load

from .makers import training_state
from .test_convert import same

Sample = Callable[[str], Path]


@pytest.mark.parametrize("kind", ["torch_zip", "torch_legacy", "dcp_plain"])
def test_a_training_state_comes_back(originals: Sample, kind: str) -> None:
    found = load(originals(kind))
    state = training_state()
    assert found.left_out == ()
    if kind == "dcp_plain":  # which keeps names only: neither the type of a dict nor that of its keys
        state["model"] = dict(state["model"])
        state["optimizer"]["state"] = {str(key): value for key, value in state["optimizer"]["state"].items()}
    for name in ("model", "optimizer", "scheduler", "step"):
        expected = state[name]
        assert same(plain(found.groups[name]), plain(expected)), name


def plain(tree: Any) -> Any:
    """Tensors without their strides: an import may lay them out row by row."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(plain, tree))
    return tree.contiguous() if isinstance(tree, torch.Tensor) else tree


def test_the_generators_of_a_torch_file_come_back(originals: Sample) -> None:
    found = load(originals("torch_zip")).groups["rng"]
    told = torch.load(originals("torch_zip"), weights_only=False)["rng"]
    assert torch.equal(found["torch"], told["torch"])
    assert np.array_equal(found["numpy"], told["numpy"])


def test_tied_and_overlapping_tensors_of_a_torch_file_stay_so(tmp_path: Path) -> None:
    base = torch.arange(8.0)
    torch.save(
        {"a": base, "b": base, "part": base[2:4], "every": base[::2], "wide": base[:1].expand(3)}, tmp_path / "a.pt"
    )
    found = load(tmp_path / "a.pt").groups["model"]
    found["a"][2] = 100
    assert found["b"][2] == found["part"][0] == found["every"][1] == 100
    assert found["every"].tolist() == [0.0, 100.0, 4.0, 6.0] and found["wide"].tolist() == [0.0] * 3


@pytest.mark.parametrize("kind", ["dcp_safetensors", "dcp_shards", "safetensors_file", "safetensors_sharded"])
def test_the_safetensors_kinds_come_back(originals: Sample, kind: str) -> None:
    model = load(originals(kind)).groups["model"]
    if kind == "dcp_safetensors":
        assert load(originals(kind)).groups["step"] == 7
    expected = {
        "safetensors_file": {"w": torch.arange(6.0), "h": torch.ones(3, dtype=torch.bfloat16), "n": torch.empty(0, 2)},
        "safetensors_sharded": {"a": torch.ones(4), "b": torch.ones(5), "c": torch.ones(2)},
    }.get(kind, {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(3)})
    assert set(model) == set(expected)
    assert all(torch.equal(model[name], expected[name]) and model[name].dtype == expected[name].dtype for name in model)


def test_shards_of_several_ranks_are_joined(originals: Sample, tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    whole = torch.arange(12.0).reshape(4, 3)
    path = tmp_path / "step-1"
    path.mkdir()
    for rank in (0, 1):
        info = f'{{"w": {{"saved_offsets": [{2 * rank}, 0]}}}}'
        part = {"w": whole[2 * rank : 2 * rank + 2].clone()}
        name = f"shard-0000{rank + 1}-model-00001-of-00001.safetensors"
        library.save_file(part, path / name, {"DCP_SHARDING_INFO": info, "DCP_VERSION": "1.0"})
    assert torch.equal(load(path).groups["model"]["w"], whole)
    (path / "shard-00001-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(StateInvalid, match="missing"):
        load(path)


def test_a_trainer_checkpoint_comes_back(originals: Sample) -> None:
    library = pytest.importorskip("safetensors.torch")
    path = originals("trainer")
    found = load(path)
    assert found.step == 10 and found.left_out == ("training_args.bin",)
    weights = library.load_file(path / "model.safetensors")
    assert set(found.groups["model"]) == set(weights)
    assert all(torch.equal(found.groups["model"][name], tensor) for name, tensor in weights.items())
    optimizer = torch.load(path / "optimizer.pt", weights_only=True)
    assert same(found.groups["optimizer"], optimizer)
    assert found.groups["scheduler"] == torch.load(path / "scheduler.pt", weights_only=True)
    generators = torch.load(path / "rng_state.pth", weights_only=False)
    assert torch.equal(found.groups["rng"][0]["cpu"], generators["cpu"])
    assert found.groups["rng"][0]["python"] == generators["python"]
    assert np.array_equal(found.groups["rng"][0]["numpy"][1], generators["numpy"][1])
    assert found.groups["trainer"]["global_step"] == 10


def test_a_lightning_checkpoint_comes_back(originals: Sample) -> None:
    found = load(originals("lightning"))
    told = torch.load(originals("lightning"), weights_only=False)
    assert found.step == told["global_step"] == 8
    assert same(dict(found.groups["model"]), dict(told["state_dict"]))
    assert same(found.groups["optimizer"], told["optimizer_states"])
    assert same(found.groups["scheduler"], told["lr_schedulers"])
    assert found.groups["lightning"]["epoch"] == told["epoch"]


@pytest.mark.parametrize(
    "kind", ["torch_zip", "torch_legacy", "dcp_plain", "trainer", "lightning", "safetensors_sharded"]
)
def test_an_import_is_a_state_that_can_be_saved(originals: Sample, kind: str) -> None:
    for tree in load(originals(kind)).groups.values():
        flatten(tree)


def test_a_lightning_directory_of_shards_comes_back(originals: Sample, tmp_path: Path) -> None:
    path = tmp_path / "epoch=1-step=8.ckpt"
    shutil.copytree(originals("dcp_plain"), path)
    torch.save(
        {"pytorch-lightning_version": "2.6", "global_step": 8, "epoch": 1, "lr_schedulers": [{}]}, path / "meta.pt"
    )
    found = load(path)
    assert (found.format, found.step) == ("lightning", 8)
    assert set(found.groups["model"]) == set(training_state()["model"])
    assert found.groups["lightning"]["epoch"] == 1


def test_what_is_damaged_is_refused_whole(sample: Sample) -> None:
    path = sample("dcp_plain")
    data = bytearray((path / "__0_0.distcp").read_bytes())
    at = data.find(training_state()["model"]["weight"].numpy().tobytes())
    data[at + 3] ^= 1
    (path / "__0_0.distcp").write_bytes(data)
    with pytest.raises(StateInvalid, match="does not match its own checksum"):
        load(path)


def test_orbax_is_adopted_and_not_imported(originals: Sample) -> None:
    with pytest.raises(StateInvalid, match="adopt it as it is"):
        load(originals("orbax_ocdbt"))


def test_values_that_are_not_finite_can_be_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.tensor([float("nan")])}, tmp_path / "a.pt")
    assert load(tmp_path / "a.pt").groups["model"]["w"].isnan().all()
    with pytest.raises(StateInvalid, match="NaN"):
        load(tmp_path / "a.pt", finite=True)


def test_a_link_to_the_latest_is_what_it_points_at(originals: Sample, tmp_path: Path) -> None:
    for kind in ("torch_zip", "dcp_plain"):
        (tmp_path / kind).symlink_to(originals(kind))
        assert load(tmp_path / kind).groups["step"] == 7


def test_a_trainer_checkpoint_of_sharded_training_comes_back(sample: Sample, originals: Sample) -> None:
    path = sample("trainer")
    for name in ("model.safetensors", "optimizer.pt"):
        (path / name).unlink()
    assert any("no weights" in line for line in adopt(path).problems)
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        shutil.copytree(originals("dcp_plain"), path / name)
    adopted = adopt(path)
    assert adopted.problems == () and adopted.missing_parts == ()
    found = load(path)
    assert set(found.groups) == {"trainer", "scheduler", "rng", "pytorch_model_fsdp_0", "optimizer_0"}
    assert torch.equal(found.groups["optimizer_0"]["model"]["weight"], training_state()["model"]["weight"])
    (path / "optimizer_0" / "__0_0.distcp").unlink()
    with pytest.raises(StateInvalid, match="optimizer_0"):
        load(path)


def test_what_deepspeed_keeps_is_checked_and_left_out(sample: Sample) -> None:
    path = sample("trainer")
    (path / "optimizer.pt").unlink()
    (path / "global_step10").mkdir()
    states = path / "global_step10" / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": {"flat": torch.ones(64)}}, states)
    adopted = adopt(path)
    assert adopted.problems == () and adopted.missing_parts == ()
    assert load(path).left_out == (str(states.relative_to(path)), "training_args.bin")
    data = bytearray(states.read_bytes())
    data[data.find(torch.ones(64).numpy().tobytes())] ^= 1
    states.write_bytes(data)
    assert any("does not match its own checksum" in line for line in adopt(path).problems)


def test_a_view_whose_bytes_are_not_its_values_is_left_out(tmp_path: Path) -> None:
    torch.save({"w": torch.tensor([1 + 2j]).conj(), "v": torch.ones(1)}, tmp_path / "a.pt")
    found = load(tmp_path / "a.pt")
    assert found.left_out == ("a.pt.w",) and list(found.groups["model"]) == ["v"]
