"""Policy: every limit, deadline and permission of the engine, as data. Owns the defaults and why they are what they are."""

from typing import Annotated

from msgspec import Meta, Struct, field

from keepstep.core.catalog import CATALOG, Catalog
from keepstep.core.drill import DrillKind
from keepstep.core.incident import Cause, IncidentState
from keepstep.core.resource import ResourceState


class Hang(Struct, frozen=True, kw_only=True):
    """When silence of the ranks becomes a suspicion."""

    stop_grace_s: float = 1.0
    """A rank in job-control stop while others are not. Short: a stopped process cannot cure itself."""
    stack_wait_s: float = 0.8
    """How long the verdict on a stopped rank waits for its stack."""
    step_floor_s: float = 5.0
    """No step deadline is below this, however quick the steps are."""
    step_median_factor: float = 20.0
    step_max_factor: float = 4.0
    """The step deadline is the larger of these times the median and the slowest of the recent steps."""
    learn_steps: int = 3
    """Steps that must have been seen before a deadline is learned."""
    first_s: float = 900.0
    """Deadline of a phase that was never seen to end: start, restore, first step, first checkpoint, first evaluation."""
    phase_factor: float = 5.0
    """Deadline of a longer phase: this times the longest one seen, but not below ``phase_floor_s``."""
    phase_floor_s: float = 120.0
    busy_s: float = 1800.0
    """A rank that is behind but uses its CPU outside a declared step gets this long."""
    excuse_factor: float = 2.0
    """After a false alarm the job's deadlines grow by this."""


class Silence(Struct, frozen=True, kw_only=True):
    lease_s: float = 3.0
    """Nothing heard from a launcher for this long makes it unreachable (A5: < 10 s). Unknown, not dead."""
    agent_lease_s: float = 5.0
    """The same of a node's agent: its silence is a witness's, and never a reason by itself."""
    lost_connection_s: float = 0.05
    """The same where its connection broke: the kernel has said something, so a witness is asked at once."""
    self_fence_s: float = 20.0
    """A launcher that hears nothing and makes no progress has ended its ranks after this long, measured by it from the
    last word it got; measured here from the last word it sent, plus ``margin_s``."""
    margin_s: float = 5.0
    unknown_s: float = 900.0
    """How long a silent node of a job that still steps may stay unknown before a person is told."""
    presume_s: float = 10.0
    """A node silent this long whose job stands still is presumed lost (two witnesses: silence and peers)."""


class Budget(Struct, frozen=True, kw_only=True):
    """Restarts per root cause within the window; the first one over it escalates."""

    window_s: float = 6 * 3600.0
    per_cause: dict[str, int] = field(
        default_factory=lambda: {
            Cause.APPLICATION.value: 3,
            Cause.DATA.value: 3,
            Cause.DEVICE.value: 6,
            Cause.HOST_SOFTWARE.value: 12,
            Cause.HOST_HARDWARE.value: 12,
            Cause.NETWORK.value: 6,
            Cause.POWER.value: 12,
            Cause.DEPENDENCY.value: 6,
            Cause.CHECKPOINT.value: 8,
            Cause.OPERATOR.value: 100,
            Cause.UNKNOWN.value: 5,
        }
    )
    same_error_limit: int = 2
    """The same error at the same step this many times is a deterministic bug."""


class DeviceRule(Struct, frozen=True, kw_only=True):
    max_failures: int = 3
    """Failures that could be a device's own, within the window, before it is quarantined."""
    window_s: float = 24 * 3600.0
    max_resets: int = 1
    max_gate_tries: int = 3
    """A gate whose tool fails is tried again; it is never a pass."""
    probation_s: float = 3600.0
    suspect_s: float = 600.0
    return_automatically: bool = True
    """After a passed gate the device comes back on probation without a person."""


class Breaker(Struct, frozen=True, kw_only=True):
    """Stops automatic isolation when too much of the fleet would go."""

    window_s: float = 300.0
    absolute: int = 3
    fraction: float = 0.02
    """The larger of the two counts; of devices in the whole fleet."""


class Correlation(Struct, frozen=True, kw_only=True):
    """How signals become faults."""

    window_s: float = 24 * 3600.0
    """How far back combination rules look on a node."""
    quiet_s: float = 3600.0
    """A fault that nothing was isolated for closes after this long without evidence."""
    settle_s: float = 15.0
    """A suspicion that rests on good news that did not come waits this long for it: links come back by themselves."""
    together_s: float = 300.0
    """Members of a domain that fail of the same class within this share a cause."""


class Verify(Struct, frozen=True, kw_only=True):
    steps: int = 2
    """New steps that every rank must complete before a recovery counts."""
    blind_s: float = 20.0
    """For a script that reports no steps: alive this long is all that can be verified, and the verdict says so."""
    loss_factor: float = 3.0
    """A loss above this times the loss before the fault (plus ``loss_slack``) is not plausible."""
    loss_slack: float = 1.0


class Capacity(Struct, frozen=True, kw_only=True):
    wait_s: float = 3600.0
    """How long a job waits for a healthy node before it ends."""
    start_wait_s: float = 600.0
    """How long a new job waits for its nodes to join."""
    start_settle_s: float = 5.0
    """How long the start of an elastic job waits for the nodes between its minimum and its maximum."""


class Approvals(Struct, frozen=True, kw_only=True):
    power_off: bool = False
    """Power-fencing without a person."""
    start_from_nothing: bool = False
    """Restarting at step 0 although checkpoints exist and none is valid."""
    wait_s: float = 4 * 3600.0
    """How long an incident waits for a person before it escalates."""


Hour = Annotated[int, Meta(ge=0, le=24)]


class Drills(Struct, frozen=True, kw_only=True):
    """Faults injected on purpose, and what is expected of their recovery."""

    every_s: float = 0.0
    """Time between two drills of the schedule, in the whole installation; 0 for none. Only jobs labelled ``drills=allow``."""
    kinds: tuple[DrillKind, ...] = ("kill-rank", "stop-rank")
    """What the schedule does, in turn."""
    hours_utc: tuple[Hour, Hour] = (0, 24)
    """The schedule keeps to these hours of the day: from the first, before the second; (22, 5) is a night, (0, 0) all day."""
    quiet_s: float = 600.0
    """How long the job must have run without an incident before the schedule hits it."""
    checkpoint_age_s: float = 600.0
    """The schedule hits a job only where its newest checkpoint is younger than this."""
    wait_s: float = 300.0
    """How long a drill waits for its job to be steady before it is called off."""
    detect_s: float = 30.0
    """The fault must have been noticed after this long; one that is not after four times as long fails undetected."""
    recover_s: float = 300.0
    """The job must have been without progress for no longer than this."""


class Retention(Struct, frozen=True, kw_only=True):
    """How long what is over stays in the memory of the server. The archive and the journal keep it."""

    incidents_s: float = 7 * 86_400.0
    faults_s: float = 30 * 86_400.0
    """Longer than a verdict waits for its proof."""
    jobs_s: float = 7 * 86_400.0


class Orders(Struct, frozen=True, kw_only=True):
    """Time-outs of intents, by kind, in seconds. Overdue says that the answer is late, not that the act failed."""

    timeout_s: dict[str, float] = field(
        default_factory=lambda: {
            "Fence": 15.0,
            "Launch": 120.0,
            "CollectStacks": 5.0,
            "VerifyCheckpoint": 600.0,
            "AskWitness": 5.0,
            "Quarantine": 60.0,
            "Release": 60.0,
            "ResetDevice": 300.0,
            "RunGate": 900.0,
            "PowerOff": 300.0,
            "Inject": 30.0,
            "OpenRepair": 60.0,
            "EndJob": 30.0,
            "Notify": 60.0,
        }
    )
    fence_retry_s: float = 1.0
    """Doubles with each try, up to ``fence_retry_max_s``."""
    fence_retry_max_s: float = 15.0


class Policy(Struct, frozen=True, kw_only=True):
    hang: Hang = Hang()
    silence: Silence = Silence()
    budget: Budget = Budget()
    device: DeviceRule = DeviceRule()
    breaker: Breaker = Breaker()
    correlation: Correlation = Correlation()
    catalog: Catalog = CATALOG
    """What signals mean; a site lays its own rows over the built-in ones."""
    verify: Verify = Verify()
    capacity: Capacity = Capacity()
    approvals: Approvals = Approvals()
    orders: Orders = Orders()
    retention: Retention = Retention()
    drills: Drills = Drills()
    incident_deadline_s: dict[str, float] = field(
        default_factory=lambda: {
            IncidentState.OPEN.value: 900.0,
            IncidentState.ISOLATING.value: 120.0,
            IncidentState.SELECTING.value: 1800.0,
            IncidentState.PLACING.value: 4 * 3600.0,
            IncidentState.RESTARTING.value: 600.0,
            IncidentState.VERIFYING.value: 1800.0,
            IncidentState.WAITING.value: 4 * 3600.0,
        }
    )
    """Every open state has a deadline; what happens then is in engine.py."""
    resource_deadline_s: dict[str, float] = field(
        default_factory=lambda: {
            ResourceState.SUSPECT.value: 600.0,
            ResourceState.QUARANTINED.value: 900.0,
            ResourceState.DRAINING.value: 3600.0,
            ResourceState.FENCED.value: 300.0,
            ResourceState.REMEDIATING.value: 1800.0,
            ResourceState.VALIDATING.value: 3600.0,
            ResourceState.PROBATION.value: 3600.0,
        }
    )
    max_decisions_per_turn: int = 10_000
    max_decisions_per_resource: int = 20
    """Beside these: a fleet that joins at once moves each of its resources a few times in one turn."""
