"""Stage 3, diagnose: names the cause, the culprits and the resources, from the evidence joined so far.

Asks for more where it must (a witness for a silent node, the stacks of a job that stands still) and never acts on silence
alone. What the restart needs is decided here; what becomes of a resource is decided from the same evidence in isolate.py.
"""

from collections.abc import Iterable

from keepstep.core import budget, stalls, suspects
from keepstep.core import facts as f
from keepstep.core.decision import (
    Ask,
    Change,
    Decision,
    Diagnose,
    End,
    Excuse,
    MoveIncident,
    MoveJob,
    MoveResource,
    Resume,
    Setback,
    Suspect,
)
from keepstep.core.finding import Finding
from keepstep.core.ids import NodeId, ResourceId
from keepstep.core.incident import Cause, Diagnosis, Incident, IncidentState, Seen
from keepstep.core.intents import AskWitness, CollectStacks, Intent, Notify
from keepstep.core.job import Job, JobState, Launcher
from keepstep.core.policy import Policy
from keepstep.core.rehearse import is_rehearsed
from keepstep.core.resource import ResourceState
from keepstep.core.world import World


def diagnose(incident: Incident, world: World, policy: Policy, now_s: float) -> Decision | None:
    """The next decision of an open incident; None while the evidence does not say enough."""
    job = world.job_of(incident)
    asking = _ask(incident, job, policy, now_s) or _launch_overdue(incident, world)
    if asking is not None:
        return asking
    seen = [incident.evidence[entry] for entry in incident.undiagnosed]
    if suspects.condemned(incident):
        seen = [s for s in seen if not suspects.is_echo(s.fact)]
    found = suspects.judge(incident, world, seen, policy, now_s)
    if found is not None:
        return _act(incident, job, world, policy, found, now_s)
    if job.state is not JobState.RUNNING:
        return _resume(incident, job, seen, policy)
    cleared = _no_fault(incident, job, seen, policy)
    if cleared is not None:
        return cleared
    if now_s - incident.entered_s >= policy.silence.unknown_s:
        return _give_up(incident, job)
    return None


def _ask(incident: Incident, job: Job, policy: Policy, now_s: float) -> Decision | None:
    silent = [
        launcher
        for launcher in _placed(job)
        if not launcher.reachable and not launcher.gone and launcher.node not in incident.attempt.witnesses_asked
    ]
    if silent:
        return Decision(
            stage="diagnose",
            subject=incident.id,
            reason=f"{_nodes(silent)} silent: unknown, not dead; asking a second witness",
            changes=(Ask(incident=incident.id, witnesses=tuple(x.node for x in silent)),),
            intents=tuple(witness_order(job, launcher) for launcher in silent),
        )
    stalled = any(isinstance(incident.evidence[e].fact, f.JobStalled) for e in incident.undiagnosed)
    if stalled and not incident.attempt.stacks_asked and not suspects.condemned(incident):
        return Decision(
            stage="diagnose",
            subject=incident.id,
            reason="no step completes any more: looking at every rank from outside",
            changes=(Ask(incident=incident.id, stacks=True),),
            intents=tuple(_stacks(job, launcher) for launcher in _placed(job) if launcher.reachable),
        )
    return None


def _launch_overdue(incident: Incident, world: World) -> Decision | None:
    """A node that never answers its launch must not keep the others waiting, whatever else is being looked at."""
    generation = incident.attempt.new_generation
    if not generation or incident.setback:
        return None
    late = [node for node, order in world.launch_pending(incident.id, generation).items() if order.overdue]
    if not late:
        return None
    reason = f"no answer to the launch from {', '.join(late)}"
    return Decision(
        stage="diagnose", subject=incident.id, reason=reason, changes=(Setback(incident=incident.id, reason=reason),)
    )


def _placed(job: Job) -> list[Launcher]:
    """Launchers on which ranks of the present generation run, or may run."""
    if job.placement is None:
        return []
    return [job.launchers[node] for node in job.placement.nodes if job.launchers[node].running]


def witness_order(job: Job, launcher: Launcher) -> Intent:
    """Ask whoever can see a silent launcher without it."""
    return AskWitness(
        job=job.id,
        node=launcher.node,
        session=launcher.session,
        boot_id=launcher.boot_id,
        pid=launcher.pid,
        pid_start=launcher.pid_start,
    )


def _stacks(job: Job, launcher: Launcher) -> Intent:
    return CollectStacks(job=job.id, node=launcher.node, session=launcher.session, generation=job.generation)


def _act(incident: Incident, job: Job, world: World, policy: Policy, found: Finding, now_s: float) -> Decision:
    diagnosis = found.diagnosis
    rehearsed = is_rehearsed(job, diagnosis, world)
    refusal = "" if rehearsed else budget.refusal(job, diagnosis, policy, now_s)
    started = incident.attempt.new_generation > 0
    changes: list[Change] = [
        Diagnose(
            incident=incident.id,
            diagnosis=diagnosis,
            new_attempt=started,
            failure=None if rehearsed else found.failure,
        )
    ]
    changes += [MoveResource(resource=r, to=ResourceState.LOST) for r in _lost_with_it(diagnosis, world)]
    suspected = () if rehearsed else found.suspected
    changes += [Suspect(resource=resource) for resource in suspected if resource in world.resources]
    if refusal:
        changes += [
            MoveIncident(incident=incident.id, to=IncidentState.ESCALATED),
            End(job=job.id, exit_code=found.exit_code, message=refusal),
            MoveJob(job=job.id, to=JobState.ENDING),
        ]
        page = Notify(subject=incident.id, level="page", message=refusal)
        return Decision(stage="diagnose", subject=incident.id, reason=refusal, changes=tuple(changes), intents=(page,))
    changes.append(MoveIncident(incident=incident.id, to=IncidentState.ISOLATING))
    if job.state is not JobState.RECOVERING and job.state is not JobState.STARTING:
        changes.append(MoveJob(job=job.id, to=JobState.RECOVERING))
    reason = f"{diagnosis.cause.value} ({diagnosis.confidence:.0%}): {diagnosis.summary}"
    return Decision(stage="diagnose", subject=incident.id, reason=reason, changes=tuple(changes))


def _lost_with_it(diagnosis: Diagnosis, world: World) -> list[ResourceId]:
    """A machine that lost power or rebooted took its devices along; they come back through validation."""
    if diagnosis.cause is not Cause.HOST_HARDWARE:
        return []
    gone = (ResourceState.LOST, ResourceState.RETIRED)
    return [r.id for node in diagnosis.lost_nodes for r in world.resources_of(node) if r.state not in gone]


def _explained(incident: Incident, job: Job, seen: list[Seen], policy: Policy) -> str:
    """Why the evidence is no sign of a fault; empty while it may be one."""
    if any(isinstance(s.fact, f.RankExited | f.SignalSeen) for s in seen):
        return ""
    if any(not launcher.reachable for launcher in _placed(job)):
        return ""
    stalled = [(s, s.fact) for s in seen if isinstance(s.fact, f.JobStalled)]
    if not stalled:
        return "every node is heard again and nothing else was seen"
    newest, stall = stalled[-1]
    if stalls.is_over(incident, newest):
        return "the steps go on by themselves"
    return "every rank that is awaited is at work" if stalls.is_busy(incident, stall, policy) else ""


def _resume(incident: Incident, job: Job, seen: list[Seen], policy: Policy) -> Decision | None:
    """A recovery that evidence has interrupted goes on once that evidence has explained itself, or changes nothing."""
    if incident.setback:
        return None
    if incident.attempt.new_generation:
        why, to = _explained(incident, job, seen, policy), IncidentState.RESTARTING
    elif incident.attempt.diagnosis is not None:
        why, to = "it concerns a generation that is being replaced", IncidentState.ISOLATING
    else:
        why, to = "nothing runs yet", IncidentState.SELECTING
    if not why:
        return None
    changes = (Resume(incident=incident.id), MoveIncident(incident=incident.id, to=to))
    return Decision(stage="diagnose", subject=incident.id, reason=f"the recovery goes on: {why}", changes=changes)


def _no_fault(incident: Incident, job: Job, seen: list[Seen], policy: Policy) -> Decision | None:
    """Close an incident whose evidence has explained itself."""
    why = _explained(incident, job, seen, policy)
    if not why:
        return None
    changes: list[Change] = [MoveIncident(incident=incident.id, to=IncidentState.NO_FAULT)]
    if any(isinstance(s.fact, f.JobStalled) for s in seen):
        changes.insert(0, Excuse(incident=incident.id))
    return Decision(stage="diagnose", subject=incident.id, reason=f"no fault: {why}", changes=tuple(changes))


def _give_up(incident: Incident, job: Job) -> Decision:
    """Nobody knows, and nothing that is known justifies an act against the job: a person is told, the job is left alone."""
    silent = [launcher for launcher in _placed(job) if not launcher.reachable]
    message = (
        f"{_nodes(silent)} silent and no second witness; job {job.id} is left as it is"
        if silent
        else f"the evidence about job {job.id} does not name a cause; it is left as it is"
    )
    return Decision(
        stage="diagnose",
        subject=incident.id,
        reason=message,
        changes=(MoveIncident(incident=incident.id, to=IncidentState.ESCALATED),),
        intents=(Notify(subject=incident.id, level="page", message=message),),
    )


def _nodes(launchers: Iterable[Launcher]) -> str:
    names: list[NodeId] = [launcher.node for launcher in launchers]
    return f"node {names[0]} is" if len(names) == 1 else f"nodes {', '.join(names)} are"
