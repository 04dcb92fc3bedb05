"""Runs a training script that waits for its test: ``held.py WORK HOLD,HOLD,… script.py args…``, holds as in light.py.

The script is untouched: its session is another one. That one also takes every step into memory and waits for room there, so
that what a fault costs does not depend on how busy the machine is.
"""

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import light
import torch  # noqa: F401 - what stands here is imported beforehand, and the script needs it

import keepstep
from keepstep import train


def main() -> None:
    work, holds, script, *arguments = sys.argv[1:]
    waits = [light.parse_hold(text) for text in holds.split(",")]

    def session(**registered: Any) -> train.Session:
        run = train.session(**{"snapshot_every_steps": 1, **registered})
        light.wait_for_room(run)
        steps = run.steps

        def held(total: int) -> Iterator[int]:
            for step in steps(total):
                for wait in waits:
                    wait.wait(Path(work), step, run.generation)
                yield step

        vars(run)["steps"] = held
        return run

    vars(keepstep)["session"] = session
    sys.argv[:] = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
