"""Lightning checkpoints: a ``torch.save`` file with Lightning's keys, or a DCP directory with a ``meta.pt`` beside it."""

from pathlib import Path
from typing import Any

import msgspec

from keepstep.checkpoint.adopt import dcp
from keepstep.checkpoint.adopt.inventory import Inventory
from keepstep.checkpoint.adopt.reading import list_files, opened
from keepstep.checkpoint.adopt.torch_file import Parsed, parse, tensors_of
from keepstep.checkpoint.errors import StateInvalid

VERSION = "pytorch-lightning_version"
META = "meta.pt"


def is_lightning(value: Any) -> bool:
    return type(value) is dict and VERSION in value


def step_of(value: dict[Any, Any]) -> int | None:
    step = value.get("global_step")
    return step if type(step) is int and 0 <= step < 1 << 62 else None


def inspect(path: Path) -> Inventory:
    """What a Lightning checkpoint holds. Raises StateInvalid if its structure cannot be read."""
    name = META if path.is_dir() else path.name
    with opened(path / META if path.is_dir() else path) as reader:
        parsed = parse(reader)
    if not is_lightning(parsed.value):
        raise StateInvalid(f"{name} has no {VERSION}: it is not Lightning's")
    tensors, values = tensors_of(parsed, name)
    problems, warnings = list(parsed.problems), list(parsed.warnings)
    if path.is_dir():
        inner = dcp.inspect(path)
        files, world_size = inner.files, inner.world_size
        tensors = [*inner.tensors, *tensors]
        problems, warnings = [*inner.problems, *problems], [*inner.warnings, *warnings]
        values = [*inner.values, *values]
        sums = (*inner.checksums, *parsed.checksums)
    else:
        files, world_size, sums = list_files(path)[0], None, tuple(parsed.checksums)
        if not parsed.value.get("state_dict"):
            problems.append(f"{name} has no state_dict: there is no model in it")
    return msgspec.structs.replace(
        Inventory(format="lightning", path=str(path)),
        step=step_of(parsed.value), world_size=world_size, tensors=tuple(tensors), values=tuple(values), files=files,
        checksums=sums, problems=tuple(problems), warnings=tuple(warnings), missing_parts=_missing(parsed, path.is_dir()),
    )  # fmt: skip


def _missing(parsed: Parsed, sharded: bool) -> tuple[str, ...]:
    value = parsed.value
    missing = []
    if not sharded and not value.get("optimizer_states"):
        missing.append("optimizer")
    if not value.get("lr_schedulers"):
        missing.append("scheduler")
    # Lightning keeps no generators: only callbacks or a data module of the user's do.
    missing.append("random generators")
    return tuple(missing)
