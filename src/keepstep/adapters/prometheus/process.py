"""Figures of this process, from the kernel, under the names that any dashboard looks for. None where there is no /proc."""

import os
from collections.abc import Iterable

from keepstep.telemetry import Family


def process() -> Iterable[Family]:
    """CPU time, memory, open descriptors, and when it began."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/stat", "rb") as file:
            boot_s = next((float(line.split()[1]) for line in file if line.startswith(b"btime ")), 0.0)
        descriptors = len(os.listdir("/proc/self/fd"))
    except OSError:
        return
    ticks = os.sysconf("SC_CLK_TCK")
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    # Fields are counted from the third on: state, ppid, …; see proc(5).
    yield _one("process_cpu_seconds", "counter", "CPU time.", (int(fields[11]) + int(fields[12])) / ticks)
    yield _one("process_resident_memory_bytes", "gauge", "Resident memory.", int(fields[21]) * page_bytes)
    yield _one("process_virtual_memory_bytes", "gauge", "Virtual memory.", int(fields[20]))
    yield _one("process_open_fds", "gauge", "Open descriptors.", descriptors)
    yield _one("process_start_time_seconds", "gauge", "When it began.", boot_s + int(fields[19]) / ticks)


def _one(name: str, kind: str, help: str, value: float) -> Family:
    made = Family(name=name, kind=kind, help=help)  # type: ignore[arg-type]
    made.add(value)
    return made
