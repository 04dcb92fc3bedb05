"""Answers about drills, as structs: what `keepstep drill` prints and the dashboard shows. Computes nothing."""

from msgspec import Struct

from keepstep.core.drill import Mark
from keepstep.server.views import ActionView


class DrillView(Struct, frozen=True, kw_only=True):
    id: str
    job: str
    kind: str
    by: str
    """Who asked for it; ``schedule`` for the policy."""
    state: str
    """``waiting``, ``injected``, ``recovering``, ``passed``, ``failed``, ``called_off``."""
    rank: int | None
    """The rank that is hit; None for a whole node, and while the choice is not made."""
    node: str
    """Empty while the choice is not made."""
    asked_s: float
    injected_s: float | None
    """When the order left; None where nothing was injected."""
    ended_s: float | None
    incident: str
    """The incident that it led to; empty before, and where there is none."""
    marks: tuple[Mark, ...]
    """Once its incident is closed."""
    reason: str
    """Of its end, in a sentence."""


class Drills(Struct, frozen=True, kw_only=True):
    """Newest first."""

    drills: tuple[DrillView, ...]
    next: str = ""
    total: int = 0


class DrillTimes(Struct, frozen=True, kw_only=True):
    """Seconds, as measured; None where it did not come to it, or where the incident is not known any more."""

    detected_after_s: float | None = None
    """From the order to the opening of the incident."""
    downtime_s: float | None = None
    """Without progress, once the incident is closed."""
    lost_steps: int | None = None


class DrillLimits(Struct, frozen=True, kw_only=True):
    """Of the policy that holds now, see ``[drills]`` in docs/reference/policy.md."""

    detect_s: float
    recover_s: float
    wait_s: float


class DrillReport(Struct, frozen=True, kw_only=True):
    drill: DrillView
    does: str
    """What this kind of drill does, in words."""
    times: DrillTimes
    limits: DrillLimits
    actions: tuple[ActionView, ...]
    """Decisions about the drill; those about the recovery stand in its incident."""
