"""Writes small checkpoints with the libraries that people use."""

import importlib.util
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

PROGRAMS = Path(__file__).parent / "programs"


def training_state() -> dict[str, Any]:
    """Model and optimizer after a step, with every kind of tensor that is easily lost."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    weights = model.state_dict()
    weights["half"] = torch.randn(5).bfloat16()
    weights["eighth"] = torch.randn(8).to(torch.float8_e4m3fn)
    weights["turned"] = torch.randn(3, 4).t()
    weights["one"] = torch.tensor(2.5)
    weights["none"] = torch.empty(0, 3)
    return {"model": weights, "optimizer": optimizer.state_dict(), "scheduler": {"last_epoch": 3}, "step": 7}


def torch_zip(folder: Path) -> Path:
    state = training_state() | {"rng": {"torch": torch.get_rng_state(), "numpy": np.random.default_rng(0).random(4)}}
    torch.save(state, folder / "checkpoint-7.pt")
    return folder / "checkpoint-7.pt"


def torch_legacy(folder: Path) -> Path:
    path = folder / "checkpoint-7.pt"
    torch.save(training_state(), path, _use_new_zipfile_serialization=False)
    return path


def _quiet_save(state: dict[str, Any], **how: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, no_dist=True, **how)


def dcp_plain(folder: Path) -> Path:
    _quiet_save(training_state(), checkpoint_id=folder / "step-7")
    return folder / "step-7"


def dcp_safetensors(folder: Path) -> Path:
    pytest.importorskip("safetensors")
    writer = dcp.FileSystemWriter(folder / "step-7", serialization_format=SerializationFormat.SAFETENSORS)
    _quiet_save(
        {"model": {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(3)}, "step": 7}, storage_writer=writer
    )
    return folder / "step-7"


def dcp_shards(folder: Path) -> Path:
    """The Hugging Face writer where every rank saves its own: no index, no marker."""
    pytest.importorskip("safetensors")
    writer = HuggingFaceStorageWriter(str(folder / "step-7"), save_distributed=True)
    _quiet_save({"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(3)}, storage_writer=writer)
    return folder / "step-7"


def safetensors_file(folder: Path) -> Path:
    library = pytest.importorskip("safetensors.torch")
    path = folder / "model_7.safetensors"
    library.save_file({"w": torch.arange(6.0), "h": torch.ones(3, dtype=torch.bfloat16), "n": torch.empty(0, 2)}, path)
    return path


def safetensors_sharded(folder: Path) -> Path:
    """As ``save_pretrained`` leaves it: several files and an index."""
    library = pytest.importorskip("safetensors.torch")
    path = folder / "model"
    path.mkdir()
    library.save_file({"a": torch.ones(4)}, path / "model-00001-of-00002.safetensors")
    library.save_file({"b": torch.ones(5), "c": torch.ones(2)}, path / "model-00002-of-00002.safetensors")
    (path / "model.safetensors.index.json").write_text(
        '{"metadata":{"total_size":44},"weight_map":{"a":"model-00001-of-00002.safetensors",'
        '"b":"model-00002-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}}'
    )
    return path


def _run(program: str, *arguments: object) -> None:
    command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]


def needs_orbax() -> None:
    """It is used in processes of its own only: jax, once loaded, makes every later fork of this one a warning."""
    if importlib.util.find_spec("orbax") is None or importlib.util.find_spec("jax") is None:
        pytest.skip("orbax is not installed")


def nan_orbax(folder: Path, *, ocdbt: bool) -> Path:
    needs_orbax()
    _run("save_orbax_nan.py", folder / "5", "ocdbt" if ocdbt else "zarr")
    return folder / "5"


def orbax_ocdbt(folder: Path) -> Path:
    needs_orbax()
    _run("save_orbax.py", folder / "run", "ocdbt")
    return folder / "run" / "10"


def orbax_zarr(folder: Path) -> Path:
    needs_orbax()
    _run("save_orbax.py", folder / "run", "zarr")
    return folder / "run" / "10"


MAKERS: dict[str, Callable[[Path], Path]] = {
    made.__name__: made
    for made in (
        torch_zip, torch_legacy, dcp_plain, dcp_safetensors, dcp_shards, safetensors_file, safetensors_sharded,
        orbax_ocdbt, orbax_zarr,
    )
}  # fmt: skip
TRAINED = {"trainer": ("transformers", "checkpoint-10"), "lightning": ("lightning", "checkpoints/epoch=1-step=8.ckpt")}
"""Kinds that whole trainings leave: the library, and where below their folder."""


def tied_state() -> dict[str, Any]:
    """Groups with what exports tend to lose."""
    shared = torch.randn(3, 4)
    model = OrderedDict(
        embed=shared, head=shared, half=torch.randn(5).bfloat16(), eighth=torch.randn(4).to(torch.float8_e5m2),
        zero=torch.tensor(3), empty=torch.empty(0, 3), wide=torch.randn(2).to(torch.complex128), turned=shared.t(),
    )  # fmt: skip
    optimizer = {
        "state": {0: {"step": torch.tensor(1.0)}, 1: {"exp_avg": np.arange(3), "text": np.array(["a", "bb"])}},
        "groups": [(1, 2.5, None, b"x", float("nan"), True)],
        "big": np.arange(3).astype(">i4"), "scalar": np.float32(2), "time": np.array(["2026-11-29"], "M8[D]"),
        "state.0": {"step": torch.tensor(9.0)},
    }  # fmt: skip
    return {"model": model, "optimizer": optimizer, "step": 7, "name": "run-1"}
