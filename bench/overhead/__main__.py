"""``python -m bench.overhead``: what the session costs a healthy step, against the same job without it, in one run.

Two figures: the time that the session itself takes at the step boundary as a share of the step (snapshot of every step, no
noise of other processes in the median), and the ratio of the step times with and without it, pair by pair, which also holds
what the snapshot server does behind the loop's back on the same cores.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.recovery.__main__ import REPOSITORY, write_section

JOB = Path(__file__).with_name("job.py")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    ratios, shares, costs = [], [], []
    for rep in range(args.reps):
        bare, ours = (measure(args.ranks, args.steps, bare=bare) for bare in (True, False))
        step_s = statistics.median(ours["step_s"])
        costs.append(statistics.median(ours["between_s"]))
        shares.append(costs[-1] / step_s)
        ratios.append(step_s / statistics.median(bare["step_s"]))
        print(
            f"{rep}: boundary {costs[-1] * 1e3:.2f} ms = {shares[-1]:.2%} of a step; step ratio {ratios[-1]:.3f}",
            flush=True,
        )
    text = (
        f"{datetime.datetime.now().date()}, {os.cpu_count()} cores, 1-min load {os.getloadavg()[0]:.1f}, {args.ranks} ranks, "
        f"steps of {statistics.median(ours['step_s']) * 1e3:.0f} ms, {args.reps} repetitions, median (min–max). "
        "Command: `python -m bench.overhead`.\n\n"
        "| figure | value |\n|---|---|\n"
        f"| session at the step boundary | {statistics.median(costs) * 1e3:.2f} ms |\n"
        f"| as a share of the step | {show(shares, '.2%')} |\n"
        f"| step time with ÷ without the session | {show(ratios, '.3f')} |"
    )
    print(text)
    if not args.no_write:
        write_section(REPOSITORY / "bench" / "RESULTS.md", "overhead", text)


def measure(ranks: int, steps: int, *, bare: bool) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="keepstep-overhead-") as folder:
        out = Path(folder) / "out.json"
        command = [
            sys.executable, "-m", "keepstep", "run", "--state-dir", f"{folder}/state", "--nproc-per-node", str(ranks),
            str(JOB), "--out", str(out), "--steps", str(steps), *(["--bare"] if bare else []),
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result: dict[str, list[float]] = json.loads(out.read_text())
        return result


def show(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


if __name__ == "__main__":
    main()
