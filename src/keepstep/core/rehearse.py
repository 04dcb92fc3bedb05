"""Drills: when one begins, when it is called off, and how it is scored. Pure; must not touch how a fault is recovered from.

One drill at a time in the whole installation, only against a job that is steady, and never where the fault could not be
recovered from. What people ask for waits for that; the schedule of the policy picks moments in which it holds.
"""

from collections.abc import Iterator
from typing import Literal

from keepstep.core.decision import Decision, LinkDrill, MoveDrill, OpenDrill
from keepstep.core.drill import LABEL, Drill, DrillKind, DrillState, Mark, spelled
from keepstep.core.ids import DrillId, JobId
from keepstep.core.incident import Cause, Diagnosis, Incident, IncidentState
from keepstep.core.intents import Inject, Intent, Notify
from keepstep.core.job import TERMINAL, Job, JobState
from keepstep.core.place import usable_launchers
from keepstep.core.policy import Policy
from keepstep.core.world import World

SCHEDULE = "schedule"
_DAY_S = 86_400.0
_SPREAD = 7919
"""A prime: drills that follow each other hit ranks far apart."""
_WATCHED_FOR = 4
"""Times the limit. Something later than that limit is still worth to be scored: how late it was is the finding."""
_STOPPED_FOR = 5
"""Times the limit: longer than it is watched."""
_LOOKS_LIKE: dict[DrillKind, tuple[Cause, ...]] = {
    "kill-rank": (Cause.HOST_SOFTWARE,),
    "stop-rank": (Cause.HOST_SOFTWARE, Cause.APPLICATION, Cause.UNKNOWN),
    "lose-node": (Cause.HOST_SOFTWARE,),
}
"""What may be thought of it, rightly: a hang that is not seen to be a stop looks like the program's own."""


def rehearse(world: World, policy: Policy, now_s: float) -> Decision | None:
    """What the oldest open drill wants, or the schedule where there is none."""
    for drill in (world.drills[x] for x in world.open_drills):
        decision = _step(drill, world, policy, now_s)
        if decision is not None:
            return decision
    return None if world.open_drills else _scheduled(world, policy, now_s)


def explains(drill: Drill, diagnosis: Diagnosis) -> bool:
    """Whether a diagnosis found what a drill did."""
    if drill.rank is not None:
        return drill.rank in diagnosis.culprits
    return drill.node in diagnosis.lost_nodes


def is_rehearsed(job: Job, diagnosis: Diagnosis, world: World) -> bool:
    """Whether all that a diagnosis would charge is what a drill did: then no device and no budget is charged with it.

    Another generation, part or cause, or another node beside it, is a fault that nobody ordered.
    """
    drill = running_drill(world, job.id)
    if drill is None or drill.generation != job.generation or diagnosis.cause not in _LOOKS_LIKE[drill.kind]:
        return False
    if drill.rank is not None:
        return diagnosis.culprits[:1] == (drill.rank,)
    return diagnosis.lost_nodes == (drill.node,)


def running_drill(world: World, job: JobId) -> Drill | None:
    """The drill that was injected into the job, as far as is known, and is not over."""
    found = (world.drills[x] for x in world.open_drills)
    return next((x for x in found if x.job == job and x.injected_s is not None and not x.refused), None)


def hindrance(job: Job, kind: DrillKind, world: World) -> str:
    """Why a person cannot have this drill now; empty where it can begin at once."""
    if world.open_drills:
        return f"{next(iter(world.open_drills))} is not over, and there is one drill at a time"
    if job.spec.labels.get(LABEL) == "never":
        return f"the owner of job {job.id} allows no drills: it has the label {LABEL}=never"
    return unfit(job, kind, world)


def unfit(job: Job, kind: DrillKind, world: World) -> str:
    """Why this drill cannot begin now; empty where it can."""
    if job.state is not JobState.RUNNING or job.incident is not None or job.placement is None:
        return f"job {job.id} is not steady: {job.incident or job.state.value}"
    launchers = [job.launchers[node] for node in job.placement.nodes]
    silent = [x.node for x in launchers if not x.reachable or x.left or x.gone]
    if silent:
        return f"{', '.join(silent)} of job {job.id} cannot be reached"
    if job.stop_requested or job.ended:
        return f"job {job.id} is about to end"
    if kind == "stop-rank" and job.placement.world_size < 2:
        return f"job {job.id} has one rank: all of it stopped is a suspended machine, which is no fault"
    if kind == "lose-node" and len(usable_launchers(job, world)) <= job.spec.elasticity.min_nodes:
        return f"job {job.id} could not go on without a node: no spare stands by, and it may not shrink"
    return ""


# ---- one drill


def _step(drill: Drill, world: World, policy: Policy, now_s: float) -> Decision | None:
    if drill.refused:
        return _end(drill, DrillState.CALLED_OFF, f"its launcher refused: {drill.refused}")
    job = world.jobs.get(drill.job)
    if job is None or job.state in TERMINAL:
        # Where it was stopped, or came to its own good end, nothing is wrong: it only cannot be scored any more.
        failed = drill.state is not DrillState.WAITING and job is not None and job.state is JobState.FAILED
        to = DrillState.FAILED if failed else DrillState.CALLED_OFF
        return _end(drill, to, f"job {drill.job} ended first{f': {job.message}' if failed and job else ''}")
    if job.stop_requested:
        return _end(drill, DrillState.CALLED_OFF, f"job {drill.job} is being stopped: {job.stop_requested}")
    match drill.state:
        case DrillState.WAITING:
            return _begin(drill, job, world, policy, now_s)
        case DrillState.INJECTED:
            return _noticed(drill, job, world, policy, now_s)
        case DrillState.RECOVERING:
            return _judge(drill, job, world, policy)
        case _:
            return None


def _begin(drill: Drill, job: Job, world: World, policy: Policy, now_s: float) -> Decision | None:
    others = [x for x in world.open_drills if x != drill.id and world.drills[x].injected_s is not None]
    why = f"{others[0]} is under way" if others else unfit(job, drill.kind, world)
    if why:
        if now_s - drill.asked_s < policy.drills.wait_s:
            return None
        return _end(drill, DrillState.CALLED_OFF, f"{why}, for {policy.drills.wait_s:.0f} s")
    assert job.placement is not None
    number = world.next_drill - 1
    rank = drill.wanted_rank if drill.wanted_rank is not None else number * _SPREAD % job.placement.world_size
    node = job.placement.node_of_rank(rank)
    if node is None:
        last = job.placement.world_size - 1
        return _end(drill, DrillState.CALLED_OFF, f"job {job.id} has no rank {rank}; the last one is {last}")
    target = None if drill.kind == "lose-node" else rank
    order = Inject(
        job=job.id, node=node, session=job.launchers[node].session, generation=job.generation, drill=drill.id,
        kind=drill.kind, rank=target, for_s=_STOPPED_FOR * policy.drills.detect_s,
    )  # fmt: skip
    moved = MoveDrill(drill=drill.id, to=DrillState.INJECTED, node=node, rank=target, generation=job.generation)
    reason = f"{drill.kind} against {spelled(target, node)}, asked for by {drill.by}"
    return Decision(stage="rehearse", subject=drill.id, reason=reason, changes=(moved,), intents=(order,))


def _noticed(drill: Drill, job: Job, world: World, policy: Policy, now_s: float) -> Decision | None:
    assert drill.injected_s is not None
    leading = world.leading(job)
    if leading is not None and leading.kind == "fault" and leading.opened_s >= drill.injected_s:
        late_s = leading.opened_s - drill.injected_s
        changes = (
            LinkDrill(drill=drill.id, incident=leading.id),
            MoveDrill(drill=drill.id, to=DrillState.RECOVERING),
        )
        reason = f"{leading.id} was opened {late_s:.2f} s after the order"
        return Decision(stage="rehearse", subject=drill.id, reason=reason, changes=changes)
    patience_s = _WATCHED_FOR * policy.drills.detect_s
    if now_s - drill.watched_s < patience_s:
        return None
    text = f"nothing was noticed within {patience_s:.0f} s"
    if drill.kind == "stop-rank" and drill.node is not None:
        on_s = max(0.0, drill.injected_s + _STOPPED_FOR * policy.drills.detect_s - now_s)
        text += f"; {spelled(drill.rank, drill.node)} goes on by itself in {on_s:.0f} s"
    missed = Mark(question="detected", good=False, text=text)
    return _end(drill, DrillState.FAILED, missed.text, (missed,))


def _judge(drill: Drill, job: Job, world: World, policy: Policy) -> Decision | None:
    incident = world.incidents.get(drill.incident) if drill.incident is not None else None
    if incident is None:
        return _end(drill, DrillState.FAILED, f"{drill.incident} is gone")
    if incident.closed_s is None:
        return None
    if incident.state is IncidentState.NO_FAULT:
        back = MoveDrill(drill=drill.id, to=DrillState.INJECTED)
        reason = f"{incident.id} was no fault, so it was not this drill"
        return Decision(stage="rehearse", subject=drill.id, reason=reason, changes=(back,))
    marks = tuple(score(drill, incident, job, policy))
    bad = [mark for mark in marks if not mark.good]
    to = DrillState.FAILED if bad else DrillState.PASSED
    return _end(drill, to, "; ".join(mark.text for mark in bad or marks), marks)


def score(drill: Drill, incident: Incident, job: Job, policy: Policy) -> Iterator[Mark]:
    """The marks of a drill whose incident is closed."""
    limits = policy.drills
    assert drill.injected_s is not None and drill.node is not None
    late_s = incident.opened_s - drill.injected_s
    yield Mark(question="detected", good=late_s <= limits.detect_s, text=f"noticed after {late_s:.2f} s")
    diagnoses = [x.diagnosis for x in incident.attempts if x.diagnosis is not None]
    blamed = any(explains(drill, x) for x in diagnoses)
    said = diagnoses[-1].summary if diagnoses else "nothing"
    what = spelled(drill.rank, drill.node)
    yield Mark(question="blamed", good=blamed, text=f"{what} was {'named' if blamed else f'not named, but: {said}'}")
    yield _isolated(drill, diagnoses, job)
    first = len([x for x in incident.attempts if x.new_generation]) == 1
    yield Mark(question="restarted", good=first, text=f"{len(incident.attempts)} attempt(s) to restart")
    verified = incident.state is IncidentState.RECOVERED
    yield Mark(question="verified", good=verified, text=f"the incident ended {incident.state.value}")
    quick = verified and incident.downtime_s <= limits.recover_s
    text = f"{incident.downtime_s:.2f} s without progress, {incident.lost_steps} step(s) lost"
    yield Mark(question="recovered", good=quick, text=text)


def _isolated(drill: Drill, diagnoses: list[Diagnosis], job: Job) -> Mark:
    """A lost node must not be used again; where only a process was hit, nothing that is sound may be taken out."""
    if drill.kind == "lose-node":
        used = job.placement is not None and drill.node in job.placement.nodes
        return Mark(question="isolated", good=not used, text=f"{drill.node} was {'used again' if used else 'replaced'}")
    held = [resource for x in diagnoses for resource in x.resources]
    text = f"{', '.join(held)} was taken out although it is sound" if held else "no sound part was taken out"
    return Mark(question="isolated", good=not held, text=text)


def _end(drill: Drill, to: DrillState, reason: str, marks: tuple[Mark, ...] = ()) -> Decision:
    moved = MoveDrill(drill=drill.id, to=to, marks=marks, reason=reason)
    said = f"{to.value.replace('_', ' ')}: {reason}"
    told: tuple[Intent, ...] = ()
    if to is not DrillState.PASSED:
        # One that failed is as urgent as the fault would have been; one that was called off leaves a belief untested.
        level: Literal["page", "warning"] = "page" if to is DrillState.FAILED else "warning"
        message = f"drill {drill.kind} of job {drill.job} {said}"
        told = (Notify(subject=drill.id, level=level, message=message),)
    return Decision(stage="rehearse", subject=drill.id, reason=said, changes=(moved,), intents=told)


# ---- the schedule


def _scheduled(world: World, policy: Policy, now_s: float) -> Decision | None:
    plan = policy.drills
    if plan.every_s <= 0 or not plan.kinds or world.open_incidents:
        return None
    if not _in_hours(plan.hours_utc, now_s % _DAY_S / 3600):
        return None
    newest: dict[JobId, float] = {}
    for drill in world.drills.values():
        newest[drill.job] = max(drill.asked_s, newest.get(drill.job, drill.asked_s))
    if newest and now_s - max(newest.values()) < plan.every_s:
        return None
    kind = plan.kinds[world.next_drill % len(plan.kinds)]
    fit = [job for job in (world.jobs[x] for x in world.live_jobs) if _may_hit(job, kind, world, policy, now_s)]
    if not fit:
        return None
    job = min(fit, key=lambda x: newest.get(x.id, 0.0))
    name = DrillId(f"drill-{world.next_drill:04d}")
    opened = OpenDrill(drill=name, job=job.id, kind=kind, by=SCHEDULE)
    return Decision(stage="rehearse", subject=name, reason=f"{kind} of job {job.id} is due", changes=(opened,))


def _in_hours(hours: tuple[int, int], hour: float) -> bool:
    first, last = hours
    return first <= hour < last if first < last else hour >= first or hour < last


def _may_hit(job: Job, kind: DrillKind, world: World, policy: Policy, now_s: float) -> bool:
    """Its owner allows it, it has been steady for long, and a checkpoint is young: little can be lost."""
    plan = policy.drills
    return (
        job.spec.labels.get(LABEL) == "allow"
        and job.committed_s is not None
        and now_s - job.committed_s <= plan.checkpoint_age_s
        and now_s - job.entered_s >= plan.quiet_s
        and not unfit(job, kind, world)
    )
