"""What a review says, as one struct: its JSON is the export. Owns the shapes; the arithmetic is beside it, one file a subject.

Times are seconds since the epoch, durations seconds; "GPU-hours" are ranks times hours, since one rank is one GPU. Every
figure carries its count, and is None with a note where there are too few. A field is only ever added, with a default.
docs/reference/review.md defines each.
"""

from msgspec import Struct, field

from keepstep.core.preemptions import Precision
from keepstep.review.estimates import Share, Spread, Trend, share, spread
from keepstep.review.records import DrillRecord, FaultRecord, IncidentRecord, JobRecord, SaveRecord


class Fleet(Struct, frozen=True, kw_only=True):
    """What there is to fail."""

    nodes: int = 0
    nodes_by_rack: dict[str, int] = {}


class Repair(Struct, frozen=True, kw_only=True):
    """A repair order that was opened for a part."""

    resource: str
    node: str = ""
    serial: str = ""
    reason: str = ""
    opened_s: float
    closed_s: float | None = None
    """When the part left repair; None while it is open."""
    became: str = ""
    """State that it went to: ``validating``, ``burn_in``, ``retired``, ``lost``."""
    in_service_s: float | None = None
    """When validation had closed it: the part worked again."""
    incident: str = ""


class Material(Struct, frozen=True, kw_only=True):
    """What a review is computed from. Incidents and faults count where they ended in the span; those that are still open
    come with ``state`` ``open`` and their cost until now."""

    since_s: float
    until_s: float
    incidents: tuple[IncidentRecord, ...] = ()
    jobs: tuple[JobRecord, ...] = ()
    faults: tuple[FaultRecord, ...] = ()
    saves: tuple[SaveRecord, ...] = ()
    precision: tuple[Precision, ...] = ()
    fleet: Fleet = Fleet()
    repairs: tuple[Repair, ...] = ()
    drills: tuple[DrillRecord, ...] = ()


# ---- time


class Badput(Struct, frozen=True, kw_only=True):
    """Time of jobs that led nowhere."""

    category: str
    """``queue``, ``program_startup``, ``infrastructure_recovery``, ``wasted_progress``."""
    cause: str = ""
    """Of the incident, for the last two."""
    gpu_h: float = 0.0
    share: float | None = None
    """Of the total."""


class JobTime(Struct, frozen=True, kw_only=True):
    """One job within the span. ``productive_s`` and the badput add up to ``total_s``."""

    job: str
    tenant: str
    state: str
    ranks: int
    total_s: float
    queue_s: float
    startup_s: float
    recovery_s: float
    wasted_s: float
    productive_s: float
    faults: int
    ettr: float | None
    """Productive over running and queued time."""
    goodput: float | None
    """Productive over the time since its first verified step."""
    model: str = ""


class Time(Struct, frozen=True, kw_only=True):
    """Over all jobs, weighted by their GPUs. ``productive_gpu_h`` and the badput add up to ``total_gpu_h``."""

    n: int
    """Jobs that had GPUs."""
    total_gpu_h: float
    productive_gpu_h: float
    ettr: float | None
    goodput: float | None
    badput: tuple[Badput, ...]
    """Largest first."""
    jobs: tuple[JobTime, ...]
    """Costliest first, the first ``JOBS_TOLD`` of them."""
    note: str = ""


class Loss(Struct, frozen=True, kw_only=True):
    """What incidents of one class or cause cost."""

    name: str
    incidents: int
    gpu_h: float
    recovery_gpu_h: float
    wasted_gpu_h: float
    share: float | None
    """Of all that was lost."""


class Day(Struct, frozen=True, kw_only=True):
    start_s: float
    incidents: int
    lost_gpu_h: float


class Cost(Struct, frozen=True, kw_only=True):
    """Of fault incidents that ended in the span."""

    n: int
    gpu_h: float
    by_cause: tuple[Loss, ...]
    by_class: tuple[Loss, ...]
    by_model: tuple[Loss, ...]
    """By the label ``model`` of the job."""
    by_day: tuple[Day, ...]


# ---- failures


class Rate(Struct, frozen=True, kw_only=True):
    """Time to failure of one kind. The interval is 95 %."""

    name: str
    exposure_h: float
    """GPU-hours of running; job-hours where said so."""
    failures: int
    mttf_h: float | None
    low_h: float | None
    high_h: float | None
    note: str = ""


class Week(Struct, frozen=True, kw_only=True):
    start_s: float
    exposure_gpu_h: float
    failures: int
    mtbf_gpu_h: float | None


class Rack(Struct, frozen=True, kw_only=True):
    """Root causes in a rack beside what its share of the nodes would give."""

    rack: str
    nodes: int
    failures: int
    expected: float | None
    p: float | None
    """Probability of so many or more by chance, corrected for the number of racks that were looked at."""
    verdict: str
    """``more than chance``, ``as chance``, ``too few``, ``size unknown``, ``the only one``."""


class Failures(Struct, frozen=True, kw_only=True):
    n: int
    by_device_model: tuple[Rate, ...]
    by_size: tuple[Rate, ...]
    """Hours of a job of that size between its faults."""
    by_domain: tuple[Rate, ...]
    """Rack; exposure is its share of all GPU-hours, by nodes."""
    by_label: tuple[Rate, ...]
    weeks: tuple[Week, ...]
    trend: str
    """``more often``, ``less often``, ``steady``, ``too few``."""
    trend_p: float | None
    racks: tuple[Rack, ...]
    note: str = ""


# ---- recovery, saves, trust, lemons


class Stage(Struct, frozen=True, kw_only=True):
    """``all`` is the whole recovery. ``alone`` went by themselves, ``helped`` waited for a person."""

    stage: str
    every: Spread
    alone: Spread
    helped: Spread


class Recoveries(Struct, frozen=True, kw_only=True):
    n: int
    """Fault incidents that ended."""
    recovered: Share
    first_restart: Share
    """Recovered by the first generation, of those that started one."""
    alone: Share
    """Recovered with no word of a person, of all that recovered."""
    stages: tuple[Stage, ...]
    restored_from: dict[str, int]
    lost_s: Spread
    """Work done again, per recovery."""
    lost_steps: Spread
    checkpoint_age_s: Spread
    lost_histogram: tuple[tuple[float, int], ...]
    """(upper edge in seconds, recoveries); the last edge is infinite and written as -1."""


class JobSaves(Struct, frozen=True, kw_only=True):
    job: str
    duration_s: Spread
    bytes_per_s: float | None
    trend: Trend


class Saves(Struct, frozen=True, kw_only=True):
    n: int
    duration_s: Spread
    trend: Trend
    """Of durations beside the median of their own job."""
    by_day: tuple[tuple[float, float, int], ...]
    """(start, median duration, count)."""
    jobs: tuple[JobSaves, ...]


class Trust(Struct, frozen=True, kw_only=True):
    """How right the rules were, since the beginning of the journal: proof takes a week."""

    rules: tuple[Precision, ...]
    isolations_right: Share
    preemptions: int
    preemptions_unnecessary: Share
    """Of those that are judged."""
    pending: int


class Lemon(Struct, frozen=True, kw_only=True):
    """A part or a node that fails again and again."""

    kind: str
    """``serial`` or ``node``."""
    name: str
    node: str
    rack: str
    failures: int
    incidents: int
    lost_gpu_h: float
    classes: tuple[str, ...]
    first_s: float
    last_s: float
    p: float | None
    """Of so many or more on any one node by chance; None for serials and where the fleet is unknown."""


class Repairs(Struct, frozen=True, kw_only=True):
    opened: int
    open: int
    turnaround_s: Spread
    returned: Share
    """Back in service, of those that left repair."""
    oldest_s: float | None
    """Age of the oldest open one."""
    orders: tuple[Repair, ...]


class Drills(Struct, frozen=True, kw_only=True):
    """Faults that were injected on purpose. No other figure counts them, but the time that they cost is badput."""

    n: int = 0
    """That were injected and are over."""
    passed: Share = field(default_factory=lambda: share(0, 0))
    called_off: int = 0
    detection_s: Spread = field(default_factory=lambda: spread([]))
    """From the order to the incident."""
    recovery_s: Spread = field(default_factory=lambda: spread([]))
    """Without progress, of those that were recovered from."""
    gpu_h: float = 0.0
    latest: tuple[DrillRecord, ...] = ()
    """Newest first."""


class Review(Struct, frozen=True, kw_only=True):
    since_s: float
    until_s: float
    tenant: str = ""
    time: Time
    cost: Cost
    failures: Failures
    recoveries: Recoveries
    saves: Saves
    trust: Trust
    lemons: tuple[Lemon, ...]
    repairs: Repairs
    drills: Drills = field(default_factory=Drills)
