"""Stage 9, review: closes an incident with what it cost. The report is rendered from the journalled decisions."""

from keepstep.core.decision import Close, Decision
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.world import World


def review(incident: Incident, world: World, reason: str = "") -> Decision:
    """The last decision about an incident that has reached a terminal state."""
    assert not incident.open and incident.closed_s is None
    job = world.job_of(incident)
    lost = 0
    if incident.state is IncidentState.RECOVERED and incident.kind == "fault" and incident.step_before >= 0:
        restored = job.restored.step if job.restored is not None else 0
        lost = max(0, max(incident.step_before, _step_of_symptoms(incident)) - restored)
    verdict = {
        IncidentState.RECOVERED: "recovered",
        IncidentState.ESCALATED: "escalated",
        IncidentState.NO_FAULT: "no fault",
    }[incident.state]
    downtime_s = _downtime_s(incident)
    return Decision(
        stage="review",
        subject=incident.id,
        reason=f"{verdict}: {lost} steps lost, {downtime_s:.2f} s without progress, {len(incident.attempts)} attempt(s)",
        changes=(
            Close(
                incident=incident.id,
                verdict=verdict,
                lost_steps=lost,
                stage_s=dict(incident.stage_s),
                downtime_s=downtime_s,
            ),
        ),
    )


def _step_of_symptoms(incident: Incident) -> int:
    return max((getattr(seen.fact, "step", -1) for seen in incident.evidence.values()), default=-1)


def _downtime_s(incident: Incident) -> float:
    """From the first evidence to the first step of the generation that recovered; to the end where none did."""
    if incident.state is not IncidentState.RECOVERED:
        return 0.0 if incident.state is IncidentState.NO_FAULT else incident.entered_s - incident.opened_s
    started = max((at for state, at in incident.timeline if state == IncidentState.RESTARTING.value), default=None)
    if started is None:
        return 0.0
    restore = incident.attempt.restore
    restored = restore.step if restore is not None else 0
    first = next((at for step, at in incident.progress if at >= started and step > restored), incident.entered_s)
    return first - incident.opened_s
