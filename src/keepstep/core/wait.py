"""What an incident does while it waits for a person: their word, new proof, or the deadline."""

from keepstep.core.decision import Decision, End, Grant, MoveIncident, MoveJob
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.intents import Intent, Notify
from keepstep.core.isolate import power_off
from keepstep.core.job import JobState
from keepstep.core.policy import Policy
from keepstep.core.select import candidates
from keepstep.core.world import World


def wait(incident: Incident, world: World, policy: Policy, now_s: float) -> Decision | None:
    """Go on when a person approved, end when one refused or nobody answered."""
    job = world.job_of(incident)
    assert incident.resume_at is not None
    word = world.approvals.get(incident.id)
    if word is not None and word.entry > incident.entered_entry:
        approved = word.fact
        granted, by = getattr(approved, "granted", False), getattr(approved, "by", "")
        if not granted:
            return _end(incident, f"{by} refused: {incident.waits_for}")
        intents: tuple[Intent, ...] = ()
        if incident.asks == "power_off":
            intents = power_off(incident, world)
        return Decision(
            stage="wait",
            subject=incident.id,
            reason=f"{by} approved",
            changes=(
                Grant(incident=incident.id, by=by),
                MoveIncident(incident=incident.id, to=incident.resume_at),
            ),
            intents=intents,
        )
    fenced = not any(launcher.running for launcher in job.launchers.values())
    if incident.asks == "power_off" and fenced:
        return Decision(
            stage="wait",
            subject=incident.id,
            reason="the proof has come in the meantime",
            changes=(MoveIncident(incident=incident.id, to=IncidentState.ISOLATING),),
        )
    if incident.resume_at is IncidentState.SELECTING and _new_offers(incident, world):
        return Decision(
            stage="wait",
            subject=incident.id,
            reason="a node brought state back",
            changes=(MoveIncident(incident=incident.id, to=IncidentState.SELECTING),),
        )
    if now_s - incident.entered_s >= policy.approvals.wait_s:
        return _end(incident, f"nobody answered within {policy.approvals.wait_s / 3600:g} h: {incident.waits_for}")
    return None


def _new_offers(incident: Incident, world: World) -> bool:
    return bool(candidates(world.job_of(incident), incident.attempt))


def _end(incident: Incident, message: str) -> Decision:
    return Decision(
        stage="wait",
        subject=incident.id,
        reason=message,
        changes=(
            MoveIncident(incident=incident.id, to=IncidentState.ESCALATED),
            End(job=incident.job, exit_code=75, message=message),
            MoveJob(job=incident.job, to=JobState.ENDING),
        ),
        intents=(Notify(subject=incident.id, level="page", message=message),),
    )
