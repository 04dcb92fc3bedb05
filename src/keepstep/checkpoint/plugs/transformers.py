"""Hugging Face Trainer: every save of the Trainer becomes a commit, and a resume starts from one.

    last = last_valid("out")
    trainer = Trainer(model, TrainingArguments("out", ...), callbacks=[KeepstepCallback()], ...)
    trainer.train(resume_from_checkpoint=last)

The Trainer goes on writing its own ``checkpoint-N`` directories, which are left alone and not believed: the state is taken
from the live objects, and a directory that the Trainer can load is made from the commit when one is needed. Owns that, and
what the Trainer's own settings would do to it. For training in which every rank has the whole model (one device, DDP).
"""

import logging
import os
import random
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from keepstep.checkpoint.adopt.reading import inside
from keepstep.checkpoint.adopt.recognise import inspect
from keepstep.checkpoint.adopt.validate import validate
from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.plugs.keeping import Failure, Keeping, Settings, first_rank_says
from keepstep.checkpoint.repository.log import key_of
from keepstep.checkpoint.stores.port import Store

log = logging.getLogger("keepstep")

JOB = "trainer"
_PLACE, _RESTORED = "keepstep", "keepstep-restored"
_DIRECTORY = re.compile(r"checkpoint-(\d{1,18})")
_WEIGHTS = "model.safetensors"
_SAVED_LIVE = re.compile(
    r"(?:model|pytorch_model)(?:-\d{5}-of-\d{5})?\.(?:safetensors|bin)(?:\.index\.json)?"
    r"|(?:optimizer|scheduler|scaler)\.pt|rng_state(?:_\d+)?\.pth|training_args\.bin"
)
"""Files whose content is taken from the live objects, or is no state."""
_PICKLED = ("optimizer", "scheduler", "scaler")


class KeepstepCallback(TrainerCallback):
    """``where``: a directory that all ranks share, or a store; by default ``keepstep`` in the Trainer's output directory.

    ``job``: names the run in it; another run, another name. ``rotate``: the Trainer's own directories beyond its
    ``save_total_limit`` go, once keepstep has a VERIFIED checkpoint that is as new; by default they all stay.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | Store | None = None,
        *,
        job: str = JOB,
        settings: Settings | None = None,
        rotate: bool = False,
    ) -> None:
        self._where, self._job, self._settings = where, job, settings or Settings()
        self._rotate, self._limit = rotate, 0
        self._keeping: Keeping | None = None

    @property
    def failures(self) -> list[Failure]:
        """The newest saves that did not become checkpoints."""
        return [] if self._keeping is None else list(self._keeping.failures)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Raises StateInvalid if training would start over checkpoints that exist, ValueError for sharded training."""
        if args.deepspeed or args.fsdp:
            raise ValueError(
                "KeepstepCallback keeps models that every rank has whole: with FSDP save through keepstep's DCP writer,"
                " with DeepSpeed through its own checkpoints, which keepstep adopts"
            )
        if args.save_total_limit is not None:
            self._limit = args.save_total_limit
            log.warning(
                "save_total_limit=%s is not left to the Trainer, which deletes by name and time of change, before the"
                " newer checkpoint is safe: its directories %s, and keepstep keeps %d checkpoints of its own",
                args.save_total_limit,
                "go when keepstep has VERIFIED ones" if self._rotate else "stay (rotate=True lets them go)",
                self._settings.keep,
            )
            args.save_total_limit = None
        run = f"{first_rank_says(secrets.randbits(62)):x}"
        self._keeping = Keeping(_place(str(args.output_dir), self._where), self._job, self._settings, run=run)
        self._keeping.check_start(state.global_step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **live: Any) -> None:
        """Commit the state. A failure is logged, unless the settings raise it."""
        assert self._keeping is not None, "the Trainer begins before it saves"
        name = f"checkpoint-{state.global_step}"
        model, optimizer = live["model"], live["optimizer"]
        scaler = getattr(optimizer, "scaler", None)
        groups = {
            # Of an adapter the Trainer writes a small file, and loads nothing else.
            "model": {} if hasattr(model, "peft_config") else _tensors(model.state_dict()),
            "optimizer": optimizer.state_dict(),
            "scheduler": live["lr_scheduler"].state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else {},
            "rng": _generators(args),
            "files": dict(_files(Path(str(args.output_dir), name))) if args.should_save else {},
        }
        self._keeping.save(state.global_step, name, groups, args.process_index, args.world_size)
        if self._rotate and self._limit > 0 and args.should_save:
            verified = [commit.step for commit in self._keeping.repository.commits() if commit.state == "verified"]
            best = state.best_model_checkpoint
            for step, path in sorted(_directories(Path(str(args.output_dir))).items())[: -self._limit]:
                if step <= max(verified, default=-1) and (best is None or path.resolve() != Path(best).resolve()):
                    shutil.rmtree(path, ignore_errors=True)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._keeping is not None:
            self._keeping.finish()


def last_valid(
    output_dir: str | os.PathLike[str],
    where: str | os.PathLike[str] | Store | None = None,
    *,
    job: str = JOB,
    settings: Settings | None = None,
) -> str | None:
    """For ``resume_from_checkpoint``: a directory with the newest checkpoint of which every byte was just verified.

    Made from the commit in ``keepstep-restored`` of ``output_dir``. Without any commit, the newest directory of the Trainer
    itself that is complete. None only if there is nothing at all; raises StateInvalid if something is there and nothing of
    it can be used. On several ranks a collective, if a process group is up.
    """
    keeping = Keeping(_place(output_dir, where), job, settings or Settings(), run=secrets.token_hex(8))
    commit = keeping.newest()
    seq = first_rank_says(int(commit.key) if commit is not None else 0)
    if seq == 0:
        return _complete_directory(Path(output_dir))
    return str(_restore(keeping, key_of(seq), Path(output_dir)))


def _place(output_dir: str | os.PathLike[str], where: str | os.PathLike[str] | Store | None) -> Any:
    return Path(output_dir, _PLACE) if where is None else where


def _tensors(state: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} of the model is a {type(value).__name__}: a Trainer checkpoint has tensors only")
    return state


def _generators(args: TrainingArguments) -> dict[str, Any]:
    """As the Trainer itself keeps them."""
    found: dict[str, Any] = {
        "python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state(),
    }  # fmt: skip
    if torch.cuda.is_available():
        several = args.parallel_mode.value == "distributed"
        found["cuda"] = torch.cuda.get_rng_state_all() if several else torch.cuda.get_rng_state()
    return found


def _files(directory: Path) -> Iterator[tuple[str, Any]]:
    """What the Trainer wrote besides, as it is: its counters, configuration, tokenizer, adapters."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not _SAVED_LIVE.fullmatch(path.name):
            yield path.relative_to(directory).as_posix(), np.fromfile(path, np.uint8)


# ---- back into a directory


def _restore(keeping: Keeping, key: str, output_dir: Path) -> Path:
    """The directory of a commit, made anew if it is not there. It appears whole; several ranks may make it at once."""
    manifest = keeping.repository.manifest(key)
    parent = output_dir / _RESTORED / key
    target = parent / f"checkpoint-{manifest.step}"
    if target.is_dir():
        return target
    unfinished = parent / f".unfinished-{secrets.token_hex(8)}"
    unfinished.mkdir(parents=True)
    try:
        groups = keeping.load(key)
        if not {"model", "files", "rng", *_PICKLED} <= groups.keys():
            raise StateInvalid(f"checkpoint {key} was not saved by the Trainer: it has the groups {sorted(groups)}")
        ranks = [groups["rng"], *(keeping.load(key, rank)["rng"] for rank in range(1, manifest.world_size))]
        _write(unfinished, groups, ranks)
        os.rename(unfinished, target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    for older in output_dir.joinpath(_RESTORED).iterdir():
        if older.name != key and re.fullmatch(r"\d{20}", older.name):
            shutil.rmtree(older, ignore_errors=True)
    return target


def _write(directory: Path, groups: Mapping[str, Any], ranks: list[Any]) -> None:
    """The files that the Trainer reads, durable."""
    for name, data in groups["files"].items():
        path = inside(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        data.tofile(path)
    if groups["model"]:
        # Tied weights are written under each of their names: the model ties them again.
        weights = {
            name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in groups["model"].items()
        }
        save_file(weights, directory / _WEIGHTS, {"format": "pt"})
    for name in _PICKLED:
        if groups[name]:
            torch.save(groups[name], directory / f"{name}.pt")
    for rank, state in enumerate(ranks):
        # A torch generator (2.13) that is set from a view with an offset takes the wrong bytes, or the process crashes.
        own = {key: _copied(value) for key, value in state.items()}
        torch.save(own, directory / ("rng_state.pth" if len(ranks) == 1 else f"rng_state_{rank}.pth"))
    for path in [*(path for path in directory.rglob("*")), directory, directory.parent]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def _complete_directory(output_dir: Path) -> str | None:
    """The newest ``checkpoint-N`` that the Trainer wrote before keepstep was there, judged by what is in it."""
    found = _directories(output_dir)
    reason = ""
    for step in sorted(found, reverse=True):
        try:
            inventory = inspect(found[step])
            problems = [*validate(inventory).problems, *(f"it has no {part}" for part in inventory.missing_parts)]
        except StateInvalid as error:
            problems = [str(error)]
        if not problems:
            return str(found[step])
        log.warning("%s is skipped: %s", found[step], "; ".join(problems))
        reason = reason or problems[0]
    if found:
        raise StateInvalid(
            f"none of the {len(found)} checkpoints in {output_dir} is complete (step {max(found)}: {reason}): choose one"
            " yourself, or give another output directory"
        )
    return None


def _directories(output_dir: Path) -> dict[int, Path]:
    """What the Trainer itself wrote, by step: exact names, so ``checkpoint-100.backup`` is none of them."""
    entries = output_dir.iterdir() if output_dir.is_dir() else ()
    named = ((_DIRECTORY.fullmatch(entry.name), entry) for entry in entries)
    return {int(match[1]): entry for match, entry in named if match and entry.is_dir() and not entry.is_symlink()}
