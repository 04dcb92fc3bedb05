"""Checkpoints as the real libraries write them, made once and copied for each test."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from . import makers


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a kind, written on first use. Not to be changed. Skips where its library is not installed.

    The processes of one run of tests share them: writing one can take seconds.
    """
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def get(kind: str) -> Path:
        folder, told = root / f"originals-{kind}", root / f"originals-{kind}.path"
        with open(root / f"originals-{kind}.lock", "w") as lock:
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
