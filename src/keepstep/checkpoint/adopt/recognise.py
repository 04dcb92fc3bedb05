"""Whose checkpoint is this? Owns that question, answered by content; a name only ever tells a step.

Nothing is run, and nothing is changed. Names that merely look like a checkpoint's (``step-100.backup``) get no step from
them, and a directory that is not complete is reported as such: never as garbage.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from keepstep.checkpoint.adopt import dcp, lightning, orbax, safetensors_file, torch_file, trainer
from keepstep.checkpoint.adopt.inventory import Foreign, Format, Inventory, step_from_name
from keepstep.checkpoint.adopt.reading import opened, read_json
from keepstep.checkpoint.adopt.sidecar import SIDECAR
from keepstep.checkpoint.errors import StateInvalid

_OWN_RECORD = re.compile(r"\d{20}\.json")
_UNFINISHED_NAME = re.compile(r"tmp-.*|\.tmp-.*|.*\.tmp|.*\.part")
_INSPECT: dict[str, Callable[[Path], Inventory]] = {
    "dcp": dcp.inspect, "torch": torch_file.inspect, "lightning": lightning.inspect, "trainer": trainer.inspect,
    "safetensors": safetensors_file.inspect, "orbax": orbax.inspect,
}  # fmt: skip


def recognise(path: str | os.PathLike[str]) -> Foreign | None:
    """The checkpoint that ``path`` (a file or a directory) is; None if it is none that keepstep knows.

    Reads indexes and headers, no tensors. A link (``latest``) is what it points at. Raises StateInvalid only if ``path``
    is not there or may not be read.
    """
    path = Path(path)
    if path.is_symlink():
        path = path.resolve()
    try:
        found = _directory(path) if path.is_dir() else _file(path)
    except OSError as error:
        raise StateInvalid(f"{path} cannot be read: {error.strerror or error}") from error
    if found is not None and found.complete and _UNFINISHED_NAME.fullmatch(path.name):
        return _foreign(found.format, path, found.step, "its name is that of a save that is not done")
    return found


def recognise_all(parent: str | os.PathLike[str]) -> list[Foreign]:
    """Every checkpoint directly in ``parent``, each judged alone: by step, then name; those without a step come first.

    Symbolic links are passed over: what they point at is found where it is.
    """
    parent = Path(parent)
    try:
        entries = sorted(entry for entry in parent.iterdir() if not entry.is_symlink())
    except OSError as error:
        raise StateInvalid(f"{parent} cannot be listed: {error.strerror or error}") from error
    found = []
    for entry in entries:
        if entry.is_dir() or entry.is_file():
            try:
                foreign = recognise(entry)
            except StateInvalid:
                continue  # it went away, or may not be read: not a checkpoint of ours to judge
            if foreign is not None:
                found.append(foreign)
    return sorted(found, key=lambda foreign: (-1 if foreign.step is None else foreign.step, foreign.path))


def inspect(path: str | os.PathLike[str]) -> Inventory:
    """The inventory of whatever checkpoint ``path`` is. Raises StateInvalid if it is none, or cannot be read at all."""
    foreign = recognise(path)
    if foreign is None:
        raise StateInvalid(
            f"{path} is no checkpoint that keepstep knows: it must be one checkpoint, not a tree of them"
        )
    if foreign.format == "keepstep":
        raise StateInvalid(f"{path} is keepstep's own: it needs no adoption")
    try:
        inventory = _INSPECT[foreign.format](Path(foreign.path))
    except OSError as error:
        raise StateInvalid(f"{path} cannot be read: {error.strerror or error}") from error
    problems = inventory.problems
    if not foreign.complete and foreign.why not in problems:
        problems = (foreign.why, *problems)
    step = foreign.step if inventory.step is None else inventory.step
    return msgspec.structs.replace(inventory, problems=problems, step=step)


def _foreign(kind: Format, path: Path, step: int | None, why: str = "") -> Foreign:
    return Foreign(format=kind, path=str(path), step=step, complete=not why, why=why)


def _file(path: Path) -> Foreign | None:
    named = step_from_name(path.name)
    with opened(path) as reader:
        if safetensors_file.is_safetensors_file(reader):
            return _foreign("safetensors", path, named, _reason(lambda: safetensors_file.read_header(reader)))
        if not torch_file.is_torch_file(reader):
            return None
        try:
            parsed = torch_file.parse(reader)
        except StateInvalid as error:
            # Any zip begins like one of torch's: cut short, it cannot be told apart by more than its first record.
            return (
                _foreign("torch", path, named, str(error))
                if _begins_as_torch(reader.read(0, min(reader.size_bytes, 300)))
                else None
            )
    if lightning.is_lightning(parsed.value):
        step = lightning.step_of(parsed.value)
        return _foreign("lightning", path, named if step is None else step)
    return _foreign("torch", path, named)


def _begins_as_torch(head: bytes) -> bool:
    return not head.startswith(b"PK") or b"/data.pkl" in head


def _reason(check: Callable[[], object]) -> str:
    try:
        check()
    except StateInvalid as error:
        return str(error)
    return ""


def _directory(path: Path) -> Foreign | None:
    try:
        names = {entry.name for entry in os.scandir(path)}
    except OSError as error:
        raise StateInvalid(f"{path} cannot be listed: {error.strerror or error}") from error
    named = step_from_name(path.name)
    if "commits" in names and "steps" in names and any(_OWN_RECORD.fullmatch(name) for name in _list(path / "commits")):
        return _foreign("keepstep", path, None)
    if trainer.STATE in names or {"optimizer.pt", "scheduler.pt"} <= names:
        return _trainer(path, names, named)
    if dcp.METADATA in names:
        return _dcp(path, names, named)
    if any(name.endswith(".distcp") for name in names):
        why = f"it has data files and no {dcp.METADATA}: the save was never completed, or one over it has begun"
        return _foreign("dcp", path, named, why)
    if any(map(dcp.SHARD_NAME.fullmatch, names)):
        return _foreign("dcp", path, named)
    if orbax.looks_like(path):
        return _foreign("orbax", path, named, orbax.unfinished(path))
    if any(name.endswith(".safetensors") for name in names) and (SIDECAR in names or not _holds_several(names)):
        return _foreign("safetensors", path, named)
    return None


def _trainer(path: Path, names: set[str], named: int | None) -> Foreign:
    if trainer.STATE not in names:
        return _foreign("trainer", path, named, f"there is no {trainer.STATE}, which is written last")
    try:
        step = trainer.step_of(read_json(path / trainer.STATE))
    except StateInvalid as error:
        return _foreign("trainer", path, named, str(error))
    return _foreign("trainer", path, named if step is None else step)


def _dcp(path: Path, names: set[str], named: int | None) -> Foreign:
    why = _reason(lambda: dcp.read_index(path))
    if lightning.META in names:
        try:
            with opened(path / lightning.META) as reader:
                value = torch_file.parse(reader).value
        except StateInvalid as error:
            return _foreign("lightning", path, named, why or str(error))
        if lightning.is_lightning(value):
            step = lightning.step_of(value)
            return _foreign("lightning", path, named if step is None else step, why)
    return _foreign("dcp", path, named, why)


def _holds_several(names: set[str]) -> bool:
    """Safetensors files that are each a step of their own: then the directory is a shelf, not a checkpoint."""
    return any(name.endswith(".safetensors") and step_from_name(name) is not None for name in names)


def _list(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
