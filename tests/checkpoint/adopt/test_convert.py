"""Exports come back bit for bit, other libraries read them, and nothing is overwritten or left half done."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.warm import Warm

from keepstep.checkpoint import SaveFailed, StateInvalid, flatten
from keepstep.checkpoint.adopt.adopted import adopt
from keepstep.checkpoint.adopt.convert import export_dcp, export_safetensors
from keepstep.checkpoint.adopt.load import load
from keepstep.checkpoint.adopt.recognise import recognise

from .makers import tied_state

Export = Callable[[Any, Path], None]
EXPORTS = pytest.mark.parametrize("export", [export_safetensors, export_dcp])


def same(left: Any, right: Any) -> bool:
    """Equal as trees: types, order, ties, and every bit."""
    one, other = flatten(left), flatten(right)
    return one.index == other.index and all(map(same_bits, one.leaves, other.leaves))


def same_bits(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.contiguous().reshape(-1).view(torch.uint8).equal(right.reshape(-1).view(torch.uint8))
    return bool(left.tobytes() == right.tobytes())


@EXPORTS
def test_the_way_back_is_exact(export: Export, tmp_path: Path) -> None:
    groups = tied_state()
    export(groups, tmp_path / "out")
    found = load(tmp_path / "out")
    assert list(found.groups) == list(groups)
    for name, tree in groups.items():
        assert same(found.groups[name], tree), name
    model = found.groups["model"]
    assert model["embed"].data_ptr() == model["head"].data_ptr()
    assert found.left_out == ()
    assert adopt(tmp_path / "out").problems == ()


arrays = hnp.arrays(
    st.one_of(hnp.boolean_dtypes(), hnp.integer_dtypes(endianness="?"), hnp.floating_dtypes(endianness="?"),
              hnp.complex_number_dtypes(), hnp.unicode_string_dtypes(min_len=1)),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
)  # fmt: skip
names = st.text("ab.~_é/ ", max_size=4) | st.sampled_from(["__metadata__", "0", "value"])
trees = st.recursive(
    arrays | st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.integers(0, 3), inner, max_size=3),
    max_leaves=8,
)


@EXPORTS
def test_any_tree_comes_back(export: Export, tmp_path: Path) -> None:
    numbers = itertools.count()

    @given(st.dictionaries(st.sampled_from(["a", "a.b", "model_1"]), trees, min_size=1, max_size=2))
    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def round_trip(groups: dict[str, Any]) -> None:
        path = tmp_path / str(next(numbers))
        export(groups, path)
        found = load(path).groups
        assert all(same(found[group], tree) for group, tree in groups.items())

    round_trip()


def test_the_safetensors_library_reads_what_is_exported(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    groups = tied_state()
    export_safetensors(groups, tmp_path / "out")
    found = library.load_file(tmp_path / "out" / "model.safetensors")
    model = groups["model"]
    assert set(found) == set(model) - {"head"}
    for name in set(found) - {"wide"}:
        assert found[name].dtype == model[name].dtype and same_bits(model[name].contiguous(), found[name])


def test_pytorch_reads_what_is_exported(tmp_path: Path) -> None:
    groups = tied_state()
    export_dcp(groups, tmp_path / "out")
    state = {"model": {name: torch.zeros_like(tensor) for name, tensor in groups["model"].items()}, "step": 0}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    assert state["step"] == 7
    for name, tensor in groups["model"].items():
        assert same_bits(tensor.contiguous(), state["model"][name].contiguous()), name


@EXPORTS
def test_nothing_is_overwritten(export: Export, tmp_path: Path) -> None:
    for name, make in (("file", Path.touch), ("folder", Path.mkdir)):
        make(tmp_path / name)
        with pytest.raises(SaveFailed, match="nothing is overwritten"):
            export({"model": {"w": torch.ones(2)}}, tmp_path / name)
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(SaveFailed, match="nothing is overwritten"):
        export({"model": {"w": torch.ones(2)}}, tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "link"]


@EXPORTS
def test_a_failure_leaves_nothing_behind(export: Export, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        export({"model": {"w": object()}}, tmp_path / "out")
    with pytest.raises(SaveFailed, match="cannot be a file name"):
        export({"../model": {"w": torch.ones(2)}}, tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(SaveFailed, match="was not written"):
        export({"model": {"w": torch.ones(2)}}, tmp_path / "file" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("export", ["export_safetensors", "export_dcp"])
def test_a_full_disk_leaves_nothing_behind(export: str, tmp_path: Path, warm_torch: Warm) -> None:
    code = (
        "import resource, signal, sys, torch\n"
        f"from keepstep.checkpoint.adopt.convert import {export} as export\n"
        "from keepstep.checkpoint import SaveFailed\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))\n"
        "try:\n    export({'model': {'w': torch.ones(100000)}}, sys.argv[1])\n"
        "except SaveFailed as error:\n    print(error)\n"
    )
    target, script = tmp_path / "target", tmp_path / "script.py"
    target.mkdir()
    script.write_text(code)
    said = warm_torch.run([str(script), str(target / "out")], tmp_path, os.environ)
    assert "was not written" in said or "could not write" in said, said
    assert list(target.iterdir()) == []


@EXPORTS
def test_a_bit_flipped_in_an_export_is_found_by_the_import(export: Export, tmp_path: Path) -> None:
    export({"model": {"w": torch.arange(1.0, 9.0)}, "step": 7}, tmp_path / "out")
    for file in sorted((tmp_path / "out").iterdir()):
        data = bytearray(file.read_bytes())
        at = data.find(torch.arange(1.0, 9.0).numpy().tobytes())
        at = len(data) // 2 if at < 0 else at + 6
        data[at] ^= 1
        file.write_bytes(data)
        with pytest.raises(StateInvalid):
            load(tmp_path / "out")
        data[at] ^= 1
        file.write_bytes(data)
    assert load(tmp_path / "out").groups["step"] == 7


def test_groups_named_like_steps_are_one_checkpoint(tmp_path: Path) -> None:
    export_safetensors({"model_1": {"w": torch.ones(2)}, "model_2": {"w": torch.zeros(2)}}, tmp_path / "step-5")
    found = recognise(tmp_path / "step-5")
    assert found is not None and (found.format, found.step) == ("safetensors", 5)
    assert load(tmp_path / "step-5").groups["model_2"]["w"].tolist() == [0.0, 0.0]


def test_exports_of_numpy_states_to_safetensors_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np\n"
        "from keepstep.checkpoint.adopt.convert import export_safetensors\n"
        "from keepstep.checkpoint.adopt.load import load\n"
        "from keepstep.checkpoint.adopt.adopted import adopt\n"
        "export_safetensors({'model': {'w': np.arange(5), 'n': 3}}, sys.argv[1])\n"
        "assert load(sys.argv[1]).groups['model']['w'].tolist() == [0, 1, 2, 3, 4]\n"
        "assert adopt(sys.argv[1]).problems == ()\n"
        "assert not {'torch', 'tensorstore', 'jax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=True, timeout=120)


def test_a_numpy_array_becomes_a_tensor_for_others(tmp_path: Path) -> None:
    export_dcp({"own": {"x": np.arange(3, dtype=np.float32)}}, tmp_path / "out")
    state = {"own": {"x": torch.zeros(3)}}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    assert state["own"]["x"].tolist() == [0.0, 1.0, 2.0]
