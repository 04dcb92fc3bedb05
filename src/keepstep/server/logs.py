"""What the server's log lines about decisions are about, for keepstep.logs. Reads the World, changes nothing."""

from keepstep.core.decision import Decision
from keepstep.core.ids import IncidentId, JobId
from keepstep.core.world import World
from keepstep.server.traces import trace_id


def about_decision(decision: Decision, world: World) -> dict[str, object]:
    """``extra`` for the log line of a decision: its stage and whichever of incident, job, fault, resource it is about."""
    told: dict[str, object] = {"stage": decision.stage}
    subject = decision.subject
    incident = world.incidents.get(IncidentId(subject))
    job = world.jobs.get(incident.job if incident is not None else JobId(subject))
    if incident is not None:
        told |= {"incident": incident.id, "trace_id": trace_id(incident.id, incident.opened_s)}
    elif subject in world.faults:
        told["fault"] = subject
    elif subject in world.resources:
        told["resource"] = subject
    if job is not None:
        told |= {"job": job.id, "generation": job.generation}
    return told
