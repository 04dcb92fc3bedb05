"""Checkpoints for a training framework that decides itself when to save and under which name.

Owns what the plugs have in common: a name is only a name, and commits alone exist; a failed save is told and is not the end
of the run; a framework's wish to remove something is a request; nobody starts from step 0 over checkpoints that exist.
Must not know any framework.
"""

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from keepstep.checkpoint.errors import CheckpointError, SaveFailed, StateInvalid, Superseded
from keepstep.checkpoint.keys.port import Keys
from keepstep.checkpoint.local import LocalCheckpoints
from keepstep.checkpoint.repository.repository import Commit
from keepstep.checkpoint.snapshot.client import SnapshotClient
from keepstep.checkpoint.state.tree import Flat, flatten
from keepstep.checkpoint.stores.port import Store

log = logging.getLogger("keepstep")

NAME = "name"
"""The group that says what the framework calls a checkpoint."""
_MAX_FAILURES = 100
_LATE_S, _LOOK_S = 60.0, 0.05


class Settings(Struct, frozen=True, kw_only=True):
    keep: int = 3
    """VERIFIED checkpoints that stay, besides those that the framework has not asked to remove."""
    raise_failures: bool = False
    """A save that fails raises SaveFailed. By default it is logged, and the run goes on with the older checkpoint."""
    start_anywhere: bool = False
    """Train from a step that is no commit although there are some. By default that is refused: it overwrites a run."""
    finish_limit_s: float = 3600.0
    """How long the end of the training waits for saves that a snapshot server still writes."""
    keys: Keys | None = None
    """Seals what is written directly; a snapshot server has keys of its own."""
    client: SnapshotClient | None = None
    """Connection to the snapshot server of this rank, which then writes behind, into the same directory."""


class Failure(NamedTuple):
    step: int
    name: str
    reason: str


class _Underway(NamedTuple):
    """A save that a snapshot server has not confirmed yet."""

    step: int
    name: str
    after: str
    """Key of the newest commit before it."""


class Keeping:
    """Not for use by two threads at once.

    ``where``: a directory that all ranks share, the URL of an object store, or a store. ``job``: names the run in it.
    ``run``: equal on all ranks and new every time, see LocalCheckpoints. ``holds``: the framework releases names that it
    does not need any more; until then their checkpoints stay.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | Store,
        job: str,
        settings: Settings,
        *,
        run: str,
        holds: bool = False,
    ) -> None:
        self.settings = settings
        self._holds = holds
        self.local = LocalCheckpoints(where, job=job, run=run, keep=settings.keep, keys=settings.keys)
        self.repository = self.local.repository
        self.failures: deque[Failure] = deque(maxlen=_MAX_FAILURES)
        """The newest saves that did not become checkpoints."""
        self._previous: dict[str, Flat] = {}
        self._underway: deque[_Underway] = deque()
        self._released: list[str] = []
        self._names: dict[str, str] = {}

    # ---- saving

    def save(self, step: int, name: str, groups: Mapping[str, Any], rank: int = 0, world_size: int = 1) -> None:
        """Save this rank's groups (name -> tree); when it returns the caller may change its state.

        Raises TypeError that names what cannot be kept, Superseded, and SaveFailed if the settings say so.
        """
        flats = self._flatten({**groups, NAME: {"name": name}})
        # The server tells steps apart, not names: one save of a step at a time.
        self.poll(self.settings.finish_limit_s if any(each.step == step for each in self._underway) else 0.0)
        try:
            client = self.settings.client
            after = self._newest_key() if client is not None else ""
            if client is None:
                commit = self.local.save(step, flats, rank, world_size)
                if commit is not None:
                    self._committed(name, commit)
            elif not client.snapshot(step, flats, durable=True):
                raise SaveFailed("no memory slot was free")
            else:
                self._underway.append(_Underway(step, name, after))
        except Superseded:
            raise
        except (CheckpointError, OSError) as error:
            self._failed(step, name, error)

    def _flatten(self, groups: Mapping[str, Any]) -> dict[str, Flat]:
        flats = {}
        for name, tree in groups.items():
            try:
                flats[name] = flatten(tree, previous=self._previous.get(name))
            except TypeError as error:
                raise TypeError(f"in the state of {name}: {error}") from None
        self._previous = flats
        return flats

    def poll(self, timeout_s: float = 0.0) -> None:
        """Take in what the snapshot server has made of earlier saves; wait for each at most ``timeout_s``."""
        client = self.settings.client
        while self._underway and client is not None:
            save = self._underway[0]
            try:
                if not client.wait_durable(save.step, timeout_s):
                    return
                commit = self._find(save, timeout_s)
                if commit is None and timeout_s == 0:
                    return
                self._underway.popleft()
                if commit is None:
                    raise SaveFailed(
                        f"the snapshot server says that it is durable, and {self.repository.store.name} has it not"
                    )
                self._committed(save.name, commit)
            except (CheckpointError, OSError) as error:
                if self._underway and self._underway[0] is save:
                    self._underway.popleft()
                self._failed(save.step, save.name, error)

    def _find(self, save: _Underway, timeout_s: float) -> Commit | None:
        """The commit of a save. An answer about an earlier save of the same step may have come in its place: then it takes
        a little longer."""
        give_up_s = time.monotonic() + min(timeout_s, _LATE_S)
        while True:
            for commit in self.repository.commits():
                if commit.key > save.after and commit.step == save.step and self.name_of(commit.key) == save.name:
                    return commit
            if time.monotonic() >= give_up_s:
                return None
            time.sleep(_LOOK_S)

    def finish(self) -> None:
        """Wait for what is underway, within the limit of the settings, and report what failed."""
        self.poll(self.settings.finish_limit_s)
        while self._underway:
            save = self._underway.popleft()
            self._failed(save.step, save.name, SaveFailed("the snapshot server took too long to write it"))

    def _failed(self, step: int, name: str, error: Exception) -> None:
        self.failures.append(Failure(step, name, str(error)))
        if self.settings.raise_failures:
            raise error if isinstance(error, SaveFailed) else SaveFailed(str(error)) from error
        log.error("checkpoint %s of step %d failed, the run goes on with the older one: %s", name, step, error)

    # ---- what the framework holds

    def _committed(self, name: str, commit: Commit) -> None:
        """It stays until its name is released or given to a newer one; what was released before may go now."""
        if not self._holds:
            return
        try:
            self._names[commit.key] = name
            self.repository.pin(commit.key, f"held by the framework as {name}")
            unheld = {*self._released, name}
            for older in self.repository.commits():
                if older.pinned and older.key != commit.key and self.name_of(older.key) in unheld:
                    self.repository.unpin(
                        older.key, "the framework asked to remove it, or gave its name to a newer one"
                    )
            self._released.clear()
        except Superseded:
            raise
        except (CheckpointError, OSError) as error:
            log.warning("what is held and what may go was not written down, the next save does it: %s", error)

    def release(self, name: str) -> None:
        """The framework does not need ``name`` any more. Nothing is deleted: retention decides, after a newer save is safe."""
        self._released.append(name)

    # ---- names

    def name_of(self, key: str) -> str:
        """What the framework called a commit; empty if that cannot be read."""
        if key not in self._names:
            try:
                self._names[key] = self.repository.load(key, 0, (NAME,))[NAME]["name"]
            except (StateInvalid, OSError, LookupError, TypeError):
                return ""
        return self._names[key]

    def _newest_key(self) -> str:
        return next((commit.key for commit in self.repository.commits()), "")

    # ---- restoring

    def newest(self) -> Commit | None:
        """The newest commit of which every byte was just verified; None only if there is no commit at all.

        Raises StateInvalid if there are some and none can be used: starting from nothing would lose them.
        """
        commit = self.local.newest_valid()
        for rejected in self.local.skipped:
            log.warning("checkpoint %s is skipped: %s", rejected.key, rejected.reason)
        if commit is None and self.local.skipped:
            worst = self.local.skipped[0]
            raise StateInvalid(
                f"{len(self.local.skipped)} checkpoints of job {self.local.job} exist and none can be used, so nothing"
                f" is started over them. The newest, {worst.key}: {worst.reason}. Repair them, or give another job name"
            )
        return commit

    def load(self, key: str, rank: int = 0) -> dict[str, Any]:
        """The groups of a commit, every chunk verified, without the name. Raises StateInvalid; nothing is half loaded."""
        groups = self.repository.load(key, rank)
        groups.pop(NAME, None)
        return groups

    def load_called(self, name: str) -> tuple[Commit, dict[str, Any]] | None:
        """The newest commit of that name that can be read whole; None if none ever had it. Raises StateInvalid."""
        reason = ""
        for commit in self.repository.commits():
            if self.name_of(commit.key) != name:
                continue
            try:
                if commit.state in ("suspect", "corrupt"):
                    raise StateInvalid(f"it is marked {commit.state}: {commit.reason}")
                return commit, self.load(commit.key)
            except (StateInvalid, OSError) as error:
                reason = reason or str(error)
                log.warning("checkpoint %s (%s) is skipped: %s", commit.key, name, error)
        if reason:
            raise StateInvalid(f"no checkpoint called {name} can be used, the newest because {reason}")
        return None

    def check_start(self, step: int) -> None:
        """Raises StateInvalid if training is about to begin at a step that is no checkpoint although there are some."""
        steps = sorted({commit.step for commit in self.repository.commits()}, reverse=True)
        if steps and step not in steps and not self.settings.start_anywhere:
            raise StateInvalid(
                f"training would begin at step {step}, and job {self.local.job} has checkpoints of steps {steps[:5]}:"
                " resume from last_valid(), give another job name or directory, or allow it with start_anywhere"
            )


def first_rank_says(value: int) -> int:
    """The value of rank 0, on every rank, where a process group is up: a collective. Otherwise the value itself."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return value
    torch = sys.modules["torch"]
    on_cuda = "nccl" in str(dist.get_backend())
    device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    tensor = torch.tensor([value], dtype=torch.int64, device=device)
    dist.broadcast(tensor, src=0)
    return int(tensor.item())
