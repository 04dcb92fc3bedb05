"""Counters that the journal implies: folded entry by entry, so that they go on over a restart. Pure; judges nothing.

Kept with the Books, and with their snapshot. Every table is bounded: what comes after its last free place is counted under
``(others)``.
"""

from typing import Any

from msgspec import Struct, field

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core import intents as i
from keepstep.core.decision import Entry
from keepstep.core.drill import TERMINAL as DRILL_OVER
from keepstep.core.ids import JobId
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.job import TERMINAL, JobState
from keepstep.core.world import World
from keepstep.review.records import DRILL
from keepstep.server.records import downtime_s, led_by_drill
from keepstep.server.saves import Saves
from keepstep.telemetry import Buckets, Labels

OTHERS = "(others)"
TABLE_MAX = 150
"""Label sets of one counter."""
HISTOGRAM_MAX = 60
"""Label sets of one histogram; each is a dozen series."""
PENDING_MAX = 100_000
"""Signals that wait for their verdict, and orders for their answer."""

SLOW_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
STEPS: dict[type, str] = {
    i.ResetDevice: "reset",
    i.PowerOff: "power_off",
    i.OpenRepair: "repair_order",
    i.Quarantine: "quarantine",
    i.Release: "release",
    i.Fence: "fence",
    i.Launch: "launch",
    i.VerifyCheckpoint: "verify_checkpoint",
    i.RunGate: "gate",
}
"""Orders whose answers are counted, by the word for them."""
PHASES: dict[JobState, str] = {
    JobState.SUBMITTED: "queued",
    JobState.STARTING: "starting",
    JobState.RUNNING: "running",
    JobState.RECOVERING: "recovering",
    JobState.ENDING: "ending",
}


class JobTime(Struct, kw_only=True):
    """How a live job spent its time so far."""

    phase: str
    since_s: float
    spent_s: dict[str, float] = field(default_factory=dict)
    redone_s: float = 0.0
    """Of the time running: what was lost to faults and had to be done again."""

    def now(self, now_s: float) -> dict[str, float]:
        """Category -> seconds, with the present phase as of now."""
        spent = dict(self.spent_s)
        spent[self.phase] = spent.get(self.phase, 0.0) + max(0.0, now_s - self.since_s)
        return spent | {"redone": self.redone_s}

    def ettr(self, now_s: float) -> float | None:
        """Time that moved the job on over all its time, waiting included; None in its first moment."""
        spent = self.now(now_s)
        redone_s = spent.pop("redone")
        all_s = sum(spent.values())
        return max(0.0, spent.get("running", 0.0) - redone_s) / all_s if all_s > 0 else None


class Asked(Struct, frozen=True, kw_only=True):
    """An order that is counted when it is answered."""

    step: str
    at_s: float


class Tallies(Struct, kw_only=True):
    """Feed it with ``note``, entry by entry, after the World has folded them."""

    entries: dict[str, int] = field(default_factory=dict)
    """Kind of fact, or stage of a decision -> entries."""
    incidents: dict[Labels, int] = field(default_factory=dict)
    """(class, scope, outcome)."""
    stages: dict[Labels, Buckets] = field(default_factory=dict)
    """(stage, class, path)."""
    recovery: dict[Labels, Buckets] = field(default_factory=dict)
    """(class, path): from the first evidence to verified progress."""
    rules: dict[Labels, int] = field(default_factory=dict)
    """(rule, mode, verdict)."""
    orders: dict[Labels, int] = field(default_factory=dict)
    """(step, result)."""
    order_s: dict[Labels, Buckets] = field(default_factory=dict)
    """(step,)."""
    gates: dict[Labels, int] = field(default_factory=dict)
    """(result,)."""
    lost_gpu_s: dict[Labels, float] = field(default_factory=dict)
    """(class, cause)."""
    lost_steps: int = 0
    told: Saves = field(default_factory=Saves)
    """The saves that were counted, so that none is counted twice."""
    saves: dict[Labels, int] = field(default_factory=dict)
    """(result,)."""
    save_s: dict[Labels, Buckets] = field(default_factory=dict)
    """(op,). Of a save what the first node told: a counter takes nothing back."""
    saved_bytes: int = 0
    errors: dict[Labels, int] = field(default_factory=dict)
    """(kind of part, failure class) -> faults."""
    refused: dict[Labels, int] = field(default_factory=dict)
    """(what, )."""
    probes: dict[Labels, int] = field(default_factory=dict)
    """(probe,) -> time-outs."""
    drills: dict[Labels, int] = field(default_factory=dict)
    """(kind, result)."""
    drill_detection_s: dict[Labels, Buckets] = field(default_factory=dict)
    """(kind,)."""
    drill_recovery_s: dict[Labels, Buckets] = field(default_factory=dict)
    """(kind,)."""
    isolations: int = 0
    jobs: dict[JobId, JobTime] = field(default_factory=dict)
    """Live ones."""
    ended_s: dict[str, float] = field(default_factory=dict)
    """Category -> seconds of jobs that are over."""
    ended: dict[Labels, int] = field(default_factory=dict)
    """(state,) of jobs that are over."""
    signals: dict[int, str] = field(default_factory=dict)
    """Entry -> key of a signal without a verdict."""
    asked: dict[int, Asked] = field(default_factory=dict)

    def note(self, world: World, entry: Entry) -> None:
        record = entry.record
        if isinstance(record, d.Decision):
            _count(self.entries, record.stage)
            for change in record.changes:
                self._change(world, record, change, entry.at_s)
            for number, intent in enumerate(record.intents, record.first_order):
                step = STEPS.get(type(intent))
                if step is not None:
                    _bounded(self.asked)[number] = Asked(step=step, at_s=entry.at_s)
        else:
            _count(self.entries, type(record).__name__)
            self._fact(record, entry)

    # ---- facts

    def _fact(self, fact: f.Fact, entry: Entry) -> None:
        match fact:
            case f.SignalSeen():
                _bounded(self.signals)[entry.seq] = fact.signal
                if fact.signal.startswith("probe.hung"):
                    _tally(self.probes, (fact.signal.removeprefix("probe.hung").lstrip(".") or fact.source or "other",))
            case f.Answered():
                self._answered(fact, entry.at_s)
            case f.GateFinished():
                result = {True: "passed", False: "failed", None: "tool_failed"}[fact.passed]
                _tally(self.gates, (result,))
            case f.CheckpointCommitted() if self.told.commit(fact, entry.at_s):
                _tally(self.saves, ("committed",))
                self.saved_bytes += fact.size_bytes
                _observe(self.save_s, ("save",), fact.duration_s)
            case f.CheckpointFailed() if self.told.fail(fact):
                _tally(self.saves, ("failed",))
            case f.RequestRefused():
                _tally(self.refused, (fact.what.split(" ")[0][:60],), fact.count)
            case f.ProbeFailed():
                _tally(self.probes, (fact.source or "other",))
            case f.JobSubmitted():
                self._submitted(fact.job, entry.at_s)
            case _:
                pass

    def _submitted(self, job: JobId, at_s: float) -> None:
        if job not in self.jobs:
            self.jobs[job] = JobTime(phase="queued", since_s=at_s)

    def _answered(self, fact: f.Answered, at_s: float) -> None:
        asked = self.asked.pop(fact.intent, None)
        if asked is None:
            return
        failed = isinstance(fact.outcome, f.Failed | f.CheckpointRejected)
        _tally(self.orders, (asked.step, "failed" if failed else "done"))
        _observe(self.order_s, (asked.step,), at_s - asked.at_s)
        if asked.step == "verify_checkpoint":
            _observe(self.save_s, ("verify",), at_s - asked.at_s)

    # ---- decisions

    def _change(self, world: World, decision: d.Decision, change: d.Change, at_s: float) -> None:
        match change:
            case d.Assess():
                rule = self.signals.pop(change.entry, "unknown")
                _tally(self.rules, (rule, "execute", change.verdict.value))
                for words in change.shadow:
                    _tally(self.rules, (words.partition(":")[0], "shadow", "would_have_acted"))
            case d.OpenFault():
                kind = change.part.partition("/")[0] if change.part else "node"
                _tally(self.errors, (kind, change.nature.failure_class))
            case d.MoveResource() if change.to.value == "quarantined":
                self.isolations += 1
            case d.MoveJob():
                self._moved(change, at_s)
            case d.MoveDrill(to=to) if to in DRILL_OVER and (drill := world.drills.get(change.drill)) is not None:
                _tally(self.drills, (drill.kind, to.value))
            case d.Close() if (incident := world.incidents.get(change.incident)) is not None:
                self._closed(world, incident)
            case _:
                pass

    def _closed(self, world: World, incident: Incident) -> None:
        diagnosis = incident.diagnosis
        cause = diagnosis.cause.value if diagnosis is not None else "undiagnosed"
        path = "manual" if incident.grants else "auto"
        group = "start" if incident.kind != "fault" else DRILL if led_by_drill(incident) else cause
        for stage, seconds in incident.stage_s.items():
            _observe(self.stages, (stage, group, path), seconds)
        if incident.kind != "fault":
            return
        if group == DRILL:
            self._rehearsed(world, incident)
            return
        fault = world.faults.get(diagnosis.fault) if diagnosis is not None and diagnosis.fault is not None else None
        failure_class = fault.nature.failure_class if fault is not None else cause
        scope = fault.nature.scope.value if fault is not None else "job"
        _tally(self.incidents, (failure_class, scope, incident.state.value))
        down_s, redone_s = _cost_s(incident)
        if incident.state is IncidentState.RECOVERED:
            _observe(self.recovery, (cause, path), down_s)
        _tally(self.lost_gpu_s, (failure_class, cause), incident.ranks * (down_s + redone_s))
        self._lost(incident, redone_s)

    def _lost(self, incident: Incident, redone_s: float) -> None:
        self.lost_steps += incident.lost_steps
        if (job := self.jobs.get(incident.job)) is not None:
            job.redone_s += redone_s

    def _rehearsed(self, world: World, incident: Incident) -> None:
        """What a drill led to costs as much as any fault, and is of a class of its own."""
        down_s, redone_s = _cost_s(incident)
        drill = world.drills.get(incident.drill) if incident.drill is not None else None
        if drill is not None and drill.injected_s is not None:
            _observe(self.drill_detection_s, (drill.kind,), incident.opened_s - drill.injected_s)
            if incident.state is IncidentState.RECOVERED:
                _observe(self.drill_recovery_s, (drill.kind,), down_s)
        _tally(self.incidents, (DRILL, "job", incident.state.value))
        _tally(self.lost_gpu_s, (DRILL, DRILL), incident.ranks * (down_s + redone_s))
        self._lost(incident, redone_s)

    def _moved(self, change: d.MoveJob, at_s: float) -> None:
        job = self.jobs.setdefault(change.job, JobTime(phase="queued", since_s=at_s))
        spent = max(0.0, at_s - job.since_s)
        job.spent_s[job.phase] = job.spent_s.get(job.phase, 0.0) + spent
        job.since_s = at_s
        if change.to not in TERMINAL:
            job.phase = PHASES[change.to]
            return
        for category, seconds in (job.spent_s | {"redone": job.redone_s}).items():
            self.ended_s[category] = self.ended_s.get(category, 0.0) + seconds
        _tally(self.ended, (change.to.value,))
        del self.jobs[change.job]


def _cost_s(incident: Incident) -> tuple[float, float]:
    """Seconds without progress, and seconds of steps that had to be done again."""
    if incident.state is IncidentState.NO_FAULT:
        return 0.0, 0.0
    return downtime_s(incident, incident.entered_s), incident.lost_steps * (incident.step_time_before_s or 0.0)


def _count(table: dict[str, int], key: str) -> None:
    table[key] = table.get(key, 0) + 1


def _tally(table: dict[Labels, Any], key: Labels, amount: float = 1) -> None:
    key = _place(table, key, TABLE_MAX)
    table[key] = table.get(key, 0) + amount


def _observe(table: dict[Labels, Buckets], key: Labels, seconds: float) -> None:
    key = _place(table, key, HISTOGRAM_MAX)
    known = table.get(key)
    if known is None:
        known = table[key] = Buckets.of(SLOW_S)
    known.observe(max(0.0, seconds))


def _place(table: dict[Labels, Any], key: Labels, limit: int) -> Labels:
    """The key itself while there is room for it; the last place is for all others together."""
    if key in table or len(table) < limit - 1:
        return key
    return (OTHERS,) * len(key)


def _bounded(table: dict[int, Any]) -> dict[int, Any]:
    """Makes room for one more: the oldest goes where nobody ever answered it."""
    while len(table) >= PENDING_MAX:
        del table[next(iter(table))]
    return table
