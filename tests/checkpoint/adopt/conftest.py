"""Checkpoints as the real libraries write them, made once and copied for each test."""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import makers


@pytest.fixture(scope="session")
def originals(shared: Path, runs_of: Callable[[str], Any]) -> Callable[[str], Path]:
    """The checkpoint of a kind, written on first use. Not to be changed. Skips where its library is not installed.

    The processes of one run of tests share them: writing one can take seconds.
    """

    def get(kind: str) -> Path:
        if kind in makers.TRAINED:
            library, where = makers.TRAINED[kind]
            return Path(runs_of(library).plain / "run" / where)
        folder, told = shared / f"originals-{kind}", shared / f"originals-{kind}.path"
        with open(shared / f"originals-{kind}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not told.exists():
                folder.mkdir(exist_ok=True)
                told.write_text(str(makers.MAKERS[kind](folder)))
        return Path(told.read_text())

    return get


@pytest.fixture
def sample(originals: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the checkpoint of a kind, to be broken."""

    def copy(kind: str) -> Path:
        original = originals(kind)
        target = tmp_path / kind / original.name
        if original.is_dir():
            shutil.copytree(original, target)
        else:
            target.parent.mkdir()
            shutil.copy2(original, target)
        return target

    return copy
