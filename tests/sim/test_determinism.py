"""A seed and a commit are a run: whatever the hash seed of the interpreter, and however often."""

import os
import subprocess
import sys

import pytest

from keepstep.sim.run import run

SCRIPT = """
from keepstep.sim.run import run
for name, seed in (("mixed", 5), ("storm", 3), ("partition", 2), ("program", 4)):
    print(run(name, seed).digest)
"""


def _digests(hash_seed: str) -> list[str]:
    environment = dict(os.environ, PYTHONHASHSEED=hash_seed)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.split()


@pytest.mark.timeout(300)
def test_digests_do_not_depend_on_the_hash_seed() -> None:
    plain = _digests("0")
    assert len(plain) == 4 and len(set(plain)) == 4
    assert _digests("1") == plain


def test_a_seed_gives_the_same_run_twice() -> None:
    first, second = run("mixed", 11), run("mixed", 11)
    assert first == second


def test_another_seed_gives_another_run() -> None:
    assert run("mixed", 11).digest != run("mixed", 12).digest
