"""Answers of the read side, as structs. Owns their shapes (they are the ``--json`` of the CLI); computes nothing.

Times are seconds since the epoch, durations and ages seconds. A field is only ever added, with a default.
"""

from msgspec import Struct


class JobView(Struct, frozen=True, kw_only=True):
    id: str
    state: str
    generation: int
    nodes: int
    """Nodes that the present generation is placed on."""
    ranks: int
    step: int
    """Newest step that all ranks are known to have completed; -1 for none."""
    loss: float | None
    checkpoint_step: int
    """Newest committed checkpoint; -1 for none."""
    incident: str | None
    incidents: int
    """Faults so far; the start is not one."""
    submitted_s: float
    finished_s: float | None
    exit_code: int | None
    message: str
    argv: tuple[str, ...]
    slower: str = ""
    """Where its steps take longer than they should: which ranks, how much, against whom."""
    tenant: str = ""
    labels: dict[str, str] = {}


class Jobs(Struct, frozen=True, kw_only=True):
    """Newest first: those that run, then those that are over."""

    jobs: tuple[JobView, ...]
    next: str = ""
    """Cursor of the following page; empty on the last one."""
    total: int = 0
    """How many fit, on all pages; one that was over and runs again counts twice."""
    note: str = ""
    """What is missing, why, and how old the rest is; empty where nothing is."""


class Leaving(Struct, frozen=True, kw_only=True):
    """Answer to ``leave``: whether the embedded server ends now. It stays while a job lives or another client is there."""

    leaves: bool


class IncidentLine(Struct, frozen=True, kw_only=True):
    id: str
    job: str
    kind: str
    state: str
    cause: str
    """Empty before the first diagnosis."""
    confidence: float
    summary: str
    resources: tuple[str, ...]
    opened_s: float
    closed_s: float | None
    downtime_s: float | None
    """From the first evidence to verified progress; None while it is open."""
    step_before: int
    restored_step: int | None
    lost_steps: int | None
    verdict: str
    waits_for: str = ""
    tenant: str = ""
    drill: str = ""
    """The drill that led to it, see ``keepstep drill show``; empty for a fault that nobody ordered."""


class Incidents(Struct, frozen=True, kw_only=True):
    """Newest first: open ones, then those that are over, by the time of their end."""

    incidents: tuple[IncidentLine, ...]
    next: str = ""
    total: int = 0
    note: str = ""
    """As of ``Jobs``."""


class EvidenceView(Struct, frozen=True, kw_only=True):
    entry: int
    """Journal entry that it rests on."""
    source: str
    text: str
    supports: bool


class AttemptView(Struct, frozen=True, kw_only=True):
    generation: int
    new_generation: int
    cause: str
    confidence: float
    summary: str
    resources: tuple[str, ...]
    lost_nodes: tuple[str, ...]
    culprits: tuple[int, ...]
    evidence: tuple[EvidenceView, ...]
    fenced: dict[str, str]
    """Node -> proof."""
    restore_tier: str
    """``ram``, ``disk``, or empty for a start from nothing."""
    restore_step: int | None
    restore_key: str
    rejected: tuple[str, ...]
    """States that did not verify and were passed over."""
    warm_nodes: int
    cold_nodes: int
    fault: str = ""
    """The root cause on a resource or a domain that it goes back to, see ``keepstep faults``."""


class OrderView(Struct, frozen=True, kw_only=True):
    number: int
    kind: str
    node: str
    answer: str
    """The outcome in a word or a reason; empty while it is open."""
    took_s: float | None


class ActionView(Struct, frozen=True, kw_only=True):
    entry: int
    after_s: float
    """Since the incident was opened."""
    stage: str
    reason: str
    orders: tuple[OrderView, ...]


class StageTime(Struct, frozen=True, kw_only=True):
    stage: str
    seconds: float


class IncidentReport(Struct, frozen=True, kw_only=True):
    incident: IncidentLine
    attempts: tuple[AttemptView, ...]
    actions: tuple[ActionView, ...]
    stages: tuple[StageTime, ...]
    verified_step: int


class StageSpread(Struct, frozen=True, kw_only=True):
    """``all`` is the whole recovery."""

    stage: str
    count: int
    p50_s: float
    p95_s: float


class JobReport(Struct, frozen=True, kw_only=True):
    job: str
    state: str
    elapsed_s: float
    """From submission to the end, or to now."""
    goodput: float | None
    """Share of the time since the first generation ran that went into steps that count; None before that."""
    downtime_s: float
    lost_steps: int
    redone_s: float
    """Lost steps times the step time at the fault."""
    faults: int
    by_cause: dict[str, int]
    by_verdict: dict[str, int]
    restored_from: dict[str, int]
    """Recoveries by tier: ram, disk, nothing."""
    stages: tuple[StageSpread, ...]


class Report(Struct, frozen=True, kw_only=True):
    jobs: tuple[JobReport, ...]
    stages: tuple[StageSpread, ...]
    """Over all jobs."""


class HoldView(Struct, frozen=True, kw_only=True):
    source: str
    reason: str
    since_s: float


class ResourceView(Struct, frozen=True, kw_only=True):
    id: str
    node: str
    state: str
    allocatable: bool
    serial: str
    holds: tuple[HoldView, ...]
    failures: int
    incident: str | None
    model: str = ""
    firmware: str = ""


class Resources(Struct, frozen=True, kw_only=True):
    resources: tuple[ResourceView, ...]
    next: str = ""
    total: int = 0


class HoldLine(Struct, frozen=True, kw_only=True):
    resource: str
    node: str
    state: str
    source: str
    """``keepstep:<incident>``, ``gate``, or ``person:<name>``: only that one can lift it."""
    reason: str
    since_s: float


class Holds(Struct, frozen=True, kw_only=True):
    holds: tuple[HoldLine, ...]
    next: str = ""
    total: int = 0


class Commit(Struct, frozen=True, kw_only=True):
    step: int
    generation: int
    world_size: int
    key: str


class Checkpoints(Struct, frozen=True, kw_only=True):
    """What a job could restore from, as its nodes last told; the store itself knows the whole history."""

    job: str
    committed: tuple[Commit, ...]
    """The newest commits, newest first."""
    committed_s: float | None
    """When the newest one was told."""
    every_s: float | None
    """Time between the last two."""
    failed_saves: int
    """Since the newest commit."""
    ram_steps: dict[str, tuple[int, ...]]
    """Node -> steps whose snapshots it held when it last joined or was fenced."""


class LauncherView(Struct, frozen=True, kw_only=True):
    node: str
    session: str
    boot_id: str
    pid: int
    pid_start: int
    reachable: bool
    running_generation: int
    gone: str


class Launchers(Struct, frozen=True, kw_only=True):
    launchers: tuple[LauncherView, ...]


class RankView(Struct, frozen=True, kw_only=True):
    rank: int
    node: str
    phase: str
    step: int
    step_time_s: float
    loss: float | None
    idle_s: float
    state: str
    """Letter of the process state; empty where no beat has come yet, ``ended`` where the rank is gone."""


class Live(Struct, frozen=True, kw_only=True):
    """One look at a job: what a live terminal shows."""

    job: str
    state: str
    generation: int
    step: int
    loss: float | None
    ranks: tuple[RankView, ...]
    nodes: tuple[LauncherView, ...]
    checkpoint_step: int
    checkpoint_age_s: float | None
    incident: str | None
    incident_stage: str
    incident_summary: str
    incident_age_s: float | None
    waits_for: str
    last_reason: str
    """Why the newest decision about the incident, else about the job, was taken."""
    exit_code: int | None
    message: str
    now_s: float
