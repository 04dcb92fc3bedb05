"""The examples, run as a user runs them: alone and under torchrun, interrupted and not. Owns no case of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 150


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KEEPSTEP_", "TORCHELASTIC_"))}
    return {**clean, "OMP_NUM_THREADS": "1"}


def torchrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def family(pid: int) -> list[int]:
    """The process and its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(member for child in children for member in family(int(child)))]


def kill_after_commits(command: list[str], folder: Path, commits: Path, count: int) -> None:
    """SIGKILL the whole run once so many checkpoints are committed."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=log, stderr=log)
    try:
        give_up_s = time.monotonic() + DEADLINE_S
        while len(list(commits.glob("*.json"))) < count:
            said = (folder / "log").read_text()
            assert process.poll() is None, f"ended with {process.returncode} before {count} checkpoints:\n{said}"
            assert time.monotonic() < give_up_s, f"no {count} checkpoints in {DEADLINE_S} s:\n{said}"
            time.sleep(0.01)
    finally:
        for pid in family(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait(DEADLINE_S)


def finals(path: Path) -> dict[str, str]:
    """Rank -> digest of its final weights."""
    return dict(re.findall(r"^final (\d+) \d+ ([0-9a-f]{64})$", path.read_text(), re.MULTILINE))


def test_the_minimal_example_resumes(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_minimal.py")]
    assert "resumed from None" in run(command, tmp_path)
    script = tmp_path / "train_minimal.py"
    script.write_text((EXAMPLES / "train_minimal.py").read_text().replace("steps(200)", "steps(210)"))
    said = run([sys.executable, str(script)], tmp_path)
    assert "done after 210 steps" in said and "resumed from 200" in said


@pytest.mark.slow
def test_gpt_alone_killed_and_resumed_has_the_same_bits(tmp_path: Path) -> None:
    gpt = [sys.executable, str(EXAMPLES / "train_gpt.py"), "--steps", "24", "--global-batch", "4"]
    run([*gpt, "--checkpoint-dir", "whole", "--out", "whole.txt", "--workers", "1"], tmp_path)
    parts = [*gpt, "--checkpoint-dir", "parts", "--checkpoint-every-steps", "5", "--out", "parts.txt"]
    kill_after_commits([*parts, "--step-time", "0.1"], tmp_path, tmp_path / "parts" / "commits", 2)
    run(parts, tmp_path)
    assert finals(tmp_path / "whole.txt") == finals(tmp_path / "parts.txt") != {}


@pytest.mark.slow
@pytest.mark.timeout(4 * DEADLINE_S)
def test_gpt_under_torchrun_killed_and_resumed_has_the_same_bits(tmp_path: Path) -> None:
    gpt = [str(EXAMPLES / "train_gpt.py"), "--steps", "12", "--global-batch", "6"]
    run([*torchrun(3), *gpt, "--checkpoint-dir", "whole", "--out", "whole.txt"], tmp_path)
    parts = [*gpt, "--checkpoint-dir", "parts", "--checkpoint-every-steps", "3", "--out", "parts.txt"]
    commits = tmp_path / "parts" / "commits"
    kill_after_commits([*torchrun(3), *parts, "--step-time", "0.2"], tmp_path, commits, 2)
    run([*torchrun(3), *parts], tmp_path)
    whole = finals(tmp_path / "whole.txt")
    assert whole == finals(tmp_path / "parts.txt")
    assert whole.keys() == {"0", "1", "2"} and len(set(whole.values())) == 1
    elastic = ["--steps", "14", "--elastic", "--out", "fewer.txt"]
    run([*torchrun(2), *parts, *elastic], tmp_path)
    assert finals(tmp_path / "fewer.txt").keys() == {"0", "1"}


def test_the_plain_script_resumes_without_keepstep(tmp_path: Path) -> None:
    plain = [sys.executable, str(EXAMPLES / "train_plain_torchrun.py"), "--every", "5"]
    run([*plain, "--steps", "20", "--checkpoint", "whole.pt", "--out", "whole.txt"], tmp_path)
    run([*plain, "--steps", "10", "--checkpoint", "parts.pt"], tmp_path)
    run([*plain, "--steps", "20", "--checkpoint", "parts.pt", "--out", "parts.txt"], tmp_path)
    assert finals(tmp_path / "whole.txt") == finals(tmp_path / "parts.txt") != {}
    assert "keepstep" not in re.sub(r'"""[\s\S]*?"""', "", (EXAMPLES / "train_plain_torchrun.py").read_text())
