"""The drill: a real fault, injected on purpose, and how well it was met. Its states, its one transition table, its record.

The recovery of a drill is the recovery of any fault: no stage but ``rehearse`` looks at drills before a diagnosis is made.
What is known of the injection serves the score, and keeps the part that was hit from being blamed for good.
"""

import enum
from typing import Literal

from msgspec import Struct

from keepstep.core.ids import DrillId, IncidentId, JobId, NodeId

DrillKind = Literal["kill-rank", "stop-rank", "lose-node"]
KINDS: dict[DrillKind, str] = {
    "kill-rank": "SIGKILL to one rank",
    "stop-rank": "SIGSTOP to one rank: it lives, and does nothing",
    "lose-node": "SIGKILL to everything of the job on one node, its launcher too; a spare must stand by",
}
"""What is done. All of it is real, and none of it harms a machine."""

LABEL = "drills"
"""Label of a job: ``allow`` lets drills of the schedule hit it, ``never`` keeps those of people off as well."""


class DrillState(enum.Enum):
    WAITING = "waiting"
    """Asked for; the job is not steady, or another drill is under way."""
    INJECTED = "injected"
    """The launcher was ordered to do it. It must be noticed."""
    RECOVERING = "recovering"
    """An incident of the job has been opened since. One that turns out to be no fault was not the drill's: back to INJECTED."""
    PASSED = "passed"
    FAILED = "failed"
    CALLED_OFF = "called_off"
    """Nothing was injected, or the job was stopped, or came to its end, before there was anything to score."""


D = DrillState

TRANSITIONS: dict[DrillState, tuple[DrillState, ...]] = {
    D.WAITING: (D.INJECTED, D.CALLED_OFF),
    D.INJECTED: (D.RECOVERING, D.CALLED_OFF, D.FAILED),
    D.RECOVERING: (D.PASSED, D.FAILED, D.INJECTED, D.CALLED_OFF),
    D.PASSED: (),
    D.FAILED: (),
    D.CALLED_OFF: (),
}

TERMINAL = (D.PASSED, D.FAILED, D.CALLED_OFF)

OWNER: dict[DrillState, str] = {
    D.WAITING: "rehearse; called off after a while",
    D.INJECTED: "rehearse; failed when nothing notices",
    D.RECOVERING: "its incident",
    D.PASSED: "nobody",
    D.FAILED: "nobody",
    D.CALLED_OFF: "nobody",
}


def spelled(rank: int | None, node: NodeId) -> str:
    """What a drill hits, for people: a rank, or a node as a whole."""
    return f"node {node}" if rank is None else f"rank {rank} on {node}"


class Mark(Struct, frozen=True, kw_only=True):
    """The answer to one question about a drill."""

    question: Literal["detected", "blamed", "isolated", "restarted", "verified", "recovered"]
    good: bool
    text: str


class Drill(Struct, kw_only=True):
    id: DrillId
    job: JobId
    kind: DrillKind
    by: str
    """Who asked for it; ``schedule`` for the policy."""
    state: DrillState = DrillState.WAITING
    asked_s: float = 0.0
    entered_s: float = 0.0
    """When the present state was entered."""
    wanted_rank: int | None = None
    """The rank that was asked for; of ``lose-node``, one that lives on the node."""
    rank: int | None = None
    """The rank that was hit; None of a node."""
    node: NodeId | None = None
    generation: int = 0
    injected_s: float | None = None
    """When the order left: what was noticed is measured from here, so delivery counts as well."""
    watched_s: float = 0.0
    """From when on it could be noticed: its injection, or a later start of the server."""
    refused: str = ""
    """Why its launcher did not do it."""
    incident: IncidentId | None = None
    marks: tuple[Mark, ...] = ()
    reason: str = ""
    """Of its end, in a sentence."""

    @property
    def open(self) -> bool:
        return self.state not in TERMINAL
