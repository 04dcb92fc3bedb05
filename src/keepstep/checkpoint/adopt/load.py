"""Reads foreign checkpoints, and our own exports, into a state: groups of trees, as ``state.tree`` keeps them.

Everything is validated first, and anything wrong refuses the whole. No pickle is ever run: what only somebody's own code
could make is left out and named.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from keepstep.checkpoint.adopt import dcp, lightning, torch_file, trainer
from keepstep.checkpoint.adopt.inventory import Format, Inventory, Piece, Tensor, root_of
from keepstep.checkpoint.adopt.reading import read_json
from keepstep.checkpoint.adopt.rebuild import Files, tensor_of, value_of
from keepstep.checkpoint.adopt.recognise import inspect
from keepstep.checkpoint.adopt.sidecar import check, read_sidecar, restore
from keepstep.checkpoint.adopt.validate import Progress, validate
from keepstep.checkpoint.errors import StateInvalid

_LIGHTNING_GROUPS = {"state_dict": "model", "optimizer_states": "optimizer", "lr_schedulers": "scheduler"}


class Imported(Struct, kw_only=True):
    """``groups``: name -> tree, with CPU tensors that belong to the caller."""

    format: Format
    step: int | None
    groups: dict[str, Any]
    left_out: tuple[str, ...]
    """Names of what was not imported, because making it would run somebody's code."""
    warnings: tuple[str, ...]


def load(path: str | os.PathLike[str], *, finite: bool = False, progress: Progress | None = None) -> Imported:
    """Import a checkpoint. Needs torch. ``finite``: also refuse values that are NaN or infinite.

    Raises StateInvalid that says everything that is wrong with it. Orbax directories are adopted, not imported.
    """
    inventory, warnings = _fit(path, finite, progress)
    path = Path(inventory.path)
    left_out: list[str] = []
    with Files(root_of(path)) as files:
        sidecar = read_sidecar(path) if path.is_dir() else None
        if sidecar is not None and inventory.format in ("dcp", "safetensors"):
            pieces = _pieces(inventory, files)
            groups = {name: restore(group, pieces, files.readers) for name, group in sidecar.groups.items()}
        else:
            groups = _READ[inventory.format](path, inventory, files, left_out)
    return Imported(
        format=inventory.format, step=inventory.step, groups=groups, left_out=tuple(left_out), warnings=warnings
    )


def check_export(path: Path) -> None:
    """Read an export back, a tensor at a time. Raises StateInvalid if it would not be loaded as it was written."""
    inventory, _ = _fit(path, finite=False, progress=None)
    sidecar = read_sidecar(path)
    if sidecar is None:
        raise StateInvalid(f"{path} has no sidecar")
    with Files(path) as files:
        pieces = _pieces(inventory, files)
        for group in sidecar.groups.values():
            check(group, pieces, files.readers)


def _fit(path: str | os.PathLike[str], finite: bool, progress: Progress | None) -> tuple[Inventory, tuple[str, ...]]:
    """The inventory of a checkpoint without problems, and its warnings."""
    inventory = inspect(path)
    if inventory.format == "orbax":
        raise StateInvalid(f"{path} is Orbax's: load it with Orbax and save it here, or adopt it as it is")
    found = validate(inventory, finite=finite, progress=progress)
    if found.problems:
        raise StateInvalid(f"{path} is not fit to be imported: {'; '.join(found.problems)}")
    return inventory, found.warnings


def _pieces(inventory: Inventory, files: Files) -> dict[str, Piece]:
    """Where each whole tensor is; the files are opened."""
    pieces: dict[str, Piece] = {}
    for tensor in inventory.tensors:
        for piece in tensor.pieces:
            if piece.shape == tensor.shape and piece.stride is None:
                pieces[tensor.name] = piece
                files.reader(piece.file)
    return pieces


def _safetensors(_: Path, inventory: Inventory, files: Files, __: list[str]) -> dict[str, Any]:
    return {"model": {tensor.name: tensor_of(tensor, files) for tensor in inventory.tensors}}


def _pickled(path: Path, file: str, files: Files, left_out: list[str]) -> Any:
    reader = files.reader(file)
    return value_of(torch_file.parse(reader, name=file), reader, file, left_out)


def _torch(path: Path, _: Inventory, files: Files, left_out: list[str]) -> dict[str, Any]:
    value = _pickled(path, path.name, files, left_out)
    named = isinstance(value, dict) and value and all(type(key) is str for key in value)
    if named and any(isinstance(child, (dict, list)) for child in value.values()):
        return dict(value)
    return {"model": value}


def _lightning(path: Path, inventory: Inventory, files: Files, left_out: list[str]) -> dict[str, Any]:
    sharded = path.is_dir()
    value = _pickled(path, lightning.META if sharded else path.name, files, left_out)
    groups = _dcp(path, inventory, files, left_out) if sharded else {}
    rest = {}
    for key, child in value.items():
        if (group := _LIGHTNING_GROUPS.get(key)) is not None and group not in groups:
            groups[group] = child
        else:
            rest[key] = child
    groups["lightning"] = rest
    return groups


def _trainer(path: Path, inventory: Inventory, files: Files, left_out: list[str]) -> dict[str, Any]:
    groups: dict[str, Any] = {"trainer": read_json(path / trainer.STATE)}
    safe = {tensor.name.removeprefix("model."): tensor for tensor in inventory.tensors if _is_safe(tensor)}
    model = {name: tensor_of(tensor, files) for name, tensor in safe.items()}
    generators: dict[int, Any] = {}
    for file in sorted(file.path for file in inventory.files):
        if trainer.WEIGHTS_NAME.fullmatch(file):
            model.update(_pickled(path, file, files, left_out))
        elif match := trainer.RNG_NAME.fullmatch(file):
            generators[int(match[1] or 0)] = _pickled(path, file, files, left_out)
        elif trainer.PICKLED_NAME.fullmatch(file) and file != trainer.SETTINGS:
            groups[file.rpartition(".")[0]] = _pickled(path, file, files, left_out)
        elif file.endswith(f"/{dcp.METADATA}"):
            top = file.split("/")[0]
            with Files(path / top) as inner:
                groups[top] = _dcp(path / top, dcp.inspect(path / top), inner, left_out)
        elif not file.endswith((".json", ".safetensors", ".distcp")):
            left_out.append(file)
    if model:
        groups["model"] = model
    if generators:
        groups["rng"] = generators
    return groups


def _is_safe(tensor: Tensor) -> bool:
    return bool(tensor.pieces) and tensor.pieces[0].file.endswith(".safetensors")


def _dcp(path: Path, inventory: Inventory, files: Files, left_out: list[str]) -> dict[str, Any]:
    tree: dict[Any, Any] = {}
    if not (path / dcp.METADATA).exists():
        return {"model": {tensor.name: tensor_of(tensor, files) for tensor in inventory.tensors}}
    index = dcp.read_index(path)
    for tensor in inventory.tensors:
        if tensor.name in index.tensors:
            _put(tree, index.paths.get(tensor.name, (tensor.name,)), tensor_of(tensor, files))
    for name in index.values:
        part = index.slices[name, None]
        reader = files.reader(part.file)
        parsed = torch_file.parse(reader, part.offset, part.size_bytes, name=part.file)
        _put(tree, index.paths.get(name, (name,)), value_of(parsed, reader, name, left_out))
    return {str(key): _lists(child) for key, child in tree.items()}


class _Branch(dict[Any, Any]):
    """A container that was taken apart: told from a dict that is a value."""


def _put(tree: dict[Any, Any], path: tuple[str | int, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, _Branch())
        if type(tree) is not _Branch:
            raise StateInvalid(f"{dcp.METADATA} has a name inside of another")
    if path[-1] in tree:
        raise StateInvalid(f"{dcp.METADATA} names one place twice")
    tree[path[-1]] = value


def _lists(node: Any) -> Any:
    if type(node) is not _Branch:
        return node
    children = {key: _lists(child) for key, child in node.items()}
    if children and all(type(key) is int for key in children) and set(children) == set(range(len(children))):
        return [children[at] for at in range(len(children))]
    return children


_READ: dict[str, Callable[[Path, Inventory, Files, list[str]], dict[str, Any]]] = {
    "dcp": _dcp, "torch": _torch, "lightning": _lightning, "trainer": _trainer, "safetensors": _safetensors,
}  # fmt: skip
