"""How much memory a snapshot server may take. Owns the reading of what is free; must not allocate."""

from pathlib import Path

DEFAULT_SHARE = 0.6
"""Of what is free when the server starts: the training process has its memory by its first snapshot, not before."""
_CGROUP = Path("/sys/fs/cgroup")


def default_limit_bytes() -> int:
    return int(free_bytes() * DEFAULT_SHARE)


def free_bytes() -> int:
    """Memory that can be had without swapping, within the limit of this process's control group."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        group = Path("/proc/self/cgroup").read_text().partition("0::/")[2].splitlines()[0]
        limit = int((_CGROUP / group / "memory.max").read_text())
        return max(0, min(free, limit - int((_CGROUP / group / "memory.current").read_text())))
    except (OSError, ValueError, IndexError):
        # No control group, or "max": the machine is the limit.
        return free
