"""Readers of /proc. Owns the parsing of its files; must not signal anything.

A process that ends while it is read is an ordinary answer here (None, or an empty value), never an error.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

_GONE = (FileNotFoundError, ProcessLookupError)
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class ProcessStat(NamedTuple):
    """The fields of /proc/<pid>/stat that we judge by."""

    state: str
    """R S D T t Z X, as the kernel writes it."""
    parent: int
    cpu_s: float
    """User and system time of all threads so far."""
    start_ticks: int
    """Start time in clock ticks since boot; (pid, start_ticks) is never reused within a boot."""


def stat(pid: int) -> ProcessStat | None:
    """None where no such process exists."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except _GONE:
        return None
    # The command name may hold spaces and parentheses: what follows the last one is regular.
    fields = text[text.rindex(b")") + 2 :].split()
    cpu_s = (int(fields[11]) + int(fields[12])) * _TICK_S
    return ProcessStat(fields[0].decode(), int(fields[1]), cpu_s, int(fields[19]))


def start_ticks(pid: int) -> int | None:
    found = stat(pid)
    return found.start_ticks if found else None


def is_alive(pid: int, started: int) -> bool:
    """The very process lives: same start time, and not a zombie."""
    found = stat(pid)
    return found is not None and found.start_ticks == started and found.state not in "ZX"


def environment(pid: int) -> dict[bytes, bytes]:
    """The *initial* environment block; empty where it may not be read or the process is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            block = file.read()
    except (*_GONE, PermissionError):
        return {}
    pairs = (item.partition(b"=") for item in block.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            yield int(name)


def ancestors(pid: int) -> set[int]:
    """``pid`` and everything above it."""
    line = {pid}
    while (found := stat(pid)) is not None and found.parent > 0 and found.parent not in line:
        pid = found.parent
        line.add(pid)
    return line


def thread_names(pid: int) -> list[str]:
    names = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8", errors="replace") as file:
                names.append(file.read().strip())
        except _GONE:
            continue
    return names


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
