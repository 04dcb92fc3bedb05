"""Orders and their answers on this node: which are taken, which are refused, which were answered before.

Owns idempotence and the order of generations; must not carry anything out.
"""

import asyncio
from collections import OrderedDict

from keepstep.core.facts import Failed, Outcome
from keepstep.core.ids import Session
from keepstep.core.intents import CollectStacks, Fence, Inject, Intent, Launch, Order, VerifyCheckpoint

ANSWERS_KEPT = 256


class Answers:
    """The last outcomes by order number: a repeated order gets the same answer, not a second act.

    A server whose journal was restored from a copy counts from an older number: what it orders under a number that was used is
    another order all the same.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[Intent, Outcome]] = OrderedDict()
        self._in_work: dict[int, tuple[Intent, asyncio.Task[None]]] = {}

    def earlier(self, order: Order) -> Outcome | None:
        intent, outcome = self._known.get(order.number, (None, None))
        return outcome if intent == order.intent else None

    def in_work(self, order: Order) -> bool:
        return order.number in self._in_work and self._in_work[order.number][0] == order.intent

    def began(self, order: Order, task: "asyncio.Task[None]") -> None:
        self._in_work[order.number] = (order.intent, task)
        task.add_done_callback(lambda done: self._ended(order.number, done))

    def _ended(self, number: int, task: "asyncio.Task[None]") -> None:
        if number in self._in_work and self._in_work[number][1] is task:
            del self._in_work[number]

    def keep(self, order: Order, outcome: Outcome) -> None:
        self._known[order.number] = (order.intent, outcome)
        while len(self._known) > ANSWERS_KEPT:
            self._known.popitem(last=False)


class Generations:
    """What this node has seen of the job's generations. They only grow."""

    def __init__(self) -> None:
        self.launched = 0
        """Newest generation that was launched here."""
        self.fenced = 0
        """Up to here nothing lives and nothing may start."""
        self.self_fenced = 0
        """Up to here we ended it ourselves, without an order."""

    @property
    def newest(self) -> int:
        return max(self.launched, self.fenced)

    def refusal(self, intent: Intent, session: Session) -> Failed | None:
        """Why this order must not be carried out any more; None where it may."""
        addressed = getattr(intent, "session", session)
        if addressed != session:
            return Failed(reason=f"the order is for session {addressed}, this launcher is {session}")
        match intent:
            case Launch(generation=generation):
                if generation <= self.fenced or generation < self.launched:
                    return Failed(reason=f"superseded: generation {generation} is ordered, {self.newest} is known here")
                if generation == self.launched:
                    return Failed(reason=f"generation {generation} was launched here before, by another order")
            case Fence(generation=generation):
                if generation < self.launched:
                    return Failed(reason=f"superseded: generation {self.launched} was launched here after {generation}")
            case CollectStacks(generation=generation) | Inject(generation=generation):
                if generation != self.launched or generation <= self.fenced:
                    return Failed(
                        reason=f"superseded: generation {generation} does not run here, the newest is {self.newest}"
                    )
            case VerifyCheckpoint() | _:
                return None
        return None
