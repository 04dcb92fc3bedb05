"""Faults that a drill orders, done to this node for real. Owns how; whether and to whom is decided by the server."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from keepstep.core.drill import DrillKind
from keepstep.core.facts import Done, Failed
from keepstep.core.intents import Inject
from keepstep.launcher.ranks import Rank, Ranks

LAST_WORDS_S = 0.2
"""Between the order to lose the node and its loss."""

_SIGNALS: dict[DrillKind, signal.Signals] = {"kill-rank": signal.SIGKILL, "stop-rank": signal.SIGSTOP}


def hit(ranks: Sequence[Rank], order: Inject) -> Done | Failed:
    """One rank of the generation that runs here. Call it in the event loop."""
    victim = next((rank for rank in ranks if rank.plan.rank == order.rank), None)
    if victim is None:
        return Failed(reason=f"rank {order.rank} does not run here")
    name = _SIGNALS[order.kind]
    signal.pidfd_send_signal(victim.pidfd, name)
    if name is signal.SIGSTOP and order.for_s > 0:
        # A drill that nobody noticed must not be an outage, and its server may be gone by then.
        asyncio.get_running_loop().call_later(order.for_s, _go_on, os.dup(victim.pidfd))
    return Done(detail=f"{name.name} to rank {order.rank} (pid {victim.pid})")


def _go_on(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    os.close(pidfd)


def lose_node(ranks: Ranks) -> None:
    """As a machine is lost: everything at once, without a word. What else lives here dies with the launcher."""
    for rank in ranks.running():
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank.pidfd, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
