"""The library by itself: numpy arrays, and neither torch nor jax is ever imported."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "checkpoint_numpy.py"
WATCHED = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
heavy = {"torch", "jax", "lightning", "transformers", "obstore", "cryptography"} & set(sys.modules)
print("heavy", sorted(heavy))
"""


def run(directory: Path, steps: int) -> list[str]:
    command = [sys.executable, "-c", WATCHED, str(EXAMPLE), "--steps", str(steps), "--directory", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()


def test_the_numpy_example_resumes_bit_exactly_and_imports_no_framework(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 20)
    assert run(tmp_path / "parts", 12)[-1] == "heavy []"
    resumed = run(tmp_path / "parts", 20)
    assert resumed == ["resumed from step 10", *whole]
    assert whole[-1] == "heavy []"
