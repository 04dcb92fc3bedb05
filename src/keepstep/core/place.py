"""Stage 6, place: finds healthy capacity for the next generation. Survivors first, then rack-local, spares and probation last.

A free device is not automatically a valid one: only what is allocatable (in service, held by nobody) is taken. The job's
declared elasticity decides between going on smaller and waiting; it is never guessed.
"""

from collections.abc import Sequence

from keepstep.core.company import outages
from keepstep.core.decision import Change, Decision, End, MoveIncident, MoveJob, Place, Wait
from keepstep.core.ids import NodeId, device_resource
from keepstep.core.incident import Cause, Incident, IncidentState
from keepstep.core.intents import Notify, RankPlace
from keepstep.core.job import Job, JobState, Launcher, Placement
from keepstep.core.policy import Policy
from keepstep.core.resource import ResourceState
from keepstep.core.select import outdated, reopen
from keepstep.core.world import World


def place(incident: Incident, world: World, policy: Policy, now_s: float) -> Decision | None:
    """A placement for the next generation, or what it waits for."""
    job = world.job_of(incident)
    if incident.undiagnosed:
        return reopen(incident, "place")
    if outdated(job, incident.attempt):
        return Decision(
            stage="place",
            subject=incident.id,
            reason="what can be restored has changed since it was chosen",
            changes=(MoveIncident(incident=incident.id, to=IncidentState.SELECTING),),
        )
    if _waits_for_outside(incident, world, now_s):
        return None
    failed = {node: None for attempt in incident.attempts for node in attempt.failed_launches.values()}
    chosen = choose(job, world, avoid=list(failed))
    if chosen is None:
        return _short(incident, job, world, policy, now_s)
    placement = _placement(job, world, chosen)
    store_node = next((launcher.node for launcher in chosen if launcher.store), None)
    where = ", ".join(f"{launcher.node}×{job.spec.nproc_per_node}" for launcher in chosen)
    smaller = len(chosen) < job.spec.elasticity.max_nodes
    size = f" (elastic: {len(chosen)} of {job.spec.elasticity.max_nodes} nodes)" if smaller else ""
    return Decision(
        stage="place",
        subject=incident.id,
        reason=f"generation {placement.generation} on {where}{size}",
        changes=(
            Place(incident=incident.id, job=job.id, placement=placement, store_node=store_node),
            MoveIncident(incident=incident.id, to=IncidentState.RESTARTING),
        ),
    )


def _waits_for_outside(incident: Incident, world: World, now_s: float) -> bool:
    """A job that failed because a dependency is down would fail again: it starts when that answers, or says nothing."""
    diagnosis = incident.attempt.diagnosis
    if diagnosis is None or diagnosis.cause is not Cause.DEPENDENCY:
        return False
    return any(fault.id == diagnosis.fault for fault in outages(world, now_s))


def choose(job: Job, world: World, avoid: Sequence[NodeId] = ()) -> list[Launcher] | None:
    """The nodes of the next generation in group-rank order; None if there are fewer than the job needs.

    ``avoid``: nodes on which a launch has just failed, taken last.
    """
    elasticity = job.spec.elasticity
    usable = usable_launchers(job, world)
    if len(usable) < elasticity.min_nodes:
        return None
    count = min(len(usable), elasticity.max_nodes)
    count -= (count - elasticity.min_nodes) % elasticity.step
    before = list(job.placement.nodes) if job.placement else []
    racks = {job.launchers[node].rack for node in before if node in job.launchers}

    def preference(launcher: Launcher) -> tuple[bool, bool, bool, bool, bool, str]:
        return (
            launcher.node in avoid,
            launcher.node not in before,
            launcher.spare,
            _on_probation(launcher, world),
            launcher.rack not in racks,
            launcher.node,
        )

    taken = sorted(usable, key=preference)[:count]
    order = {node: index for index, node in enumerate(before)}
    # Survivors keep their group rank; a newcomer takes the place of the node it stands in for.
    kept = sorted((x for x in taken if x.node in order), key=lambda x: order[x.node])
    new = [x for x in taken if x.node not in order]
    return _fill(kept, new, order, count)


def _fill(kept: list[Launcher], new: list[Launcher], order: dict[NodeId, int], count: int) -> list[Launcher]:
    seats: list[Launcher | None] = [None] * count
    homeless = []
    for launcher in kept:
        seat = order[launcher.node]
        if seat < count and seats[seat] is None:
            seats[seat] = launcher
        else:
            homeless.append(launcher)
    rest = iter(homeless + new)
    return [seat if seat is not None else next(rest) for seat in seats]


def usable_launchers(job: Job, world: World) -> list[Launcher]:
    """Launchers that live and have enough healthy devices."""
    return [
        launcher
        for launcher in job.launchers.values()
        if launcher.reachable
        and not launcher.left
        and not launcher.gone
        and world.node_usable(launcher.node)
        and len(world.free_slots(launcher)) >= job.spec.nproc_per_node
    ]


def _on_probation(launcher: Launcher, world: World) -> bool:
    return any(
        world.resources[device_resource(launcher.node, slot)].state is ResourceState.PROBATION
        for slot in world.free_slots(launcher)
    )


def _placement(job: Job, world: World, chosen: list[Launcher]) -> Placement:
    nodes: dict[NodeId, tuple[RankPlace, ...]] = {}
    rank = 0
    for launcher in chosen:
        slots = world.free_slots(launcher)[: job.spec.nproc_per_node]
        places = [RankPlace(rank=rank + i, local_rank=i, slot=slot) for i, slot in enumerate(slots)]
        rank += len(places)
        nodes[launcher.node] = tuple(places)
    return Placement(generation=job.generation + 1, world_size=rank, nodes=nodes)


def _short(incident: Incident, job: Job, world: World, policy: Policy, now_s: float) -> Decision | None:
    have, need = len(usable_launchers(job, world)), job.spec.elasticity.min_nodes
    limit_s = job.spec.capacity_wait_s if job.spec.capacity_wait_s is not None else policy.capacity.wait_s
    waited_s = now_s - incident.entered_s
    if waited_s >= limit_s:
        return _end(incident, job, f"{have} of {need} healthy nodes after waiting {waited_s:.0f} s for capacity")
    if incident.waits_for:
        return None
    message = (
        f"job {job.id} needs {need} healthy nodes with {job.spec.nproc_per_node} devices each and has {have}; it waits up "
        f"to {limit_s:.0f} s. Start `keepstep run --job {job.id} --node NAME --server ADDRESS …` on another machine, "
        "or bring the held resource back (`keepstep resources`)."
    )
    return Decision(
        stage="place",
        subject=incident.id,
        reason=message,
        changes=(Wait(incident=incident.id, waits_for=message, resume_at=IncidentState.PLACING),),
        intents=(Notify(subject=incident.id, level="warning", message=message),),
    )


def _end(incident: Incident, job: Job, message: str) -> Decision:
    changes: tuple[Change, ...] = (
        MoveIncident(incident=incident.id, to=IncidentState.ESCALATED),
        End(job=job.id, exit_code=75, message=message),
        MoveJob(job=job.id, to=JobState.ENDING),
    )
    page = Notify(subject=incident.id, level="page", message=message)
    return Decision(stage="place", subject=incident.id, reason=message, changes=changes, intents=(page,))
