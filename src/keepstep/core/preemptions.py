"""What verdicts cost: what was isolated and which jobs were moved because of a rule, and what proved that right. Pure.

Reads journal entries in order, and nothing else. Owns the definition that docs/explanation/preemptions.md tells: unnecessary is
what then passes the full gate and shows no fault of the same class for a week. It decides nothing and changes nothing.
"""

from msgspec import Struct, field

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.drill import TERMINAL as DRILL_OVER
from keepstep.core.ids import DrillId, FaultId, IncidentId, JobId, NodeId, ResourceId, node_of
from keepstep.core.incident import Diagnosis
from keepstep.core.intents import Inject
from keepstep.core.resource import ResourceState

PROVEN_AFTER_S = 7 * 86_400.0
"""A resource that passed the gate and shows no fault of the same class for so long was taken away for nothing."""

_OWN_ENDS = (f.RankExited, f.JobStalled, f.NodeUnreachable, f.NodeLeft, f.NodeJoined, f.Witnessed)
"""Symptoms of a job that fails by itself: what follows them takes nothing away that was still at work."""


class Act(Struct, kw_only=True):
    """One resource that a verdict took out of work."""

    at_s: float
    rule: str
    """Key of the signal that opened the fault."""
    failure_class: str
    fault: FaultId
    node: NodeId | None
    part: str
    resource: ResourceId | None = None
    """What was isolated; None where a job was restarted and nothing was held."""
    job: JobId | None = None
    """The job whose work was taken off it while it ran; None where none ran there, or where it had ended by itself."""
    passed_s: float | None = None
    """When it passed the full gate afterwards."""
    confirmed: str = ""
    """What proved the verdict right."""

    def verdict(self, now_s: float) -> str:
        """``confirmed``, ``unnecessary`` or ``pending``."""
        if self.confirmed:
            return "confirmed"
        if self.passed_s is not None and now_s - self.passed_s >= PROVEN_AFTER_S:
            return "unnecessary"
        return "pending"


class Precision(Struct, frozen=True, kw_only=True):
    """One rule's acts, and how they turned out."""

    rule: str
    failure_class: str
    isolations: int
    confirmed: int
    unnecessary: int
    pending: int
    preemptions: int
    """Acts that took the work of a running job away."""
    preemptions_confirmed: int
    preemptions_unnecessary: int
    preemptions_pending: int


class _Opened(Struct, kw_only=True):
    """A fault, as far as it matters here."""

    rule: str
    failure_class: str
    node: NodeId | None
    part: str
    group: FaultId | None = None


class _Led(Struct, kw_only=True):
    """An open incident of a job that nothing was decided about yet."""

    job: JobId
    ended_by_itself: bool


class Ledger(Struct, kw_only=True):
    """Every act so far. Feed it with ``note``, entry by entry."""

    acts: list[Act] = field(default_factory=list)
    _faults: dict[FaultId, _Opened] = field(default_factory=dict)
    _open: dict[FaultId, list[Act]] = field(default_factory=dict)
    _on: dict[ResourceId, list[Act]] = field(default_factory=dict)
    """Acts whose resource may still be proven well or broken."""
    _at: dict[tuple[NodeId | None, str], list[Act]] = field(default_factory=dict)
    """(node, class) -> acts that a later fault of that class would confirm."""
    _own_ends: dict[int, None] = field(default_factory=dict)
    """Recent entries that are a job's own end."""
    _led: dict[IncidentId, _Led] = field(default_factory=dict)
    _drilled: dict[DrillId, JobId] = field(default_factory=dict)
    """Drills that were injected and are not over: what is done to their jobs meanwhile was asked for."""

    def note(self, entry: int, at_s: float, record: d.Record) -> None:
        if isinstance(record, d.Decision):
            for change in record.changes:
                self._change(change, at_s)
            for intent in record.intents:
                if isinstance(intent, Inject):
                    self._drilled[intent.drill] = intent.job
        elif isinstance(record, f.GateFinished):
            self._gate(record, at_s)
        elif isinstance(record, _OWN_ENDS):
            self._own_ends[entry] = None
            if len(self._own_ends) > 65_536:
                del self._own_ends[next(iter(self._own_ends))]

    def _change(self, change: d.Change, at_s: float) -> None:
        match change:
            case d.OpenFault():
                self._opened(change, at_s)
            case d.JoinFault(fault=fault, signal=rule, nature=nature) if nature is not None and fault in self._faults:
                # What weighs more than what opened it is what acts on it.
                self._faults[fault].rule, self._faults[fault].failure_class = rule, nature.failure_class
            case d.HoldForFault(fault=fault, resource=resource):
                self._held(fault, resource, at_s)
            case d.Open(incident=incident, job=job, symptoms=symptoms):
                self._led[incident] = _Led(job=job, ended_by_itself=self._any_own(symptoms))
            case d.Join(incident=incident, symptoms=symptoms) if incident in self._led:
                self._led[incident].ended_by_itself |= self._any_own(symptoms)
            case d.Diagnose(incident=incident, diagnosis=diagnosis) if incident in self._led:
                self._diagnosed(self._led.pop(incident), diagnosis, at_s)
            case d.MoveIncident(incident=incident, to=to) if to.value in ("no_fault", "escalated"):
                self._led.pop(incident, None)
            case d.MoveDrill(drill=drill, to=over) if over in DRILL_OVER:
                self._drilled.pop(drill, None)
            case d.Retire(faults=faults):
                self._retired(faults, at_s)
            case d.MoveResource(resource=resource, to=ResourceState.REPAIR):
                for act in self._on.pop(resource, []):
                    act.confirmed = act.confirmed or "it did not pass the gate"
            case _:
                pass

    def _retired(self, faults: tuple[FaultId, ...], at_s: float) -> None:
        """Acts stay; what could still have changed their verdict goes with the faults."""
        for fault in faults:
            known = self._faults.pop(fault, None)
            self._open.pop(fault, None)
            place = (known.node, known.failure_class) if known is not None else (None, "")
            if place in self._at:
                self._at[place] = [act for act in self._at[place] if act.verdict(at_s) == "pending"]
                if not self._at[place]:
                    del self._at[place]

    def _any_own(self, symptoms: tuple[int, ...]) -> bool:
        return any(entry in self._own_ends for entry in symptoms)

    # ---- faults and holds

    def _opened(self, change: d.OpenFault, at_s: float) -> None:
        nature = change.nature
        for member in change.members:
            self._faults[member].group = change.fault
            for act in self._open.get(member, []):
                act.confirmed = act.confirmed or f"what it shares failed: {change.part}"
        for act in self._at.get((change.node, nature.failure_class), []):
            if act.part == change.part and (act.passed_s is None or at_s - act.passed_s < PROVEN_AFTER_S):
                act.confirmed = act.confirmed or f"the same class again: {change.fault}"
        rule = change.signal
        if not rule and change.members:
            rule = self._faults[change.members[0]].rule
        self._faults[change.fault] = _Opened(
            rule=rule, failure_class=nature.failure_class, node=change.node, part=change.part
        )

    def _held(self, fault: FaultId, resource: ResourceId, at_s: float) -> None:
        for act in self._open.get(fault, []):
            if act.resource == resource and act.passed_s is not None:
                act.confirmed = act.confirmed or "it failed again after the gate"
        self._act(fault, resource, at_s)

    def _act(self, fault: FaultId, resource: ResourceId | None, at_s: float) -> Act | None:
        known = self._faults.get(fault)
        if known is None:
            return None
        act = Act(
            at_s=at_s,
            rule=known.rule,
            failure_class=known.failure_class,
            fault=fault,
            node=known.node,
            part=known.part,
            resource=resource,
        )
        self.acts.append(act)
        self._open.setdefault(fault, []).append(act)
        self._at.setdefault((known.node, known.failure_class), []).append(act)
        if resource is not None:
            self._on.setdefault(resource, []).append(act)
        return act

    # ---- jobs

    def _diagnosed(self, led: _Led, diagnosis: Diagnosis, at_s: float) -> None:
        """The first verdict of an incident: whether it takes work away from a job that runs."""
        if led.ended_by_itself or diagnosis.fault is None or led.job in self._drilled.values():
            return
        known = [act for act in self._open.get(diagnosis.fault, []) if act.job is None]
        act = known[-1] if known else self._act(diagnosis.fault, None, at_s)
        if act is not None:
            act.job = led.job

    # ---- proof

    def _gate(self, fact: f.GateFinished, at_s: float) -> None:
        if fact.passed is None:
            return
        for act in self._on.get(fact.resource, []):
            if fact.passed:
                act.passed_s = act.passed_s if act.passed_s is not None else at_s
            else:
                act.confirmed = act.confirmed or "it did not pass the gate"
        if fact.passed:
            self._on.pop(fact.resource, None)

    # ---- the answer

    def precision(self, now_s: float) -> tuple[Precision, ...]:
        """Per rule and class, the ones with most acts first."""
        groups: dict[tuple[str, str], list[Act]] = {}
        for act in self.acts:
            groups.setdefault((act.rule, act.failure_class), []).append(act)
        told = [_precision(rule, of, acts, now_s) for (rule, of), acts in groups.items()]
        return tuple(sorted(told, key=lambda x: (-x.isolations - x.preemptions, x.rule)))

    def preemptions(self) -> list[Act]:
        """Acts that took work off a resource while its job ran."""
        return [act for act in self.acts if act.job is not None]


def _precision(rule: str, failure_class: str, acts: list[Act], now_s: float) -> Precision:
    held = [act.verdict(now_s) for act in acts if act.resource is not None]
    moved = [act.verdict(now_s) for act in acts if act.job is not None]
    return Precision(
        rule=rule,
        failure_class=failure_class,
        isolations=len(held),
        confirmed=held.count("confirmed"),
        unnecessary=held.count("unnecessary"),
        pending=held.count("pending"),
        preemptions=len(moved),
        preemptions_confirmed=moved.count("confirmed"),
        preemptions_unnecessary=moved.count("unnecessary"),
        preemptions_pending=moved.count("pending"),
    )


def node_of_act(act: Act) -> NodeId | None:
    """The node that was touched, where there is one."""
    return act.node if act.resource is None else node_of(act.resource)
