"""``checkpoint-N`` directories of the Hugging Face Trainer. Owns which file is which part, and what goes with what."""

import re
from pathlib import Path
from typing import Any

import msgspec

from keepstep.checkpoint.adopt import dcp
from keepstep.checkpoint.adopt.inventory import Checksum, File, Inventory, Tensor, step_from_name
from keepstep.checkpoint.adopt.reading import inside, json_faults, list_files, opened, read_json
from keepstep.checkpoint.adopt.safetensors_file import NO_CHECKSUM, index_of, read_directory, top_files
from keepstep.checkpoint.adopt.torch_file import parse, tensors_of
from keepstep.checkpoint.errors import StateInvalid

STATE = "trainer_state.json"
RNG_NAME = re.compile(r"rng_state(?:_(\d{1,9}))?\.pth")
PICKLED_NAME = re.compile(r"(?:optimizer|scheduler|scaler)\.(?:pt|bin)|rng_state(?:_\d{1,9})?\.pth|training_args\.bin")
_DEEPSPEED_NAME = re.compile(r"global_step\d+/[^/]+\.pt")
WEIGHTS_NAME = re.compile(r"(?:pytorch_model|adapter_model)(?:-\d{5}-of-(\d{5}))?\.bin")
SETTINGS = "training_args.bin"


class _Parts:
    """What was found so far."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.values: list[str] = []
        self.checksums: list[Checksum] = []
        self.problems: list[str] = []
        self.warnings: list[str] = []


def inspect(path: Path) -> Inventory:
    """What a Trainer checkpoint holds. Raises StateInvalid only where the directory cannot be listed."""
    files, odd = list_files(path)
    names = {file.path for file in files}
    parts = _Parts()
    parts.problems += [*odd, *json_faults(path, files)]
    step = _step(path, names, parts)
    _weights(path, files, parts)
    for file in files:
        if PICKLED_NAME.fullmatch(file.path) or _DEEPSPEED_NAME.fullmatch(file.path):
            _pickled(path, file, parts, file.path.rpartition(".")[0])
    for top in sorted({file.path.split("/")[0] for file in files if file.path.endswith(f"/{dcp.METADATA}")}):
        _nested(path, top, parts)
    world_size = _world_size(names, parts)
    return Inventory(
        format="trainer", path=str(path), step=step, world_size=world_size, tensors=tuple(parts.tensors),
        values=tuple(parts.values), files=files, checksums=tuple(parts.checksums), problems=tuple(parts.problems),
        warnings=tuple(parts.warnings), missing_parts=_missing(names),
    )  # fmt: skip


def _step(path: Path, names: set[str], parts: _Parts) -> int | None:
    if STATE not in names:
        parts.problems.append(f"there is no {STATE}, which is written last: the save was not completed")
        return step_from_name(path.name)
    try:
        step = step_of(read_json(path / STATE))
    except StateInvalid:
        return step_from_name(path.name)  # it was found with the other JSON files
    if step is None:
        parts.problems.append(f"{STATE} has no global_step")
    named = step_from_name(path.name)
    if None not in (step, named) and step != named:
        parts.warnings.append(f"it is named after step {named} and says that it is of step {step}")
    return step


def step_of(state: Any) -> int | None:
    step = state.get("global_step") if type(state) is dict else None
    return step if type(step) is int and 0 <= step < 1 << 62 else None


def _weights(path: Path, files: tuple[File, ...], parts: _Parts) -> None:
    weights = top_files(files)
    if weights or index_of(files):
        found = read_directory(path, weights, index_of(files))
        parts.tensors += [msgspec.structs.replace(tensor, name=f"model.{tensor.name}") for tensor in found.tensors]
        parts.problems += found.problems
        parts.warnings.append(NO_CHECKSUM)
    pickled = [file for file in files if WEIGHTS_NAME.fullmatch(file.path)]
    for file in pickled:
        _pickled(path, file, parts, "model")
    told = {int(match[1]) for file in pickled if (match := WEIGHTS_NAME.fullmatch(file.path)) and match[1]}
    if told and told != {len(pickled)}:
        parts.problems.append(f"{len(pickled)} weight files are there where their names say {max(told)}")
    sharded = any(file.path.startswith(("pytorch_model_fsdp_", "global_step")) for file in files)
    if not weights and not pickled and not sharded:
        parts.problems.append("there are no weights in it")


def _pickled(path: Path, file: File, parts: _Parts, prefix: str) -> None:
    try:
        with opened(inside(path, file.path)) as reader:
            parsed = parse(reader, name=file.path)
        tensors, values = tensors_of(parsed, file.path, prefix)
    except StateInvalid as error:
        parts.problems.append(str(error))
        return
    parts.problems += parsed.problems
    # The settings are a pickle of transformers' own classes, always: nobody needs to be told each time.
    parts.warnings += parsed.warnings if file.path != SETTINGS else []
    parts.tensors += tensors
    parts.values += values
    parts.checksums += parsed.checksums


def _nested(path: Path, top: str, parts: _Parts) -> None:
    """Sharded training keeps the model and the optimizer as DCP directories inside."""
    try:
        found = dcp.inspect(path / top, prefix=f"{top}/")
    except StateInvalid as error:
        parts.problems.append(f"{top}: {error}")
        return
    parts.tensors += [msgspec.structs.replace(tensor, name=f"{top}.{tensor.name}") for tensor in found.tensors]
    parts.values += [f"{top}.{name}" for name in found.values]
    parts.checksums += found.checksums
    parts.problems += [f"{top}: {line}" for line in found.problems]
    parts.warnings += [f"{top}: {line}" for line in found.warnings]


def _world_size(names: set[str], parts: _Parts) -> int | None:
    """One file of generators per rank, or a single one of a single process."""
    ranks = [match[1] for name in names if (match := RNG_NAME.fullmatch(name))]
    numbered = sorted(int(rank) for rank in ranks if rank is not None)
    if numbered and numbered != list(range(len(numbered))):
        lost = sorted(set(range(numbered[-1] + 1)) - set(numbered))
        parts.problems.append(f"the generators of ranks {lost[:10]} are missing")
        return numbered[-1] + 1
    return len(numbered) or (1 if ranks else None)


def _missing(names: set[str]) -> tuple[str, ...]:
    missing = []
    if not any(name.startswith(("optimizer.", "optimizer_", "global_step")) for name in names):
        missing.append("optimizer")
    if not any(name.startswith("scheduler.") for name in names):
        missing.append("scheduler")
    if not any(map(RNG_NAME.fullmatch, names)):
        missing.append("random generators")
    return tuple(missing)
