"""A restore is voted on by all ranks before any of them applies it. Owns D8 (a partial restore) across ranks."""

import subprocess
from pathlib import Path

from .test_examples import environment, torchrun

PROGRAM = str(Path(__file__).parent / "programs" / "vote.py")


def test_D8_one_rank_that_cannot_restore_leaves_every_rank_as_it_was(tmp_path: Path) -> None:
    said = []
    for what in ("save", "restore"):
        command = [*torchrun(2), PROGRAM, what, str(tmp_path / "checkpoints")]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == ""
    lines = sorted(said[1].splitlines())
    assert lines[0].startswith("rank 0 does not go on") and lines[2].startswith("rank 1 does not go on")
    assert lines[1].startswith("rank 0 untouched True: another rank could not restore")
    assert lines[3].startswith("rank 1 untouched True: model.weight: the saved shape is (2, 4)")
