"""Ends what carries our mark. Owns finding and killing by token; must not go by parent pid, process group or name.

A process is ours only if its *initial* environment holds the exact token of the launcher. It is signalled through a
pidfd that was opened before its start time and its mark were looked at again, so a reused pid can never be hit (case
A5), and never an ancestor of the process that sweeps.
"""

import os
import select
import signal
import time
from collections.abc import Set
from typing import NamedTuple

from keepstep.adapters.local import procfs
from keepstep.wire.environment import GENERATION, TOKEN

_ROUNDS_MAX = 20
"""A process may fork while it is looked for; after so many rounds something breeds faster than it is killed."""


class Unkillable(RuntimeError):
    """Processes that outlived SIGKILL: the node cannot be fenced from here."""

    def __init__(self, survivors: "list[Marked]") -> None:
        self.survivors = survivors
        super().__init__("; ".join(describe_survivor(found.pid) for found in survivors))


class Marked(NamedTuple):
    """A process that carries a token."""

    pid: int
    started: int
    generation: int


def describe_survivor(pid: int) -> str:
    """Why a process is still there after SIGKILL, in words that say what to do."""
    found = procfs.stat(pid)
    state = found.state if found else "?"
    if state == "D":
        return (
            f"pid {pid} is in uninterruptible sleep (D) and outlived SIGKILL; its driver or file system hangs: "
            "reboot or power-cycle the node"
        )
    return f"pid {pid} (state {state}) outlived SIGKILL; look at /proc/{pid}/stack, reboot or power-cycle the node"


def marked(token: str, generations: range | None = None) -> list[Marked]:
    """Living processes with this token, of these generations (None: of any)."""
    wanted, found = token.encode(), []
    for pid in procfs.pids():
        block = procfs.environment(pid)
        if block.get(TOKEN.encode()) != wanted:
            continue
        digits = block.get(GENERATION.encode(), b"0")
        generation = int(digits) if digits.isdigit() else 0
        seen = procfs.stat(pid)
        if seen is None or seen.state in "ZX" or (generations is not None and generation not in generations):
            continue
        found.append(Marked(pid, seen.start_ticks, generation))
    return found


def open_if_same(pid: int, started: int) -> int | None:
    """A pidfd of this very process; None if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if procfs.start_ticks(pid) != started:
        os.close(pidfd)
        return None
    return pidfd


def kill(found: Marked, token: str) -> int | None:
    """SIGKILL to this very process. Returns its pidfd to wait on, or None if it is gone or no longer carries the mark."""
    pidfd = open_if_same(found.pid, found.started)
    if pidfd is None:
        return None
    # exec gives the same pid and start time another environment: a process that shed the mark is not ours to kill.
    if procfs.environment(found.pid).get(TOKEN.encode()) != token.encode():
        os.close(pidfd)
        return None
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        os.close(pidfd)
        return None
    return pidfd


def has_ended(pidfd: int, wait_s: float) -> bool:
    """Waits at most ``wait_s`` for the end of a process, child or not."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(max(0.0, wait_s) * 1000))


def sweep(token: str, *, generations: range | None = None, spared: Set[int] = frozenset(), wait_s: float = 10.0) -> int:
    """Kills every process with this token, of these generations (None: of any), until none is found.

    Blocks for at most about ``wait_s``.

    ``spared`` pids and the caller's own ancestors are never touched. Returns how many were killed. Raises Unkillable if
    some outlive SIGKILL.
    """
    deadline = time.monotonic() + wait_s
    safe = procfs.ancestors(os.getpid()) | spared
    killed = 0
    for _ in range(_ROUNDS_MAX):
        found = [one for one in marked(token, generations) if one.pid not in safe]
        if not found:
            return killed
        waits = [(one, pidfd) for one in found if (pidfd := kill(one, token)) is not None]
        killed += len(waits)
        survivors = [one for one, pidfd in waits if not has_ended(pidfd, deadline - time.monotonic())]
        for _, pidfd in waits:
            os.close(pidfd)
        if survivors:
            raise Unkillable(survivors)
    raise Unkillable(marked(token, generations))
