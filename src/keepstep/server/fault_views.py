"""Answers about faults and nodes, as structs: what `keepstep faults` and `keepstep nodes` print. Computes nothing."""

from msgspec import Struct

from keepstep.server.views import ActionView


class FaultView(Struct, frozen=True, kw_only=True):
    id: str
    state: str
    resource: str
    """``n7/gpu/0000:9b:00``, ``rack/r12``, ``n7``."""
    cause: str
    failure_class: str
    scope: str
    verdict: str
    urgency: str
    confidence: float
    text: str
    resource_action: str
    job_action: str
    opened_s: float
    last_s: float
    closed_s: float | None
    outcome: str
    count: int
    """Signals that are evidence for it."""
    signals: tuple[str, ...]
    nodes: tuple[str, ...]
    held: tuple[str, ...]
    incidents: tuple[str, ...]
    group: str | None
    members: tuple[str, ...]


class Faults(Struct, frozen=True, kw_only=True):
    """Newest first: open ones, then those that are over, by the time of their end."""

    faults: tuple[FaultView, ...]
    next: str = ""
    total: int = 0
    note: str = ""
    """What is missing, why, and how old the rest is; empty where nothing is."""


class FaultReport(Struct, frozen=True, kw_only=True):
    fault: FaultView
    entries: tuple[int, ...]
    """Journal entries that are evidence for it."""
    actions: tuple[ActionView, ...]


class CoverageView(Struct, frozen=True, kw_only=True):
    source: str
    state: str
    detail: str


class NodeView(Struct, frozen=True, kw_only=True):
    node: str
    means: str
    """What the present view of all witnesses means, see docs/reference/liveness.md."""
    text: str
    agent: str
    """``heard``, ``silent`` or ``none``."""
    power: str
    """As its BMC says: ``on``, ``off``, ``unknown``; ``dark`` where the BMC does not answer; empty where none is known."""
    domains: dict[str, str]
    coverage: tuple[CoverageView, ...]
    faults: tuple[str, ...]
    """Open ones."""


class Nodes(Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeView, ...]
    next: str = ""
    total: int = 0
