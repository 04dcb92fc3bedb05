"""Orders that no launcher can carry out. Owns which ones these are; must not decide, and never blocks the event loop.

They are: tell people, open a repair order, ask the host about a silent launcher, end what a dead one left.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from keepstep.core.facts import Answered, Done, Failed, Fenced, Outcome, Witnessed
from keepstep.core.ids import NodeId, Session
from keepstep.core.intents import AskWitness, Fence, Notify, OpenRepair, Order, PowerOff
from keepstep.ports import Bmc, HostWitness

log = logging.getLogger("keepstep.server")

POWER_OFF_WAIT_S = 120.0
POWER_LOOK_S = 1.0

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
        bmcs: Mapping[NodeId, Bmc],
    ) -> None:
        self._host = host
        self._repairs = repairs
        self._processes = processes
        self._observe = observe
        self._bmcs = bmcs
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
                if seen.verdict == "no_answer" and intent.node in self._bmcs:
                    word = await asyncio.to_thread(self._ask_bmc, intent)
                    self._observe(word)
                    outcome = Done(detail=f"bmc: {word.detail}")
            case Fence():
                outcome = await asyncio.to_thread(self._fence, intent)
            case PowerOff():
                outcome = await asyncio.to_thread(self._power_off, intent)
            case _:
                outcome = Failed(reason=f"the server does not carry out {type(intent).__name__}")
        self._observe(Answered(intent=order.number, outcome=outcome))

    def _ask_bmc(self, intent: AskWitness) -> Witnessed:
        """The word of a node's BMC about its power: Off proves that nothing runs, On proves nothing."""
        power = self._bmcs[intent.node].power()
        return Witnessed(
            job=intent.job,
            node=intent.node,
            session=intent.session,
            witness="bmc",
            verdict="host_off" if power == "off" else "no_answer",
            detail=f"power {power}",
        )

    def _power_off(self, intent: PowerOff) -> Outcome:
        """Hard, and believed only when the BMC says Off afterwards: power is switched seconds after the order."""
        bmc = self._bmcs.get(intent.node)
        if bmc is None:
            return Failed(reason=f"no BMC of {intent.node} is known (bmc.toml); fence it by hand, then approve")
        refusal = bmc.switch("off")
        if refusal:
            return Failed(reason=f"the BMC of {intent.node} refused: {refusal}")
        deadline_s = time.monotonic() + POWER_OFF_WAIT_S
        while time.monotonic() < deadline_s:
            if bmc.power() == "off":
                return Fenced(generation=intent.generation, proof="powered_off")
            time.sleep(POWER_LOOK_S)
        return Failed(reason=f"the BMC of {intent.node} did not say Off within {POWER_OFF_WAIT_S:.0f} s")

    def _fence(self, intent: Fence) -> Outcome:
        """For a node without power, or a launcher of this very machine that is gone; else nothing is proven by it."""
        bmc = self._bmcs.get(intent.node)
        if bmc is not None and bmc.power() == "off":
            return Fenced(generation=intent.generation, proof="powered_off")
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
