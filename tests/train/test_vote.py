"""A restore is voted on by all ranks before any of them applies it. Owns D8 (a partial restore) across ranks."""

from pathlib import Path

from tests.warm import Warm

from .test_examples import together

PROGRAM = str(Path(__file__).parent / "programs" / "vote.py")


def test_D8_one_rank_that_cannot_restore_leaves_every_rank_as_it_was(warm_torch: Warm, tmp_path: Path) -> None:
    checkpoints = str(tmp_path / "checkpoints")
    assert together(warm_torch, 2, tmp_path, PROGRAM, "save", checkpoints) == ""
    lines = sorted(together(warm_torch, 2, tmp_path, PROGRAM, "restore", checkpoints).splitlines())
    assert lines[0].startswith("rank 0 does not go on") and lines[2].startswith("rank 1 does not go on")
    assert lines[1].startswith("rank 0 untouched True: another rank could not restore")
    assert lines[3].startswith("rank 1 untouched True: model.weight: the saved shape is (2, 4)")
