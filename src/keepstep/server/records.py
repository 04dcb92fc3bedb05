"""Flat records of incidents, jobs and faults, made from the World: what reviews are computed from. Pure.

Owns what is worth keeping of a thing once it is over.
"""

from collections.abc import Iterable

from keepstep.core.drill import Drill, spelled
from keepstep.core.fault import Fault
from keepstep.core.ids import NodeId, ResourceId, node_of
from keepstep.core.incident import Attempt, Incident, IncidentState
from keepstep.core.intents import RankPlace
from keepstep.core.job import Job
from keepstep.core.world import World
from keepstep.review.records import DrillRecord, FaultRecord, IncidentRecord, JobRecord


def incident_record(world: World, incident: Incident) -> IncidentRecord:
    job = world.jobs[incident.job]
    diagnosed = [a for a in incident.attempts if a.diagnosis is not None]
    started = [a for a in incident.attempts if a.new_generation]
    diagnosis = diagnosed[-1].diagnosis if diagnosed else None
    suspects = tuple(dict.fromkeys(r for a in diagnosed if a.diagnosis is not None for r in a.diagnosis.resources))
    nodes = dict.fromkeys(node_of(r) for r in suspects) | dict.fromkeys(_lost(diagnosed))
    fault = world.faults.get(diagnosis.fault) if diagnosis is not None and diagnosis.fault is not None else None
    restore = started[-1].restore if started else None
    return IncidentRecord(
        id=incident.id,
        job=incident.job,
        tenant=job.spec.tenant,
        kind=incident.kind,
        state=incident.state.value,
        cause=diagnosis.cause.value if diagnosis is not None else "undiagnosed",
        failure_class=fault.nature.failure_class if fault is not None else "",
        confidence=diagnosis.confidence if diagnosis is not None else 0.0,
        summary=diagnosis.summary if diagnosis is not None else "",
        fault=fault.id if fault is not None else "",
        resources=suspects,
        nodes=tuple(nodes),
        racks=_racks(world, nodes),
        serials=tuple(_of_devices(world, suspects, "serial")),
        device_models=tuple(_of_devices(world, suspects, "model")),
        labels=dict(job.spec.labels),
        ranks=incident.ranks,
        opened_s=incident.opened_s,
        closed_s=incident.closed_s if incident.closed_s is not None else incident.entered_s,
        downtime_s=downtime_s(incident, incident.entered_s),
        stage_s=dict(incident.stage_s),
        step_before=incident.step_before,
        restored_step=restore.step if restore is not None else None,
        restored_from=restore.tier if restore is not None else "",
        lost_steps=incident.lost_steps,
        redone_s=incident.lost_steps * (incident.step_time_before_s or 0.0),
        checkpoint_age_s=incident.opened_s - incident.checkpoint_s if incident.checkpoint_s is not None else None,
        attempts=len(started),
        approvals=incident.grants,
        replaced=tuple(_lost(diagnosed)),
        verdict=incident.verdict,
        drill=led_by_drill(incident),
    )


def led_by_drill(incident: Incident) -> str:
    """The drill that led to it; empty where none did. One that turned out to be no fault was not the drill's."""
    return incident.drill or "" if incident.state is not IncidentState.NO_FAULT else ""


def job_record(world: World, job: Job, now_s: float) -> JobRecord:
    """Also of a job that runs: then as of now. Incidents that have left the World are in ``job.past``. Drills cost time as any
    fault does, and count as none."""
    faults = [i for i in world.incidents.values() if i.job == job.id and i.kind == "fault"]
    return JobRecord(
        id=job.id,
        tenant=job.spec.tenant,
        state=job.state.value,
        labels=dict(job.spec.labels),
        ranks=job.placement.world_size if job.placement is not None else 0,
        nodes=len(job.placement.nodes) if job.placement is not None else 0,
        device_models=tuple(_models(world, job)),
        submitted_s=job.submitted_s,
        running_since_s=job.running_since_s,
        finished_s=job.finished_s,
        step=job.step,
        step_time_s=job.step_time_s,
        downtime_s=job.past.downtime_s + sum(downtime_s(i, now_s) for i in faults),
        redone_s=job.past.redone_s + sum(i.lost_steps * (i.step_time_before_s or 0.0) for i in faults),
        faults=job.past.faults + sum(not led_by_drill(i) for i in faults),
        exit_code=job.exit_code,
        message=job.message,
    )


def fault_record(world: World, fault: Fault) -> FaultRecord:
    device = world.slots.get((fault.node, fault.part)) if fault.node is not None else None
    known = world.resources.get(device) if device is not None else None
    return FaultRecord(
        id=fault.id,
        resource=fault.resource,
        node=fault.node or "",
        part=fault.part,
        cause=fault.nature.cause.value,
        failure_class=fault.nature.failure_class,
        scope=fault.nature.scope.value,
        verdict=fault.nature.verdict.value,
        opened_s=fault.opened_s,
        closed_s=fault.closed_s or fault.last_s,
        outcome=fault.outcome,
        count=fault.count,
        serial=known.serial if known is not None else "",
        device_model=known.model if known is not None else "",
        rack=world.domains.get(fault.node, {}).get("rack", "") if fault.node is not None else "",
        incidents=tuple(fault.incidents),
        isolated=tuple(fault.held),
    )


def drill_record(drill: Drill, tenant: str, incident_opened_s: float | None) -> DrillRecord:
    """``incident_opened_s``: of the incident that it led to; None where that is not known."""
    late_s = None
    if incident_opened_s is not None and drill.injected_s is not None:
        late_s = incident_opened_s - drill.injected_s
    return DrillRecord(
        id=drill.id,
        job=drill.job,
        tenant=tenant,
        kind=drill.kind,
        by=drill.by,
        state=drill.state.value,
        ended_s=None if drill.open else drill.entered_s,
        target=spelled(drill.rank, drill.node) if drill.node is not None else "",
        incident=drill.incident or "",
        detected_after_s=late_s,
        marks=drill.marks,
        reason=drill.reason,
    )


def downtime_s(incident: Incident, now_s: float) -> float:
    """Without progress: to the first new step where it was recovered from, else to its end, or until now."""
    match incident.state:
        case IncidentState.NO_FAULT:
            return 0.0
        case IncidentState.RECOVERED:
            return incident.downtime_s
        case _:
            return max(0.0, (incident.closed_s if incident.closed_s is not None else now_s) - incident.opened_s)


def _places(job: Job) -> Iterable[tuple[NodeId, Iterable[RankPlace]]]:
    return job.placement.nodes.items() if job.placement is not None else ()


def _lost(attempts: list[Attempt]) -> dict[NodeId, None]:
    return dict.fromkeys(node for a in attempts if a.diagnosis is not None for node in a.diagnosis.lost_nodes)


def _racks(world: World, nodes: Iterable[NodeId]) -> tuple[str, ...]:
    found = (world.domains.get(node, {}).get("rack", "") for node in nodes)
    return tuple(dict.fromkeys(rack for rack in found if rack))


def _models(world: World, job: Job) -> dict[str, None]:
    """Of the devices that it has. Thousands: a page that lists jobs asks this of each."""
    found: dict[str, None] = {}
    resources = world.resources
    for node, places in _places(job):
        on = f"device/{node}/"
        for place in places:
            item = resources.get(ResourceId(on + str(place.slot)))
            if item is not None and item.model not in found and item.model:
                found[item.model] = None
    return found


def _of_devices(world: World, resources: Iterable[ResourceId], what: str) -> dict[str, None]:
    known = (world.resources.get(r) for r in resources if r.startswith("device/"))
    return dict.fromkeys(value for item in known if item is not None and (value := getattr(item, what)))
