"""Jobs that act on a fault later than it was found: at their next checkpoint, or once they are in trouble themselves. Pure.

Beside ``assess``, which finds the fault and tells the jobs that must act on it at once. It holds nothing.
"""

from keepstep.core import decision as d
from keepstep.core.catalog.row import Scope, Verdict
from keepstep.core.facts import SignalSeen
from keepstep.core.fault import Fault, Nature
from keepstep.core.ids import FaultId, ResourceId
from keepstep.core.incident import IncidentState, Judged, Urgency
from keepstep.core.job import Job, JobState, uses
from keepstep.core.root_cause import ONE_STORY_S
from keepstep.core.world import World


def judged_of(fault: FaultId, resource: ResourceId, nature: Nature, *, isolate: bool) -> Judged:
    return Judged(
        fault=fault,
        resource=resource,
        cause=nature.cause,
        failure_class=nature.failure_class,
        text=nature.text,
        confidence=nature.confidence,
        isolate=isolate,
    )


def due(world: World) -> d.Decision | None:
    """The first job that has saved its state since it was told to leave a resource, and has somewhere to go."""
    for fault_id in world.open_faults:
        fault = world.faults[fault_id]
        if fault.nature.urgency is not Urgency.NEXT_CHECKPOINT or not fault.held or fault.first is None:
            continue
        for job in (world.jobs[x] for x in world.live_jobs):
            out = (
                held for held in fault.held if not world.resources[held].allocatable
            )  # not what has passed its gate since
            resource = next((held for held in out if uses(job, held)), None)
            if resource is None or job.id in fault.told or not _may_leave(job, fault, world):
                continue
            judged = judged_of(fault.id, resource, fault.nature, isolate=True)
            return d.Decision(
                stage="assess",
                subject=fault.id,
                reason=f"job {job.id} saved step {job.committed_step} and leaves {resource}: {fault.nature.text}",
                changes=(d.Due(job=job.id, judged=judged),),
            )
    return None


def corroborated(world: World) -> d.Decision | None:
    """The first suspicion about a part of a job that has got into trouble since: now there are two witnesses."""
    for incident in (world.incidents[x] for x in world.open_incidents):
        if incident.state is not IncidentState.OPEN or incident.attempt.diagnosis is not None:
            continue
        job = world.job_of(incident)
        for fault in (world.faults[x] for x in world.open_faults):
            if job.id in fault.told or not _suspected(fault, job, incident.opened_s):
                continue
            assert fault.first is not None and isinstance(fault.first.fact, SignalSeen)
            judged = judged_of(fault.id, fault.first.fact.resource, fault.nature, isolate=False)
            return d.Decision(
                stage="assess",
                subject=fault.id,
                reason=f"job {job.id} is in trouble, and {fault.resource} was suspected: {fault.nature.text}",
                changes=(d.Due(job=job.id, judged=judged),),
            )
    return None


def _suspected(fault: Fault, job: Job, since_s: float) -> bool:
    if fault.node is None or fault.first is None or not isinstance(fault.first.fact, SignalSeen):
        return False
    nature = fault.nature
    if nature.verdict is not Verdict.SUSPECT or nature.urgency is not Urgency.NOW or nature.scope is Scope.JOB:
        return False
    return since_s - fault.last_s <= ONE_STORY_S and uses(job, fault.first.fact.resource, or_used=True)


def _may_leave(job: Job, fault: Fault, world: World) -> bool:
    """It runs undisturbed, has saved since the fault, and another node can take its ranks: a slow part beats no part."""
    if job.state is not JobState.RUNNING or world.leading(job) is not None or job.placement is None:
        return False
    if job.committed_s is None or job.committed_s <= fault.opened_s:
        return False
    return any(
        launcher.reachable
        and not launcher.left
        and world.node_usable(node)
        and len(world.free_slots(launcher)) >= job.spec.nproc_per_node
        for node, launcher in job.launchers.items()
        if node not in job.placement.nodes
    )
