"""Writes a state as other libraries read it: safetensors files, or a PyTorch DCP directory. ``load`` is the way back.

The groups of a state (name -> tree, see ``state.tree``) become files in one new directory with a sidecar beside them,
which makes the way back exact. The directory appears complete and synced under its name, or not at all; nothing that is
there is ever overwritten.
"""

import contextlib
import os
import re
import secrets
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from keepstep.checkpoint.adopt.load import check_export
from keepstep.checkpoint.adopt.safetensors_file import DTYPES
from keepstep.checkpoint.adopt.sidecar import SIDECAR, GroupIndex, Sidecar, names_of, seal
from keepstep.checkpoint.errors import SaveFailed, StateInvalid
from keepstep.checkpoint.state.blob import digest_of
from keepstep.checkpoint.state.leaves import Spec, item_bytes, leaf_bytes
from keepstep.checkpoint.state.tree import Flat, flatten

_GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_CODES = {name: code for code, name in DTYPES.items()}
_NUMPY_NAMES = {
    "|b1": "bool", "|u1": "uint8", "|i1": "int8", "<u2": "uint16", "<i2": "int16", "<u4": "uint32", "<i4": "int32",
    "<u8": "uint64", "<i8": "int64", "<f2": "float16", "<f4": "float32", "<f8": "float64", "<c8": "complex64",
    "<c16": "complex128",
}  # fmt: skip
"""numpy's dtypes that torch has as well."""
_ALIGN_BYTES = 8
_TEMPORARY_PREFIX = ".tmp-"


def export_safetensors(groups: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write each group to ``<path>/<group>.safetensors`` under dotted names; tied tensors once.

    Values of dtypes that safetensors lacks are kept as bytes; the sidecar knows. ``path`` must not exist. Raises
    TypeError for what a state cannot hold, SaveFailed with nothing left behind if it cannot be written.
    """
    flats = _flats(groups)
    with _new_directory(Path(path)) as folder:
        indexes = {}
        for group, flat in flats.items():
            names = _first_names(flat, "", {"__metadata__"})
            blocks = [_raw(leaf) for leaf in flat.leaves]
            with open(folder / f"{group}.safetensors", "xb") as file:
                _write_safetensors(file, names, flat.specs, blocks)
            indexes[group] = _index(flat, [f"{group}.{name}" for name in names], blocks)
        _finish(folder, indexes)


def export_dcp(groups: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the groups as a DCP directory, with ``<group>.<dotted name>`` as names; tied tensors under each of theirs.

    Plain values under string keys are in it too, so that ``torch.distributed.checkpoint.load`` finds ``step``. Needs
    torch. Errors as in :func:`export_safetensors`.
    """
    import torch

    flats = _flats(groups)
    state: dict[str, Any] = {}
    indexes = {}
    taken: set[str] = set()
    for group, flat in flats.items():
        named = names_of(flat, group, taken)
        blocks = [_raw(leaf) for leaf in flat.leaves]
        for number, names in named.leaves.items():
            tensor = _as_tensor(torch, flat.leaves[number], flat.specs[number], blocks[number])
            state.update(dict.fromkeys(names, tensor))
        state.update(named.scalars)
        indexes[group] = _index(flat, [named.leaves[number][0] for number in range(len(flat.leaves))], blocks)
    with _new_directory(Path(path)) as folder:
        _save_dcp(folder, state)
        _finish(folder, indexes)


def _save_dcp(folder: Path, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # it says that this is a save of one process: it is meant to be
            save(state, storage_writer=FileSystemWriter(folder), no_dist=True)
    except CheckpointException as error:
        # It is no Exception: it would pass by whoever catches those.
        raise SaveFailed(f"torch could not write {folder}: {error}") from error


def _flats(groups: Mapping[str, Any]) -> dict[str, Flat]:
    if sys.byteorder != "little":
        raise SaveFailed("exports are written on little-endian machines only")
    for group in groups:
        if not _GROUP_NAME.fullmatch(group):
            raise SaveFailed(f"group {group!r} cannot be a file name: use letters, digits, '.', '_' and '-'")
    return {group: flatten(tree) for group, tree in groups.items()}


def _first_names(flat: Flat, prefix: str, taken: set[str]) -> list[str]:
    named = names_of(flat, prefix, taken)
    return [named.leaves[number][0] for number in range(len(flat.leaves))]


def _raw(leaf: Any) -> "np.ndarray[Any, Any]":
    """The bytes of a leaf, row by row: a view where it lies so already."""
    if not isinstance(leaf, (np.ndarray, np.generic)):
        import torch

        flat = leaf.detach().cpu().contiguous().reshape(-1)
        raw: np.ndarray[Any, Any] = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        return raw
    array = np.ascontiguousarray(leaf).reshape(-1)
    return array.view(np.uint8) if array.nbytes else np.empty(0, np.uint8)


def _index(flat: Flat, names: list[str], blocks: list[Any]) -> GroupIndex:
    return GroupIndex(index=msgspec.Raw(flat.index), names=tuple(names), digests=tuple(map(digest_of, blocks)))


def _dtype_name(spec: Spec) -> str:
    """torch's name of a leaf's dtype; empty where it has none."""
    return spec[1] if spec[0] == "t" else _NUMPY_NAMES.get(spec[1], "")


def _write_safetensors(file: BinaryIO, names: list[str], specs: tuple[Spec, ...], blocks: list[Any]) -> None:
    order = sorted(range(len(names)), key=lambda number: (-item_bytes(specs[number]) % 1024, names[number]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for number in order:
        spec, size = specs[number], leaf_bytes(specs[number])
        code = _CODES.get(_dtype_name(spec))
        entry = {"dtype": code, "shape": list(spec[2])} if code else {"dtype": "U8", "shape": [size]}
        header[names[number]] = {**entry, "data_offsets": [at, at + size]}
        at += size
    data = msgspec.json.encode(header)
    data += b" " * (-len(data) % _ALIGN_BYTES)
    file.write(len(data).to_bytes(8, "little"))
    file.write(data)
    for number in order:
        file.write(blocks[number])


def _as_tensor(torch: Any, leaf: Any, spec: Spec, block: Any) -> Any:
    if spec[0] == "t":
        return leaf.detach().cpu().contiguous()
    name = _dtype_name(spec)
    if not name:
        return torch.from_numpy(block.copy())
    dtype = getattr(torch, name)
    return (
        torch.from_numpy(block.copy()).view(dtype).reshape(spec[2])
        if block.nbytes
        else torch.empty(spec[2], dtype=dtype)
    )


@contextlib.contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """A directory to write into, beside ``path``; at the end it is checked by reading it, synced, and takes its place."""
    if os.path.lexists(path):
        raise SaveFailed(f"{path} exists: nothing is overwritten. Export to a new name")
    temporary = path.parent / f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    folder = temporary / path.name
    try:
        folder.mkdir(parents=True)
        yield folder
        check_export(folder)
        for file in sorted(folder.iterdir()):
            _sync(file)
        _sync(folder)
        if os.path.lexists(path):
            raise SaveFailed(f"{path} exists: nothing is overwritten. Export to a new name")
        os.rename(folder, path)
        _sync(path.parent)
    except OSError as error:
        raise SaveFailed(f"{path} was not written: {error.strerror or error}") from error
    except StateInvalid as error:
        raise SaveFailed(f"{path} was not written: what was written does not read back as it was: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _finish(folder: Path, indexes: dict[str, GroupIndex]) -> None:
    with open(folder / SIDECAR, "xb") as file:
        file.write(seal(Sidecar(groups=indexes)))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
