"""Sharded training (FSDP2 on gloo) with a session: resumed on as many ranks, and on others. Owns D7 as a script sees it."""

import shutil
from pathlib import Path

import pytest

from .test_examples import run, torchrun

PROGRAM = str(Path(__file__).parent / "programs" / "sharded.py")


def sharded(folder: Path, ranks: int, directory: str, steps: int) -> list[str]:
    """What was restored, and the digest of the whole state at the end."""
    return run([*torchrun(ranks), PROGRAM, directory, str(steps)], folder).split()


@pytest.mark.slow
def test_D7_sharded_state_resumes_bit_equal_on_any_number_of_ranks(tmp_path: Path) -> None:
    assert sharded(tmp_path, 2, "parts", 4)[0] == "None"
    restored, resumed = sharded(tmp_path, 2, "parts", 8)
    assert restored == "4" and sharded(tmp_path, 2, "whole", 8) == ["None", resumed]
    for ranks in (1, 3):
        shutil.copytree(tmp_path / "whole", tmp_path / f"on{ranks}")
        assert sharded(tmp_path, ranks, f"on{ranks}", 8) == ["8", resumed]
