"""What a journal says, read entry by entry with nothing of Keepstep's own reading: the truth that reviews are held against.

Knows the shapes of facts and decisions only: no World, no history, no records, no figures.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from keepstep.core import decision as d
from keepstep.core import facts as f


@dataclass
class Told:
    job: str
    kind: str
    opened_s: float
    state: str = "open"
    cause: str = "undiagnosed"
    ended_s: float | None = None
    down_s: float = 0.0
    lost_steps: int = 0
    step_time_s: float = 0.0
    generations: int = 0
    words_of_people: int = 0
    drill: str = ""
    """That led to it: then it is no fault, and costs as one."""
    moves: list[tuple[str, float]] = field(default_factory=list)

    @property
    def stages(self) -> dict[str, float]:
        spent: dict[str, float] = {}
        for (name, begin), (_, end) in zip(self.moves, self.moves[1:], strict=False):
            spent[name] = spent.get(name, 0.0) + end - begin
        return spent


@dataclass
class JobTold:
    submitted_s: float
    running_s: float | None = None
    ended_s: float | None = None
    gpus: int = 0
    step_time_s: float = 0.0


@dataclass
class Truth:
    incidents: dict[str, Told] = field(default_factory=dict)
    jobs: dict[str, JobTold] = field(default_factory=dict)
    roots: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Fault -> (node, failure class)."""
    saves: set[tuple[str, str]] = field(default_factory=set)
    """(job, key), however often it was told."""
    last_s: float = 0.0

    @property
    def faults(self) -> list[Told]:
        """That ended and were faults, and that nobody had ordered."""
        ended = [x for x in self.incidents.values() if x.kind == "fault" and x.ended_s is not None]
        return [x for x in ended if x.state != "no_fault" and not x.drill]

    def productive_and_total(self) -> tuple[float, float]:
        """GPU-seconds, over the whole life of every job."""
        productive = total = 0.0
        for name, job in self.jobs.items():
            end = job.ended_s if job.ended_s is not None else self.last_s
            total += job.gpus * (end - job.submitted_s)
            if job.running_s is None:
                continue
            ran, past = 0.0, job.running_s
            faults = [x for x in self.incidents.values() if x.job == name and x.kind == "fault"]
            for x in sorted(faults, key=lambda x: x.opened_s):
                ran += max(0.0, x.opened_s - past)
                ran -= min(ran, x.lost_steps * x.step_time_s)  # no more can be lost than was done
                down = x.down_s if x.ended_s is not None else self.last_s - x.opened_s
                past = max(past, min(end, x.opened_s + down))
            productive += job.gpus * (ran + max(0.0, end - past))
        return productive, total


def read(entries: Iterable[tuple[float, d.Record]]) -> Truth:
    truth = Truth()
    for at_s, record in entries:
        truth.last_s = at_s
        match record:
            case f.JobSubmitted():
                truth.jobs.setdefault(record.job, JobTold(at_s))
            case f.StepsAdvanced() if record.step_time_s is not None:
                truth.jobs[record.job].step_time_s = record.step_time_s
            case f.CheckpointCommitted():
                truth.saves.add((record.job, record.key))
            case d.Decision():
                for change in record.changes:
                    _change(truth, change, at_s)
            case _:
                pass
    return truth


def _change(truth: Truth, change: d.Change, at_s: float) -> None:
    match change:
        case d.Open():
            made = Told(change.job, change.kind, at_s, moves=[("open", at_s)])
            made.step_time_s = truth.jobs[change.job].step_time_s
            truth.incidents[change.incident] = made
        case d.MoveIncident():
            found = truth.incidents[change.incident]
            found.state = change.to.value
            found.moves.append((change.to.value, at_s))
        case d.Diagnose():
            truth.incidents[change.incident].cause = change.diagnosis.cause.value
        case d.Place():
            truth.incidents[change.incident].generations += 1
            truth.jobs[change.job].gpus = change.placement.world_size
        case d.Grant():
            truth.incidents[change.incident].words_of_people += 1
        case d.LinkDrill():
            truth.incidents[change.incident].drill = change.drill
        case d.Close():
            _close(truth.incidents[change.incident], change, at_s)
        case d.MoveJob():
            _move(truth.jobs[change.job], change.to.value, at_s)
        case d.OpenFault() if change.node is not None:
            truth.roots[change.fault] = (change.node, change.nature.failure_class)
        case _:
            pass


def _close(found: Told, change: d.Close, at_s: float) -> None:
    found.ended_s, found.lost_steps = at_s, change.lost_steps
    whole = at_s - found.opened_s
    found.down_s = {"recovered": change.downtime_s, "no_fault": 0.0}.get(found.state, whole)


def _move(job: JobTold, to: str, at_s: float) -> None:
    if to == "running" and job.running_s is None:
        job.running_s = at_s
    if to in ("finished", "failed", "stopped"):
        job.ended_s = at_s
