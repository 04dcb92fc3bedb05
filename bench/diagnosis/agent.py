"""What the agent costs on this machine: a real ``keepstep agent`` with all its sources, and no server to talk to."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WARM_UP_S = 10.0
WATCH_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


def page() -> str:
    with tempfile.TemporaryDirectory() as folder:
        agent = subprocess.Popen(
            [sys.executable, "-m", "keepstep.cli", "agent", "--node", "bench", "--state-dir", folder],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(WARM_UP_S)
            before = {pid: cpu_s(pid) for pid in family(agent.pid)}
            time.sleep(WATCH_S)
            pids = family(agent.pid)
            used_s = sum(cpu_s(pid) - before.get(pid, 0.0) for pid in pids)
            own_s = cpu_s(agent.pid) - before.get(agent.pid, 0.0)
            memory = {pid: pss_mb(pid) for pid in pids}
        finally:
            agent.terminate()
            agent.wait(20)
    return "\n".join([
        f"Written by `python -m bench.diagnosis agent`: {WATCH_S:.0f} s, every source that this machine has.", "",
        "| what | measured | wanted |", "|---|---|---|",
        f"| processor, agent and its children | {100 * used_s / WATCH_S:.2f} % of a core | < 1 % |",
        f"| processor, agent alone | {100 * own_s / WATCH_S:.2f} % of a core | |",
        f"| memory (PSS), agent and {len(memory) - 1} children | {sum(memory.values()):.0f} MB | < 60 MB |",
        f"| memory (PSS), agent alone | {memory.get(agent.pid, 0.0):.0f} MB | |", "",
    ])  # fmt: skip


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found, at = [pid], 0
    while at < len(found):
        for task in Path(f"/proc/{found[at]}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
        at += 1
    return found


def cpu_s(pid: int) -> float:
    """Of a process and of the children that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(fields[at]) for at in (11, 12, 13, 14)) / TICKS


def pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:")), 0.0)
