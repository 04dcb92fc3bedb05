"""Ends everything of a job up to a generation on this node, and proves it. Owns the killing; must not decide on it.

Known ranks are killed through their pidfds; then the process table is swept for our token, so that children which have
left their parents are found as well (case A3). Never an ancestor of ours, never a stranger.
"""

import asyncio
import logging
import signal
from typing import NamedTuple

from keepstep.adapters.local import procfs, sweep
from keepstep.launcher import pidfds
from keepstep.launcher.ranks import Rank, Ranks

log = logging.getLogger("keepstep.launcher")

KILL_WAIT_S = 10.0
"""A process that SIGKILL has not ended by then sits in the kernel: the node needs other means (case A2)."""
_NO_ORDINARY_SIGNALS = "DTt"
"""States in which SIGTERM would not be seen before the grace is over (case A7)."""


class Fenced(NamedTuple):
    killed: int
    anything_ran: bool


async def end_ranks(ranks: list[Rank], grace_s: float) -> int:
    """SIGTERM, then SIGKILL after ``grace_s``; at once for 0. Returns how many were alive. Raises sweep.Unkillable."""
    alive = [rank for rank in ranks if rank.alive]
    if grace_s > 0:
        polite = [rank for rank in alive if _hears_sigterm(rank.pid)]
        for rank in alive:
            pidfds.kill(rank.pidfd, signal.SIGTERM if rank in polite else signal.SIGKILL)
        await pidfds.all_ended([rank.pidfd for rank in polite], grace_s)
    for rank in alive:
        pidfds.kill(rank.pidfd, signal.SIGKILL)
    if not await pidfds.all_ended([rank.pidfd for rank in alive], KILL_WAIT_S):
        raise sweep.Unkillable([sweep.Marked(rank.pid, 0, rank.plan.generation) for rank in alive if rank.alive])
    return len(alive)


def _hears_sigterm(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is not None and found.state not in _NO_ORDINARY_SIGNALS


async def fence(ranks: Ranks, token: str, generation: int, grace_s: float) -> Fenced:
    """Nothing with ``token`` up to ``generation`` lives when this returns. Raises sweep.Unkillable.

    Our own helpers (zygote, stores, snapshot server) carry generation 0 and are not looked at.
    """
    mine = list(ranks.by_rank.values()) if ranks.generation <= generation else []
    if mine:
        ranks.silence()
    # What is being born is born within milliseconds; it must not be overlooked.
    if mine and not await ranks.all_born(KILL_WAIT_S):
        raise TimeoutError(f"ranks of generation {ranks.generation} are still being started after {KILL_WAIT_S:.0f} s")
    known = await end_ranks(mine, grace_s)
    generations = range(1, generation + 1)
    strays = await asyncio.to_thread(sweep.sweep, token, generations=generations, wait_s=KILL_WAIT_S)
    if strays:
        log.warning("killed %d processes that ranks had left behind", strays)
    if mine:
        ranks.forget()
    return Fenced(known + strays, bool(mine or strays))
