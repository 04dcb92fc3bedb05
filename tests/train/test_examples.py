"""The examples, run as a user runs them: alone and under torchrun, interrupted and not. Owns no case of its own.

Most runs are forked from a warm interpreter, with the environment that torchrun gives; one is under torchrun itself.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.warm import Warm, as_torchrun

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 400
STEP_TIMES_S = (0.4, 4.0, 40.0)
"""Of a training that is to be killed: the next one where the one before ended before it was."""


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KEEPSTEP_", "TORCHELASTIC_"))}
    return {**clean, "OMP_NUM_THREADS": "1"}


def alone(warm: Warm, folder: Path, *command: str) -> str:
    return warm.run(command, folder, environment())


def together(warm: Warm, ranks: int, folder: Path, *command: str) -> str:
    with as_torchrun(ranks, environment()) as environments:
        return warm.run_ranks([command] * ranks, folder, environments)


def under_torchrun(ranks: int, folder: Path, *command: str) -> str:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*torchrun, *command], cwd=folder, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def kill_after_commits(warm: Warm, ranks: int, folder: Path, command: Sequence[str], count: int) -> None:
    """SIGKILL all ranks once so many records are in the log of ``parts``; one rank is a run alone."""
    for step_time_s in STEP_TIMES_S:
        shutil.rmtree(folder / "parts", ignore_errors=True)
        (folder / "parts.txt").unlink(missing_ok=True)
        with as_torchrun(ranks, environment()) as environments:
            environments = environments if ranks > 1 else [environment()]
            slow = [*command, "--step-time", str(step_time_s)]
            with warm.started([slow] * ranks, folder, environments) as (_, output):
                if _has_records(folder / "parts" / "commits", count, output):
                    return
    raise AssertionError(f"it always ended before it had {count} records")


def _has_records(commits: Path, count: int, output: Path) -> bool:
    """Waits for them. False if the training ended before they were seen."""
    give_up_s = time.monotonic() + DEADLINE_S
    while len(list(commits.glob("*.json"))) < count:
        said = output.read_text()
        if "final" in said:
            return False
        assert time.monotonic() < give_up_s, f"no {count} records in {DEADLINE_S} s:\n{said}"
        time.sleep(0.01)
    return "final" not in output.read_text()


def finals(path: Path) -> dict[str, str]:
    """Rank -> digest of its final weights."""
    return dict(re.findall(r"^final (\d+) \d+ ([0-9a-f]{64})$", path.read_text(), re.MULTILINE))


def test_the_minimal_example_resumes(warm_torch: Warm, tmp_path: Path) -> None:
    assert "resumed from None" in alone(warm_torch, tmp_path, str(EXAMPLES / "train_minimal.py"))
    script = tmp_path / "train_minimal.py"
    script.write_text((EXAMPLES / "train_minimal.py").read_text().replace("steps(200)", "steps(210)"))
    said = alone(warm_torch, tmp_path, str(script))
    assert "done after 210 steps" in said and "resumed from 200" in said


def test_gpt_alone_killed_and_resumed_has_the_same_bits(warm_torch: Warm, tmp_path: Path) -> None:
    gpt = [str(EXAMPLES / "train_gpt.py"), "--steps", "16", "--global-batch", "4", "--layers", "1"]
    alone(warm_torch, tmp_path, *gpt, "--checkpoint-dir", "whole", "--out", "whole.txt", "--workers", "1")
    parts = [*gpt, "--checkpoint-dir", "parts", "--checkpoint-every-steps", "5", "--out", "parts.txt"]
    kill_after_commits(warm_torch, 1, tmp_path, parts, 2)
    alone(warm_torch, tmp_path, *parts)
    assert finals(tmp_path / "whole.txt") == finals(tmp_path / "parts.txt") != {}


def test_gpt_of_three_ranks_killed_and_resumed_has_the_same_bits(warm_torch: Warm, tmp_path: Path) -> None:
    """Three: only with more than two does the order matter in which DDP adds. Then on two, under torchrun itself."""
    gpt = [str(EXAMPLES / "train_gpt.py"), "--steps", "8", "--global-batch", "6", "--layers", "1"]
    together(warm_torch, 3, tmp_path, *gpt, "--checkpoint-dir", "whole", "--out", "whole.txt")
    parts = [*gpt, "--checkpoint-dir", "parts", "--checkpoint-every-steps", "2", "--out", "parts.txt"]
    kill_after_commits(warm_torch, 3, tmp_path, parts, 2)
    together(warm_torch, 3, tmp_path, *parts)
    whole = finals(tmp_path / "whole.txt")
    assert whole == finals(tmp_path / "parts.txt")
    assert whole.keys() == {"0", "1", "2"} and len(set(whole.values())) == 1
    under_torchrun(2, tmp_path, *parts, "--steps", "9", "--elastic", "--out", "fewer.txt")
    assert finals(tmp_path / "fewer.txt").keys() == {"0", "1"}


def test_the_plain_script_resumes_without_keepstep(warm_torch: Warm, tmp_path: Path) -> None:
    plain = [str(EXAMPLES / "train_plain_torchrun.py"), "--every", "5"]
    alone(warm_torch, tmp_path, *plain, "--steps", "20", "--checkpoint", "whole.pt", "--out", "whole.txt")
    alone(warm_torch, tmp_path, *plain, "--steps", "10", "--checkpoint", "parts.pt")
    alone(warm_torch, tmp_path, *plain, "--steps", "20", "--checkpoint", "parts.pt", "--out", "parts.txt")
    assert finals(tmp_path / "whole.txt") == finals(tmp_path / "parts.txt") != {}
    assert "keepstep" not in re.sub(r'"""[\s\S]*?"""', "", (EXAMPLES / "train_plain_torchrun.py").read_text())
