"""What is kept of jobs, incidents and faults once they are over: one flat record each, from which reviews are computed.

Owns the shapes. Times are seconds since the epoch by the server's clock, durations seconds. A field is only ever added, with
a default.
"""

from msgspec import Struct

from keepstep.core.drill import Mark

DRILL = "drill"
"""Cause of what a drill costs."""


class IncidentRecord(Struct, frozen=True, kw_only=True):
    id: str
    job: str
    tenant: str
    kind: str
    """``start`` or ``fault``."""
    state: str
    """``recovered``, ``no_fault``, ``escalated``, …: see docs/reference/state-machines.md."""
    cause: str
    """Requirement B2's classes; ``undiagnosed`` where it ended before."""
    failure_class: str = ""
    confidence: float = 0.0
    summary: str = ""
    fault: str = ""
    resources: tuple[str, ...] = ()
    """Isolated suspects."""
    nodes: tuple[str, ...] = ()
    """Of the suspects and of lost nodes."""
    racks: tuple[str, ...] = ()
    serials: tuple[str, ...] = ()
    device_models: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    """Of the job."""
    ranks: int = 0
    """Size of the job when it was opened; one rank is one GPU."""
    opened_s: float = 0.0
    closed_s: float = 0.0
    downtime_s: float = 0.0
    """From the first evidence to verified progress; to the end where it was not recovered."""
    stage_s: dict[str, float] = {}
    step_before: int = -1
    restored_step: int | None = None
    restored_from: str = ""
    """``ram``, ``disk``, or empty for a start from nothing."""
    lost_steps: int = 0
    redone_s: float = 0.0
    """Lost steps times the step time before."""
    checkpoint_age_s: float | None = None
    """Of the newest committed checkpoint when it was opened."""
    attempts: int = 1
    """Generations that were started for it; the first restart succeeded where it is 1 and the state ``recovered``."""
    approvals: int = 0
    """Words of a person that it waited for; 0: it went by itself."""
    replaced: tuple[str, ...] = ()
    """Nodes that the job left."""
    verdict: str = ""
    drill: str = ""
    """The drill that led to it; empty for a fault that nobody ordered."""

    @property
    def lost_gpu_s(self) -> float:
        return self.ranks * (self.downtime_s + self.redone_s)

    @property
    def charged_to(self) -> str:
        """The cause of the time that it cost."""
        return DRILL if self.drill else self.cause


class JobRecord(Struct, frozen=True, kw_only=True):
    """Of jobs that are over, and, made anew at each look, of those that run."""

    id: str
    tenant: str
    state: str
    labels: dict[str, str] = {}
    ranks: int = 0
    nodes: int = 0
    device_models: tuple[str, ...] = ()
    submitted_s: float = 0.0
    running_since_s: float | None = None
    finished_s: float | None = None
    """None while it runs."""
    step: int = -1
    step_time_s: float | None = None
    downtime_s: float = 0.0
    redone_s: float = 0.0
    faults: int = 0
    exit_code: int | None = None
    message: str = ""


class FaultRecord(Struct, frozen=True, kw_only=True):
    """A root cause on a resource or a domain, see core.fault."""

    id: str
    resource: str
    node: str
    part: str
    cause: str
    failure_class: str
    scope: str
    verdict: str
    opened_s: float
    closed_s: float
    outcome: str
    count: int = 0
    serial: str = ""
    device_model: str = ""
    rack: str = ""
    incidents: tuple[str, ...] = ()
    isolated: tuple[str, ...] = ()


class DrillRecord(Struct, frozen=True, kw_only=True):
    """A drill that is over, see core.drill."""

    id: str
    job: str
    tenant: str
    kind: str
    by: str
    """Who asked for it; ``schedule`` for the policy."""
    state: str
    """``passed``, ``failed`` or ``called_off``."""
    ended_s: float | None = None
    """None while it is under way."""
    target: str = ""
    """``rank 3 on n1``, or a node."""
    incident: str = ""
    detected_after_s: float | None = None
    """From the order to the opening of the incident."""
    marks: tuple[Mark, ...] = ()
    reason: str = ""


class SaveRecord(Struct, frozen=True, kw_only=True):
    """One committed checkpoint."""

    job: str
    at_s: float
    step: int
    duration_s: float
    size_bytes: int


Record = IncidentRecord | JobRecord | FaultRecord
