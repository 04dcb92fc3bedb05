"""Orders that no launcher can carry out. Owns which ones these are; must not decide, and never blocks the event loop.

They are: tell people, open a repair order, ask the host about a silent launcher, end what a dead one left.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from keepstep.core.facts import Answered, Done, Failed, Fenced, Outcome
from keepstep.core.ids import Session
from keepstep.core.intents import AskWitness, Fence, Notify, OpenRepair, Order, PowerOff
from keepstep.ports import HostWitness

log = logging.getLogger("keepstep.server")

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "page": logging.CRITICAL}


def is_local(order: Order) -> bool:
    """Whether the server itself carries it out."""
    intent = order.intent
    if isinstance(intent, Fence):
        return intent.via == "witness"
    return isinstance(intent, AskWitness | Notify | OpenRepair | PowerOff)


def session_of(order: Order) -> Session | None:
    """The launcher session that an order is for."""
    intent = order.intent
    return None if isinstance(intent, Notify | OpenRepair) else intent.session


class LocalOrders:
    """Meets ports.Engine. ``observe`` takes the facts that come of it."""

    def __init__(
        self,
        host: HostWitness,
        repairs: Path,
        processes: Callable[[Session], tuple[str, int, int] | None],
        observe: Callable[..., None],
    ) -> None:
        self._host = host
        self._repairs = repairs
        self._processes = processes
        self._observe = observe
        self._running: set[asyncio.Task[None]] = set()

    def submit(self, orders: Iterable[Order]) -> None:
        for order in orders:
            task = asyncio.get_running_loop().create_task(self._carry_out(order))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _carry_out(self, order: Order) -> None:
        intent = order.intent
        outcome: Outcome
        match intent:
            case Notify():
                log.log(_LEVELS[intent.level], "%s: %s", intent.subject, intent.message)
                outcome = Done()
            case OpenRepair():
                outcome = await asyncio.to_thread(self._open_repair, intent)
            case AskWitness():
                seen = await asyncio.to_thread(
                    self._host.look,
                    intent.job,
                    intent.node,
                    intent.session,
                    intent.boot_id,
                    intent.pid,
                    intent.pid_start,
                )
                self._observe(seen)
                outcome = Done(detail=f"{seen.verdict}: {seen.detail}")
            case Fence():
                outcome = await asyncio.to_thread(self._fence, intent)
            case _:
                outcome = Failed(reason="no power control is configured for this node; fence it by hand, then approve")
        self._observe(Answered(intent=order.number, outcome=outcome))

    def _fence(self, intent: Fence) -> Outcome:
        """Only for a launcher that ran on this very machine and is gone; else nothing is proven by it."""
        boot_id, pid, pid_start = self._processes(intent.session) or ("", 0, 0)
        seen = self._host.look(intent.job, intent.node, intent.session, boot_id, pid, pid_start)
        if seen.verdict != "process_gone":
            return Failed(reason=f"the launcher is not known to be gone ({seen.verdict}: {seen.detail})")
        try:
            killed = self._host.sweep(intent.job, intent.node, intent.session)
        except (OSError, RuntimeError) as error:
            return Failed(reason=f"cannot end what the launcher left: {error}")
        return Fenced(generation=intent.generation, proof="process_gone", killed=killed)

    def _open_repair(self, intent: OpenRepair) -> Outcome:
        """One line per incident and resource, however often the order is repeated."""
        reference = f"{intent.incident}:{intent.resource}"
        line = {
            "reference": reference,
            "resource": intent.resource,
            "serial": intent.serial,
            "incident": intent.incident,
            "reason": intent.reason,
        }
        try:
            with self._repairs.open("a+") as file:
                file.seek(0)
                if not any(json.loads(known)["reference"] == reference for known in file):
                    file.write(json.dumps(line) + "\n")
        except OSError as error:
            return Failed(reason=f"cannot write {self._repairs}: {error.strerror}")
        return Done(detail=reference)
