"""Orders and their answers on this node: which are taken, which are refused, which were answered before.

Owns idempotence and the order of generations; must not carry anything out.
"""

import asyncio
from collections import OrderedDict

from keepstep.core.facts import Failed, Outcome
from keepstep.core.ids import Session
from keepstep.core.intents import CollectStacks, Fence, Intent, Launch, VerifyCheckpoint

ANSWERS_KEPT = 256


class Answers:
    """The last outcomes by order number: a repeated order gets the same answer, not a second act."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Outcome] = OrderedDict()
        self._in_work: dict[int, asyncio.Task[None]] = {}

    def earlier(self, number: int) -> Outcome | None:
        return self._known.get(number)

    def in_work(self, number: int) -> bool:
        return number in self._in_work

    def began(self, number: int, task: "asyncio.Task[None]") -> None:
        self._in_work[number] = task
        task.add_done_callback(lambda _: self._in_work.pop(number, None))

    def keep(self, number: int, outcome: Outcome) -> None:
        self._known[number] = outcome
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
            case CollectStacks(generation=generation):
                if generation != self.launched or generation <= self.fenced:
                    return Failed(
                        reason=f"superseded: generation {generation} does not run here, the newest is {self.newest}"
                    )
            case VerifyCheckpoint() | _:
                return None
        return None
