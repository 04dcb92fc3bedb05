"""Faults that a drill orders, done to this node for real. Owns how; whether and to whom is decided by the server."""

import contextlib
import os
import signal
from collections.abc import Sequence

from keepstep.core.drill import DrillKind
from keepstep.core.facts import Done, Failed
from keepstep.launcher.ranks import Rank, Ranks

LAST_WORDS_S = 0.2
"""Between the order to lose the node and its loss."""

_SIGNALS: dict[DrillKind, signal.Signals] = {"kill-rank": signal.SIGKILL, "stop-rank": signal.SIGSTOP}


def hit(ranks: Sequence[Rank], number: int, kind: DrillKind) -> Done | Failed:
    """One rank of the generation that runs here."""
    victim = next((rank for rank in ranks if rank.plan.rank == number), None)
    if victim is None:
        return Failed(reason=f"rank {number} does not run here")
    name = _SIGNALS[kind]
    signal.pidfd_send_signal(victim.pidfd, name)
    return Done(detail=f"{name.name} to rank {number} (pid {victim.pid})")


def lose_node(ranks: Ranks) -> None:
    """As a machine is lost: everything at once, without a word. What else lives here dies with the launcher."""
    for rank in ranks.running():
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank.pidfd, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
