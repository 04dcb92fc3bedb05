"""``keepstep sim`` as a program, and what it prints."""

import json
import subprocess
import sys

import typer
from typer.testing import CliRunner, Result

from keepstep.cli.sim import sim

PROGRAM = typer.Typer()
PROGRAM.command()(sim)


def _sim(*args: str) -> Result:
    return CliRunner().invoke(PROGRAM, args)


def test_one_seed_as_json() -> None:
    done = _sim("--seed", "3", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["results"][0]["seed"] == 3 and told["results"][0].get("failure") is None
    assert len(told["results"][0]["digest"]) == 32


def test_trace_prints_the_transitions() -> None:
    done = _sim("--scenario", "single", "--seed", "1", "--trace")
    assert done.exit_code == 0, done.stderr
    assert "inc-0001 -> recovered" in done.stdout and "digest" in done.stdout


def test_an_unknown_scenario_is_an_error_that_says_which_there_are() -> None:
    """As a program: in this process nobody would see a traceback."""
    argv = [sys.executable, "-m", "keepstep.cli.app", "sim", "--scenario", "nothing"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 1
    assert "mixed" in done.stderr and "Traceback" not in done.stderr
