"""Small checkpoints for the tests of `keepstep checkpoint`, and ways to damage them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keepstep.checkpoint import LocalCheckpoints, Repository, flatten
from keepstep.checkpoint.keys.providers import FileProvider
from keepstep.checkpoint.keys.sessions import SessionKeys
from keepstep.checkpoint.stores.posix import PosixStore

JOB = "gpt"
FROZEN = np.random.default_rng(0).standard_normal(200_000)
"""1.6 MB that no step changes."""


def trees(step: int, rank: int = 0) -> dict[str, Any]:
    model = {"frozen": FROZEN, "w": np.random.default_rng(step).standard_normal(300), "step": step}
    return {"model": model, "rng": {"rank": rank, "words": np.arange(4) + rank}}


class Job:
    """Some ranks that save into one store."""

    def __init__(self, directory: Path, world: int = 2, *, keys: Path | None = None, job: str = JOB) -> None:
        self.directory, self.world = directory, world
        sessions = None if keys is None else SessionKeys(PosixStore(directory), [FileProvider(keys)])
        self._ranks = [LocalCheckpoints(directory, job=job, run="r", keys=sessions, keep=10) for _ in range(world)]

    def save(self, step: int, ranks: Sequence[Mapping[str, Any]] | None = None) -> None:
        for rank in range(self.world):
            self.save_part(step, rank, None if ranks is None else ranks[rank])

    def save_part(self, step: int, rank: int, state: Mapping[str, Any] | None = None) -> None:
        groups = {name: flatten(tree) for name, tree in (state or trees(step, rank)).items()}
        self._ranks[rank].save(step, groups, rank, self.world)


def repository(directory: Path, job: str = JOB) -> Repository:
    return Repository(PosixStore(directory), job)


def new_keys(directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    (directory / "1.key").write_bytes(os.urandom(32))
    (directory / "1.key").chmod(0o600)
    return directory


def flip(directory: Path, step: int) -> Path:
    """Flip a bit in the middle of the largest pack of a step."""
    packs = list((directory / "steps").glob(f"{step:08d}-*/*.pack"))
    path = max(packs, key=lambda pack: pack.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)
    return path
