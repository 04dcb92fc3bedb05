"""``keepstep sim`` as a program."""

import json
import subprocess
import sys


def _sim(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keepstep.cli.app", "sim", *args],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_one_seed_as_json() -> None:
    done = _sim("--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["results"][0]["seed"] == 3 and told["results"][0].get("failure") is None
    assert len(told["results"][0]["digest"]) == 32


def test_trace_prints_the_transitions() -> None:
    done = _sim("--scenario", "single", "--seed", "1", "--trace")
    assert done.returncode == 0, done.stderr
    assert "inc-0001 -> recovered" in done.stdout and "digest" in done.stdout


def test_an_unknown_scenario_is_an_error_that_says_which_there_are() -> None:
    done = _sim("--scenario", "nothing")
    assert done.returncode == 1
    assert "mixed" in done.stderr and "Traceback" not in done.stderr
