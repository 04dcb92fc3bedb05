"""Sharded training (FSDP2 on gloo) with a session: resumed on as many ranks, and on others. Owns D7 as a script sees it."""

import shutil
from pathlib import Path

from tests.warm import Warm

from .test_examples import together

PROGRAM = str(Path(__file__).parent / "programs" / "sharded.py")


def test_D7_sharded_state_resumes_bit_equal_on_any_number_of_ranks(warm_torch: Warm, tmp_path: Path) -> None:
    def sharded(ranks: int, directory: str, steps: int) -> list[str]:
        """What was restored, and the digest of the whole state at the end."""
        return together(warm_torch, ranks, tmp_path, PROGRAM, directory, str(steps)).split()

    assert sharded(2, "parts", 4)[0] == "None"
    restored, resumed = sharded(2, "parts", 8)
    assert restored == "4" and sharded(2, "whole", 8) == ["None", resumed]
    for ranks in (1, 3):
        shutil.copytree(tmp_path / "whole", tmp_path / f"on{ranks}")
        assert sharded(ranks, f"on{ranks}", 8) == ["8", resumed]
