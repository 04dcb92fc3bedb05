"""Lightning's checkpoints through keepstep: a CheckpointIO, and a callback for what a CheckpointIO cannot see.

    io = KeepstepIO("checkpoints", job="llm")
    trainer = Trainer(plugins=[io], callbacks=[io.callback()], ...)
    trainer.fit(model, ckpt_path=io.last_valid())

A path that Lightning gives is a name: what stands there is a short note, so that Lightning finds its file, and the bytes are
in a commit that says which name it was saved under. Owns that, and the random generators. It is for strategies in which
rank 0 saves everything (one device, DDP); sharded strategies write by themselves and refuse a CheckpointIO.
"""

import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO

from keepstep.checkpoint.errors import StateInvalid
from keepstep.checkpoint.plugs.keeping import Failure, Keeping, Settings
from keepstep.checkpoint.state import generators
from keepstep.checkpoint.state.blob import digest_chunks, pack, unpack
from keepstep.checkpoint.state.tree import flatten
from keepstep.checkpoint.stores.port import Store

log = logging.getLogger("keepstep")

_KEY = "keepstep:"
_NOTE = b"This is the name of a keepstep checkpoint, not its bytes. "
_GROUPS = {"state_dict": "model", "optimizer_states": "optimizer"}
_OWN = "keepstep"
"""Entry of a checkpoint that is ours."""
_PARAMETERS = ("hyper_parameters", "datamodule_hyper_parameters")


class KeepstepIO(CheckpointIO):
    """``where``: directory that all ranks share, or a store. ``job``: names the run in it; another run, another name."""

    def __init__(self, where: str | os.PathLike[str] | Store, *, job: str, settings: Settings | None = None) -> None:
        self._keeping = Keeping(where, job, settings or Settings(), run=secrets.token_hex(8), holds=True)
        client = self._keeping.settings.client
        if client is not None and client.world_size > 1:
            raise ValueError(
                "Lightning lets rank 0 alone save, so a snapshot server of several ranks never gets a whole checkpoint:"
                " leave client out, and checkpoints are written directly"
            )

    @property
    def failures(self) -> list[Failure]:
        """The newest saves that did not become checkpoints."""
        return list(self._keeping.failures)

    def callback(self) -> pl.Callback:
        """Give it to the Trainer with this plugin."""
        return _Callback(self._keeping)

    def last_valid(self) -> str | None:
        """For ``ckpt_path``: the newest checkpoint of which every byte was just verified; None if there is no checkpoint.

        Raises StateInvalid if there are some and none can be used.
        """
        commit = self._keeping.newest()
        return None if commit is None else f"{_KEY}{commit.key}"

    # ---- what Lightning calls, on rank 0 unless it loads

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """When this returns, training may go on. A failure is logged, unless the settings raise it.

        Raises TypeError that names the part of the checkpoint that cannot be kept.
        """
        if storage_options is not None:
            raise TypeError("storage_options mean nothing to keepstep: its store is chosen when the plugin is made")
        name = _name(path)
        rest = {key: value for key, value in checkpoint.items() if key not in _GROUPS}
        for key in _PARAMETERS:
            if isinstance(rest.get(key), Mapping):
                rest[key] = _keepable(key, rest[key])
        groups = {group: checkpoint[key] for key, group in _GROUPS.items() if key in checkpoint}
        groups["lightning"] = {"order": list(checkpoint), "rest": rest}
        failed = len(self._keeping.failures)
        self._keeping.save(int(checkpoint.get("global_step", 0)), name, groups)
        if len(self._keeping.failures) == failed:
            _write_note(Path(name), self._keeping.repository.job)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """By commit: the one that :meth:`last_valid` named, or the newest sound one that was saved under this name.

        Tensors are on the CPU; Lightning moves them. A file that Lightning wrote without keepstep is read by Lightning.
        Raises StateInvalid, or FileNotFoundError.
        """
        if str(path).startswith(_KEY):
            key = str(path).removeprefix(_KEY)
            return _checkpoint(key, self._keeping.load(key))
        for name in dict.fromkeys((_name(path), os.path.realpath(path))):
            found = self._keeping.load_called(name)
            if found is not None:
                return _checkpoint(found[0].key, found[1])
        if os.path.exists(path) and not _is_note(Path(path)):
            loaded: dict[str, Any] = TorchCheckpointIO().load_checkpoint(Path(path), map_location, weights_only)
            return loaded
        raise StateInvalid(
            f"no checkpoint of job {self._keeping.repository.job} was committed as {path}: its save failed or was"
            " interrupted. Resume from last_valid()"
        )

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """A request: the name goes, and retention may let the checkpoint go once a newer one is safe."""
        self._keeping.release(_name(path))
        if _is_note(Path(path)):
            Path(path).unlink(missing_ok=True)

    def teardown(self) -> None:
        self._keeping.finish()


class _Callback(pl.Callback):
    """Random generators of every rank, restored last; and nobody starts over checkpoints that exist."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._saved: dict[str, Any] | None = None
        self._again = False

    def on_save_checkpoint(self, trainer: pl.Trainer, _: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[_OWN] = {
            "generators": _of_all_ranks(trainer, generators.capture()),
            "in_epoch": trainer.fit_loop.epoch_loop.batch_progress.current.ready > 0 and not trainer.is_last_batch,
        }

    def on_load_checkpoint(self, trainer: pl.Trainer, _: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._saved = checkpoint.get(_OWN)
        key = (self._saved or {}).get("key", "")
        if trainer.strategy.broadcast(key) != key:
            raise StateInvalid(f"rank {trainer.global_rank} restores checkpoint {key}, and rank 0 another one")

    def on_fit_start(self, trainer: pl.Trainer, _: pl.LightningModule) -> None:
        # The loader is iterated before on_train_start, and a sampler draws its order then.
        self._restore(trainer)

    def on_train_start(self, trainer: pl.Trainer, _: pl.LightningModule) -> None:
        self._keeping.check_start(trainer.global_step)
        self._again = bool(self._saved and self._saved.get("in_epoch"))

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._again:
            # In the middle of an epoch, what iterating the loader again has drawn was drawn before the save.
            self._restore(trainer)
        self._again, self._saved = False, None

    def _restore(self, trainer: pl.Trainer) -> None:
        ranks = (self._saved or {}).get("generators", ())
        if trainer.global_rank < len(ranks):
            generators.restore(ranks[trainer.global_rank])
        elif ranks:
            generators.derive(ranks[0], trainer.global_step, trainer.global_rank)
            log.warning("rank %d was not there before: its random numbers start anew", trainer.global_rank)


def _of_all_ranks(trainer: pl.Trainer, tree: dict[str, Any]) -> list[Any]:
    """One tree of each rank. A collective, where Lightning has all ranks at the same place."""
    if trainer.world_size == 1:
        return [tree]
    blob = torch.frombuffer(pack(flatten(tree)), dtype=torch.uint8).to(trainer.strategy.root_device)
    sizes = trainer.strategy.all_gather(torch.tensor(blob.numel(), device=blob.device)).flatten().tolist()
    padded = torch.nn.functional.pad(blob, (0, max(sizes) - blob.numel()))
    gathered = trainer.strategy.all_gather(padded).cpu().numpy()
    blobs = [np.array(row[:size]) for row, size in zip(gathered, sizes, strict=True)]
    return [unpack(each, digest_chunks(each).root) for each in blobs]


def _checkpoint(key: str, groups: dict[str, Any]) -> dict[str, Any]:
    """What Lightning saved, in its order."""
    try:
        order, found = groups["lightning"]["order"], dict(groups["lightning"]["rest"])
        found.update({entry: groups[group] for entry, group in _GROUPS.items() if group in groups})
        checkpoint = {entry: found[entry] for entry in order}
    except (LookupError, TypeError) as error:
        raise StateInvalid(
            f"checkpoint {key} was not saved by Lightning: it has the groups {sorted(groups)}"
        ) from error
    checkpoint[_OWN] = {**checkpoint.get(_OWN, {}), "key": key}
    return checkpoint


def _keepable(place: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without those that are objects: they are for people, and no state."""
    kept = {}
    for key, value in parameters.items():
        try:
            flatten(value)
        except TypeError as error:
            log.warning("%s.%s is left out of the checkpoint: %s", place, key, error)
            continue
        kept[key] = value
    return kept


def _name(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(path)


def _write_note(path: Path, job: str) -> None:
    """For Lightning, which looks whether its file exists. Nothing is ever read from it but that it is a note."""
    try:
        if path.exists() and not _is_note(path):
            log.warning("%s is a file of somebody else and is left as it is", path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_NOTE + f"See job {job}.\n".encode())
    except OSError as error:
        log.warning("the note %s could not be written, the checkpoint is committed all the same: %s", path, error)


def _is_note(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_NOTE)) == _NOTE
    except OSError:
        return False
