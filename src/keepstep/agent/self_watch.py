"""What the agent itself costs: processor and memory, its lasting children included. Owns the measuring and the budget."""

import os
import time
from dataclasses import dataclass

from keepstep.adapters.local import procfs

CPU_SHARE_MAX = 0.01
PSS_MAX_BYTES = 60 * 1024 * 1024
LOOK_S = 60.0
_OVER_LOOKS = 5
"""For so many looks in a row before it is told: a start, or a storm that is read, is no lasting cost."""


@dataclass(frozen=True)
class Cost:
    cpu_share: float
    """Of one core, since the last look."""
    pss_bytes: int
    """Of the agent and its children, shared pages counted once."""

    @property
    def is_over(self) -> bool:
        return self.cpu_share > CPU_SHARE_MAX or self.pss_bytes > PSS_MAX_BYTES


class SelfWatch:
    def __init__(self) -> None:
        self._at_s = time.monotonic()
        self._cpu_s = _cpu_s(_family())
        self._over = 0

    def look(self) -> Cost:
        family = _family()
        now_s, cpu_s = time.monotonic(), _cpu_s(family)
        # A child that was ended unreaped takes its share with it: never less than nothing.
        share = max(0.0, cpu_s - self._cpu_s) / max(now_s - self._at_s, 1e-3)
        self._at_s, self._cpu_s = now_s, cpu_s
        cost = Cost(share, sum(_pss_bytes(pid) for pid in family))
        self._over = self._over + 1 if cost.is_over else 0
        return cost

    @property
    def is_too_heavy(self) -> bool:
        """For so long that it is no accident. True once for each such time."""
        return self._over == _OVER_LOOKS


def _family() -> list[int]:
    """Ourselves and everything below."""
    found = [os.getpid()]
    for pid in found:
        found += _children(pid)
    return found


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
        except OSError:
            # A thread that ended, or a kernel without this file: its children are not counted.
            continue
    return found


def _cpu_s(family: list[int]) -> float:
    """Ours with all that was reaped, and what lives."""
    own = os.times()
    lasting = sum(found.cpu_s for pid in family[1:] if (found := procfs.stat(pid)) is not None)
    return own.user + own.system + own.children_user + own.children_system + lasting


def _pss_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
