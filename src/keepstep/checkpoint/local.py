"""Checkpoints without any server: the same disk format, written by the ranks themselves. For plain ``python train.py``.

Under torchrun each rank writes its part and whoever completes the set commits. Owns the naming of a run; the format is
in repository.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keepstep.checkpoint.errors import SaveFailed, StateInvalid
from keepstep.checkpoint.keys.port import Keys
from keepstep.checkpoint.repository.pack_writer import Group
from keepstep.checkpoint.repository.repository import Commit, Rejected, Repository
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.repository.settle import settle
from keepstep.checkpoint.state.blob import digest_chunks, pack
from keepstep.checkpoint.state.tree import Flat
from keepstep.checkpoint.stores.address import open_store
from keepstep.checkpoint.stores.port import Store
from keepstep.checkpoint.stores.posix import PosixStore
from keepstep.checkpoint.stores.selftest import selftest

_INSTANCES: Counter[tuple[str, str, int]] = Counter()


class LocalCheckpoints:
    """Save to and load from ``directory`` (a path, the URL of an object store, or any store) for ``job``.

    ``run`` names this run: equal on all its ranks and different from every other run, so that parts of two runs never
    make one checkpoint. By default it is derived from the parent process, which the ranks of one torchrun agent share;
    where ranks have different parents (several nodes), pass one, for example broadcast from rank 0.
    ``keep``: how many commits stay.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | Store,
        *,
        job: str,
        run: str | None = None,
        keep: int = 3,
        verify: bool = True,
        keys: Keys | None = None,
    ) -> None:
        store = open_store(directory) if isinstance(directory, (str, os.PathLike)) else directory
        self.repository = Repository(store, job, keys=keys)
        self.job = job
        self.skipped: list[Rejected] = []
        """What the last :meth:`newest_valid` could not use, and why."""
        self._run = hashlib.blake2b((run or _run_identity()).encode(), digest_size=6).hexdigest()
        self._keep = keep
        self._verify = verify
        self._tries: dict[tuple[int, int], int] = {}
        self._named = run is not None
        self._tried = isinstance(store, PosixStore)
        self._instance: dict[int, int] = {}
        """Rank -> how many of this class had saved for it there before, in this process: ranks count alike."""

    def save(
        self, step: int, groups: Mapping[str, Flat], rank: int = 0, world_size: int = 1, generation: int = 0
    ) -> Commit | None:
        """Write this rank's part; returns the commit if it completed the set, else None.

        Raises SaveFailed (older checkpoints untouched, the next save tries again), Superseded (stop for good), or, at the first
        save to an object store, StoreUnfit if it overwrites where it must refuse.
        """
        if not self._tried:
            try:
                selftest(self.repository.store)
            except OSError as error:
                raise SaveFailed(f"step {step} was not saved, the store cannot be tried: {error}") from error
            self._tried = True
        if rank not in self._instance and self._named:
            self._instance[rank] = 0
        elif rank not in self._instance:
            place = (self.job, self.repository.store.name, rank)
            self._instance[rank] = _INSTANCES[place]
            _INSTANCES[place] += 1
        number = self._tries[generation, step] = self._tries.get((generation, step), -1) + 1
        save = Save(
            job=self.job,
            generation=generation,
            step=step,
            attempt=f"r{self._run}i{self._instance[rank]}n{number}",
            world_size=world_size,
        )
        self.repository.write_part(save, rank, {name: _group(flat) for name, flat in groups.items()})
        try:
            commit = self.repository.try_commit(save)
        except StateInvalid as error:
            raise SaveFailed(str(error)) from error
        return settle(self.repository, commit, self._keep) if commit is not None and self._verify else commit

    def newest_valid(self) -> Commit | None:
        """The newest commit of which every byte was just verified; None if there is none (then ``skipped`` says why)."""
        commit, self.skipped = self.repository.newest_valid()
        return commit

    def load(self, record: Commit, rank: int = 0) -> dict[str, Any]:
        """The groups of ``rank`` as trees, verified again. Raises StateInvalid, a key error, or OSError; never half of it."""
        return self.repository.load(record.key, rank)


def _group(flat: Flat) -> Group:
    blob = pack(flat)
    return Group(blob, digest_chunks(blob))


def _run_identity() -> str:
    """Parent process, its start time and the boot: no two runs share it, not even after pid reuse."""
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        started = boot = ""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = "" if os.environ.get("TORCHELASTIC_RUN_ID") else str(os.getpid())
    return "/".join((boot, str(parent), started, restarts, os.environ.get("TORCHELASTIC_RUN_ID", ""), own))
