"""Stage 8, verify: recovered means progressing. Every rank joined, steps advance from the restored one, the loss is plausible.

Anything less goes back to the diagnosis, with the next rung, until the budget ends.
"""

import math

from keepstep.core.decision import Change, Decision, MoveIncident, MoveJob, Setback
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.job import Job, JobState
from keepstep.core.policy import Policy
from keepstep.core.select import reopen
from keepstep.core.world import World


def verify(incident: Incident, world: World, policy: Policy, now_s: float) -> Decision | None:
    """The verdict on a new generation; None while there is nothing to judge yet."""
    job = world.job_of(incident)
    if incident.undiagnosed:
        return reopen(incident, "verify")
    if all_done(job):
        return _recovered(incident, job, "all ranks ended well")
    since = [(step, at_s) for step, at_s in incident.progress if at_s >= _started_s(incident)]
    waited_s = now_s - incident.entered_s
    if not since:
        return _without_steps(incident, job, policy, waited_s)
    restored = job.restored.step if job.restored is not None else 0
    if since[0][0] < restored:
        return _set_back(
            incident,
            f"the program did not continue: it reports step {since[0][0]} after a restore of step {restored}",
        )
    if job.restored is not None and not _plausible(incident, policy):
        refuse = job.restored.key
        return _set_back(
            incident, f"loss {incident.loss_after} after the restart, {incident.loss_before} before it", refuse
        )
    newest = since[-1][0]
    if newest - restored < policy.verify.steps:
        return _late(incident, policy, waited_s, f"step {newest}, {restored} restored")
    loss = f", loss {incident.loss_after:.4g}" if incident.loss_after is not None else ""
    return _recovered(incident, job, f"all ranks progress: step {newest} from {restored}{loss}")


def all_done(job: Job) -> bool:
    """Every rank of the present generation ended with code 0."""
    size = job.placement.world_size if job.placement else 0
    return size > 0 and len(job.ended) == size and all(end.exit_code == 0 for end in job.ended.values())


def _started_s(incident: Incident) -> float:
    """When the present generation was ordered: progress before that belongs to an older one."""
    return max((at_s for state, at_s in incident.timeline if state == IncidentState.RESTARTING.value), default=0.0)


def _without_steps(incident: Incident, job: Job, policy: Policy, waited_s: float) -> Decision | None:
    """A script that reports no steps can only be seen to live."""
    if incident.step_before >= 0:
        return _late(incident, policy, waited_s, "no step yet")
    if waited_s < policy.verify.blind_s:
        return None
    return _recovered(
        incident, job, f"all ranks alive for {waited_s:.0f} s; the program reports no steps, so progress was not seen"
    )


def _late(incident: Incident, policy: Policy, waited_s: float, seen: str) -> Decision | None:
    limit_s = policy.incident_deadline_s[IncidentState.VERIFYING.value]
    if waited_s < limit_s:
        return None
    return _set_back(incident, f"no progress within {limit_s:.0f} s ({seen})")


def _plausible(incident: Incident, policy: Policy) -> bool:
    after, before = incident.loss_after, incident.loss_before
    if after is None:
        return True
    if not math.isfinite(after):
        return before is not None and not math.isfinite(before)
    if before is None or not math.isfinite(before):
        return True
    return after <= before + abs(before) * (policy.verify.loss_factor - 1.0) + policy.verify.loss_slack


def _recovered(incident: Incident, job: Job, why: str) -> Decision:
    changes: list[Change] = [MoveIncident(incident=incident.id, to=IncidentState.RECOVERED)]
    if job.state is not JobState.RUNNING:
        changes.append(MoveJob(job=job.id, to=JobState.RUNNING))
    return Decision(stage="verify", subject=incident.id, reason=why, changes=tuple(changes))


def _set_back(incident: Incident, reason: str, refuse: str = "") -> Decision:
    return Decision(
        stage="verify",
        subject=incident.id,
        reason=reason,
        changes=(
            Setback(incident=incident.id, reason=reason, refuse=refuse),
            MoveIncident(incident=incident.id, to=IncidentState.OPEN),
        ),
    )
