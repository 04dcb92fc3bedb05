"""Checkpoints without any server: the same disk format, written by the ranks themselves. For plain ``python train.py``.

Under torchrun each rank writes its part and whoever completes the set commits. Owns the naming of a run; the format is
in directory.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keepstep.checkpoint.blob import pack
from keepstep.checkpoint.directory import CheckpointDirectory, Commit, Rejected, Save
from keepstep.checkpoint.retention import expire
from keepstep.checkpoint.tree import Flat


class LocalCheckpoints:
    """Save to and load from ``directory`` for ``job``.

    ``run`` names this run: equal on all its ranks and different from every other run, so that parts of two runs never
    make one checkpoint. By default it is derived from the parent process, which the ranks of one torchrun agent share;
    where ranks have different parents (several nodes), pass one, for example broadcast from rank 0.
    ``keep``: how many commits stay.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, job: str, run: str | None = None, keep: int = 3, verify: bool = True
    ) -> None:
        self.directory = CheckpointDirectory(directory)
        self.job = job
        self.skipped: list[Rejected] = []
        """What the last :meth:`newest_valid` could not use, and why."""
        self._run = hashlib.blake2b((run or _run_identity()).encode(), digest_size=6).hexdigest()
        self._keep = keep
        self._verify = verify
        self._tries: dict[tuple[int, int], int] = {}

    def save(
        self, step: int, groups: Mapping[str, Flat], rank: int = 0, world_size: int = 1, generation: int = 0
    ) -> Commit | None:
        """Write this rank's part; returns the commit if it completed the set, else None.

        Raises SaveFailed (older checkpoints untouched, the next save tries again) or Superseded (stop for good).
        """
        number = self._tries[generation, step] = self._tries.get((generation, step), -1) + 1
        save = Save(
            job=self.job, generation=generation, step=step, attempt=f"r{self._run}n{number}", world_size=world_size
        )
        self.directory.write_part(save, rank, {name: pack(flat) for name, flat in groups.items()})
        commit = self.directory.try_commit(save)
        if commit is not None and self._verify:
            self.directory.verify(commit.key)
            self.directory.mark_latest(commit)
            expire(self.directory, commit, self._keep)
        return commit

    def newest_valid(self) -> Commit | None:
        """The newest commit of which every byte was just verified; None if there is none (then ``skipped`` says why)."""
        commit, self.skipped = self.directory.newest_valid(self.job)
        return commit

    def load(self, record: Commit, rank: int = 0) -> dict[str, Any]:
        """The groups of ``rank`` as trees, verified again. Raises StateInvalid; nothing is half loaded."""
        return self.directory.load(record.key, rank)


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
