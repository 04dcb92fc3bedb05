"""Worker processes with the fault layer in them: started, waited for, ended. Owns these processes."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
from tests.crash.layer import ROOT, build
from tests.crash.matrix import Order, Report

DEADLINE_S = 3600.0


def start(order: Order, scratch: Path) -> "subprocess.Popen[bytes]":
    """A worker that carries out an order in ``scratch``, which it makes and removes. Raises NoCompiler."""
    environment = {**os.environ, "LD_PRELOAD": str(build()), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.crash", "--worker", msgspec.json.encode(order).decode(), str(scratch)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(worker: "subprocess.Popen[bytes]", deadline_s: float = DEADLINE_S) -> Report:
    """What a worker found. Raises RuntimeError with its last words if it could not do its work."""
    try:
        said, errors = worker.communicate(timeout=deadline_s)
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()
    if worker.returncode:
        raise RuntimeError(errors.decode(errors="replace")[-4000:])
    return msgspec.json.decode(said, type=Report)


def told(report: Report, *, whole: bool = False) -> str:
    """The findings for a person, sorted by cause, with the first case of each."""
    causes: dict[str, list[int]] = {}
    for number, finding in enumerate(report.findings):
        causes.setdefault(finding.cause(), []).append(number)
    lines = []
    for cause, numbers in causes.items():
        first = report.findings[numbers[0]]
        why = first.why.strip().splitlines()
        why = why if whole else [why[0], *why[1:][-_SHOWN_LINES:]]
        lines += [f"!! {len(numbers)} x {cause}", f"   first: --only '{first.case}'", f"   at {first.where}"]
        lines += [f"   told: {first.told}", *(f"   {line}" for line in why), ""]
    return "\n".join([*lines, f"{len(report.findings)} findings"])


_SHOWN_LINES = 5
"""Of a traceback, unless one case is asked for."""
