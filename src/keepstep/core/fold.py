"""Folds facts into the World: what is known of the outside changes here. Must not decide anything about it.

A fact of an older generation, session or order is counted as stale and changes nothing (invariant 8).
"""

from keepstep.core import facts as f
from keepstep.core.apply import add_job, add_resource, mark_fenced, run_again
from keepstep.core.apply_drill import open_drill
from keepstep.core.fold_node import fold_node, forget_orders, join_domains
from keepstep.core.ids import JobId, NodeId, Session, device_resource, node_resource
from keepstep.core.incident import Incident, Seen
from keepstep.core.intents import (
    CollectStacks,
    EndJob,
    Fence,
    Inject,
    Launch,
    PowerOff,
    Release,
    VerifyCheckpoint,
)
from keepstep.core.job import Job, JobState, Launcher, RankEnd
from keepstep.core.resource import Hold, Resource, ResourceState
from keepstep.core.world import Pending, World, live

_OLDER_SESSIONS = 16
_COMMITS_KEPT = 8


def fold(world: World, fact: f.Fact, at_s: float) -> None:
    """Fold one fact; it counts as one journal entry."""
    world.seq += 1
    seen = Seen(entry=world.seq, job=getattr(fact, "job", None), at_s=at_s, fact=fact)
    match fact:
        case f.JobSubmitted():
            _submitted(world, fact, at_s)
        case f.NodeJoined():
            _joined(world, fact, seen)
        case f.NodeLeft() | f.NodeUnreachable() | f.NodeReachable() | f.Witnessed():
            _of_launcher(world, fact, seen)
        case f.RankExited():
            _rank_exited(world, fact, seen)
        case f.JobStalled() | f.StepsAdvanced():
            _of_generation(world, fact, seen)
        case f.StepsSlower():
            job = world.jobs.get(fact.job)
            if job is not None and fact.generation == job.generation:
                job.slower = fact
        case f.CheckpointCommitted() | f.CheckpointFailed():
            _checkpoint(world, fact, at_s)
        case f.SignalSeen():
            _signal(world, fact, seen)
        case f.HoldRequested() | f.HoldLifted():
            _hold(world, fact, at_s)
        case f.GateFinished():
            _gate(world, fact, seen)
        case f.Answered():
            _answered(world, fact, seen)
        case f.Overdue():
            if fact.intent in world.orders:
                world.orders[fact.intent].overdue = True
        case f.JobStopRequested():
            job = world.jobs.get(fact.job)
            if job is not None and live(job):
                job.stop_requested = fact.reason or f"stopped by {fact.by}"
        case f.Approved():
            world.approvals[fact.subject] = seen
        case f.DrillRequested():
            if fact.job in world.jobs:
                open_drill(world, fact.job, fact.kind, fact.by, at_s, rank=fact.rank)
        case f.ServerStarted():
            _started(world, fact, at_s)
        case f.AgentJoined() | f.AgentSilent() | f.AgentHeard() | f.CoverageChanged() | f.BmcSeen():
            fold_node(world, fact, at_s)
        case f.ProbeFailed():
            pass  # recorded; a status call that fails says nothing about the job
        case (
            f.PolicySet() | f.TokenIssued() | f.TokenRevoked() | f.CertificateIssued() | f.CertificateRevoked()
            | f.RequestRefused() | f.CurveNoted() | f.Compacted()
        ):  # fmt: skip
            pass  # of people and of the installation: server.registry and the histories read them


def _submitted(world: World, fact: f.JobSubmitted, at_s: float) -> None:
    job = world.jobs.get(fact.job)
    if job is None:
        _submitted_first(world, fact, at_s)
    elif fact.run not in job.runs:
        job.runs.append(fact.run)
        if not live(job):
            run_again(world, job, fact.spec, at_s)


def _submitted_first(world: World, fact: f.JobSubmitted, at_s: float) -> None:
    """As far as the World knows: one that has left it goes on where it was, and a late word of its last run is stale."""
    item = Job(id=fact.job, spec=fact.spec, runs=[fact.run], entered_s=at_s, submitted_s=at_s)
    known = world.retired_jobs.get(fact.job)
    if known is not None:
        if fact.run in known.runs:
            world.stale += 1
            return
        del world.retired_jobs[fact.job]
        item.generation, item.runs = known.generation, [*known.runs, fact.run]
        item.invalid, item.tainted = list(known.invalid), list(known.tainted)
    add_job(world, item)


def _joined(world: World, fact: f.NodeJoined, seen: Seen) -> None:
    job = world.jobs.get(fact.job)
    if job is None:
        world.stale += 1
        return
    known = job.launchers.get(fact.node)
    if known is not None and fact.session in known.older:
        world.stale += 1
        return
    same = known is not None and known.session == fact.session
    launcher = Launcher(
        node=fact.node,
        session=fact.session,
        boot_id=fact.boot_id,
        slots=tuple(device.slot for device in fact.devices),
        address=fact.address,
        rack=fact.rack,
        pid=fact.pid,
        pid_start=fact.pid_start,
        store=fact.store,
        snapshots=fact.snapshots,
        inventory=fact.inventory,
        joined_s=known.joined_s if known else seen.at_s,
        spare=fact.spare,
        fenced=known.fenced if known else 0,
        running=known.running if known else 0,
        older=known.older if known else (),
        fenced_s=known.fenced_s if known else None,
    )
    if known is not None and not same:
        launcher.older = (*known.older, known.session)[-_OLDER_SESSIONS:]
        forget_orders(world, known.session)
        _may_read_again(world, job, fact.node)
        if known.running:
            # The old session's ranks may still be there: the new launcher must prove their end before anything starts.
            launcher.replaces = known.session
            world.inbox.append(seen)
    if same and known is not None:
        _joined_again(world, job, known, launcher, seen)
    job.launchers[fact.node] = launcher
    join_domains(world, fact.node, {"rack": fact.rack})
    _register_resources(world, fact, seen.at_s)


def _joined_again(world: World, job: Job, known: Launcher, launcher: Launcher, seen: Seen) -> None:
    """The same session after a broken connection: what it alone cannot know is kept."""
    assert isinstance(seen.fact, f.NodeJoined)
    _heard_again(world, job, launcher.node)
    launcher.replaces, launcher.confirmed, launcher.emptied = known.replaces, known.confirmed, known.emptied
    launcher.told_to_end, launcher.seen_alive_s = known.told_to_end, known.seen_alive_s
    if known.store == "" and known.running:
        launcher.store = ""
    places = job.placement.nodes.get(launcher.node, ()) if job.placement is not None else ()
    ended = all(place.rank in job.ended for place in places)
    gone = 0 < known.running == known.confirmed > seen.fact.running_generation
    if gone and not ended and not launcher.emptied and live(job) and job.state is not JobState.ENDING:
        # It fenced itself while nobody heard it. No rank's end was reported, and none ever will be.
        launcher.emptied = True
        world.inbox.append(seen)


def _may_read_again(world: World, job: Job, node: NodeId) -> None:
    """What a launcher could not read, its successor may: it can have been given the key, or its disk back."""
    leading = world.leading(job)
    if leading is not None:
        leading.attempt.unread = [(key, failed) for key, failed in leading.attempt.unread if failed != node]


def _heard_again(world: World, job: Job, node: NodeId) -> None:
    """What a witness said of one silence says nothing of the next."""
    leading = world.leading(job)
    if leading is not None:
        asked = leading.attempt.witnesses_asked
        leading.attempt.witnesses_asked = tuple(known for known in asked if known != node)


def _started(world: World, fact: f.ServerStarted, at_s: float) -> None:
    """Another life, perhaps with another clock: a silence that a proof is built on is measured anew from here."""
    world.server = fact.server
    for job_id in world.live_jobs:
        for launcher in world.jobs[job_id].launchers.values():
            if launcher.silent_since_s is not None:
                launcher.silent_since_s = at_s
            if launcher.fenced_s is not None:
                launcher.fenced_s = at_s
    for drill in world.open_drills:
        world.drills[drill].watched_s = at_s


def _register_resources(world: World, fact: f.NodeJoined, at_s: float) -> None:
    parts = [(node_resource(fact.node), str(fact.node), "")]
    parts += [(device_resource(fact.node, d.slot), d.serial, d.firmware) for d in fact.devices]
    for resource_id, serial, firmware in parts:
        known = world.resources.get(resource_id)
        if known is None:
            item = Resource(
                id=resource_id,
                node=fact.node,
                serial=serial,
                firmware=firmware,
                boot_id=fact.boot_id,
                entered_s=at_s,
            )
            add_resource(world, item)
            continue
        if (known.serial, known.firmware, known.boot_id) != (serial, firmware, fact.boot_id):
            # Another part, firmware or boot: what the gate said of the old one does not count for it.
            known.gate_passed_entry = None
        known.serial, known.firmware, known.boot_id = serial, firmware, fact.boot_id
    for device in fact.devices:
        world.resources[device_resource(fact.node, device.slot)].model = device.model


def launcher_of(world: World, job: JobId, node: NodeId, session: Session) -> tuple[Job, Launcher] | None:
    """The launcher that a fact speaks of, if it is the present session of a live job."""
    owner = world.jobs.get(job)
    if owner is None or not live(owner):
        return None
    launcher = owner.launchers.get(node)
    return (owner, launcher) if launcher is not None and launcher.session == session else None


def _of_launcher(
    world: World, fact: f.NodeLeft | f.NodeUnreachable | f.NodeReachable | f.Witnessed, seen: Seen
) -> None:
    found = launcher_of(world, fact.job, fact.node, fact.session)
    if found is None:
        world.stale += 1
        return
    job, launcher = found
    match fact:
        case f.NodeLeft():
            launcher.left, launcher.reachable, launcher.gone = True, False, fact.reason or "left"
            if launcher.running and job.state is not JobState.ENDING:
                world.inbox.append(seen)
            mark_fenced(world, job, fact.node, max(job.generation, launcher.running), "left", seen.at_s)
        case f.NodeUnreachable():
            launcher.reachable, launcher.silent_since_s = False, seen.at_s - fact.silent_s
        case f.NodeReachable():
            _heard_again(world, job, fact.node)
            launcher.reachable, launcher.silent_since_s, launcher.gone = True, None, ""
        case f.Witnessed():
            if fact.verdict in ("process_gone", "host_off", "rebooted"):
                launcher.reachable, launcher.gone = False, f"{fact.verdict} ({fact.witness}: {fact.detail})"
                launcher.silent_since_s = launcher.silent_since_s or seen.at_s
            elif fact.verdict == "alive":
                launcher.seen_alive_s = seen.at_s
    leading = world.leading(job)
    # Good news is evidence for the incident that waits for it; where none does, it is no symptom of anything.
    good = isinstance(fact, f.NodeReachable) or (
        isinstance(fact, f.Witnessed) and fact.verdict in ("alive", "no_answer")
    )
    if good and (leading is None or not leading.open):
        return
    if launcher.running and not isinstance(fact, f.NodeLeft):
        world.inbox.append(seen)


def _rank_exited(world: World, fact: f.RankExited, seen: Seen) -> None:
    found = launcher_of(world, fact.job, fact.node, fact.session)
    if found is None or fact.generation != found[0].generation or found[1].running != fact.generation:
        world.stale += 1
        return
    job, _ = found
    known = job.ended.get(fact.rank)
    if known is not None and (known.exit_code, known.signal) != (None, None):
        world.stale += 1
        return
    job.ended[fact.rank] = RankEnd(exit_code=fact.exit_code, signal=fact.signal, entry=seen.entry)
    job.step = max(job.step, fact.step)
    clean = fact.exit_code == 0 and fact.error is None
    if known is None and not clean and job.state is not JobState.ENDING:
        world.inbox.append(seen)


def _of_generation(world: World, fact: f.JobStalled | f.StepsAdvanced, seen: Seen) -> None:
    job = world.jobs.get(fact.job)
    if job is None or not live(job) or fact.generation != job.generation:
        world.stale += 1
        return
    if isinstance(fact, f.JobStalled):
        job.step = max(job.step, fact.step)
        if job.state is not JobState.ENDING:
            world.inbox.append(seen)
        return
    job.step, job.step_time_s = fact.step, fact.step_time_s
    job.loss = fact.loss if fact.loss is not None else job.loss
    leading = world.leading(job)
    if leading is not None:
        leading.progress.append((fact.step, seen.at_s))
        leading.loss_after = fact.loss


def _checkpoint(world: World, fact: f.CheckpointCommitted | f.CheckpointFailed, at_s: float) -> None:
    job = world.jobs.get(fact.job)
    if job is None or fact.generation > job.generation:
        world.stale += 1
        return
    if isinstance(fact, f.CheckpointFailed):
        job.save_failures += 1
        return
    job.save_failures = 0
    offer = f.DiskOffer(step=fact.step, generation=fact.generation, world_size=fact.world_size, key=fact.key)
    older = [known for known in job.committed if known.key != fact.key]
    job.committed = [*older[1 - _COMMITS_KEPT :], offer]
    if fact.step > job.committed_step:
        job.commit_every_s = at_s - job.committed_s if job.committed_s is not None else None
        job.committed_step, job.committed_key, job.committed_s = fact.step, fact.key, at_s


def _signal(world: World, fact: f.SignalSeen, seen: Seen) -> None:
    resource = world.resources.get(fact.resource)
    if resource is None or (fact.boot_id and resource.boot_id and fact.boot_id != resource.boot_id):
        world.stale += 1
        return
    world.signals.append(seen)


def _hold(world: World, fact: f.HoldRequested | f.HoldLifted, at_s: float) -> None:
    resource = world.resources.get(fact.resource)
    if resource is None:
        world.stale += 1
    elif isinstance(fact, f.HoldRequested):
        resource.holds[fact.source] = Hold(source=fact.source, reason=fact.reason, since_s=at_s)
    elif fact.source in resource.holds:
        del resource.holds[fact.source]


def _gate(world: World, fact: f.GateFinished, seen: Seen) -> None:
    resource = world.resources.get(fact.resource)
    if resource is None or resource.state is not ResourceState.VALIDATING or fact.boot_id != resource.boot_id:
        world.stale += 1
        return
    if (fact.serial, fact.firmware) != (resource.serial, resource.firmware) or not _asked_for(world, fact, resource):
        world.stale += 1
        return
    resource.gate_verdict = "tool_failed" if fact.passed is None else "passed" if fact.passed else "failed"
    resource.gate_passed_entry = seen.entry if fact.passed else None
    if fact.passed:
        resource.gate_passed_s = seen.at_s


def _asked_for(world: World, fact: f.GateFinished, resource: Resource) -> bool:
    """Whether it answers a gate run of this very validation: a late word of an earlier one redeems nothing."""
    if not fact.run:
        return True
    pending = world.orders.get(fact.run)
    return pending is not None and pending.decided_s >= resource.entered_s


def _answered(world: World, fact: f.Answered, seen: Seen) -> None:
    pending = world.orders.pop(fact.intent, None)
    if pending is None:
        world.stale += 1
        return
    intent, outcome = pending.intent, fact.outcome
    incident = world.incidents.get(pending.incident) if pending.incident is not None else None
    if isinstance(intent, Release) and isinstance(outcome, f.Done):
        others = (p.intent for p in world.orders_on(intent.resource))
        world.resources[intent.resource].gated = any(isinstance(other, Release) for other in others)
    if isinstance(intent, PowerOff) and world.powering_off.get(intent.node) == fact.intent:
        del world.powering_off[intent.node]
    if isinstance(intent, Fence | PowerOff) and isinstance(outcome, f.Fenced):
        # A proof of death stays true whatever became of the incident that asked for it.
        _fenced(world, intent, outcome, seen.at_s)
    elif isinstance(intent, EndJob) and isinstance(outcome, f.Done):
        job = world.jobs[intent.job]
        if intent.node in job.launchers and job.launchers[intent.node].session == intent.session:
            mark_fenced(world, job, intent.node, job.generation, "ended", seen.at_s)
    elif isinstance(intent, Inject) and isinstance(outcome, f.Failed) and intent.drill in world.drills:
        world.drills[intent.drill].refused = outcome.reason
    elif incident is not None and incident.open:
        _answered_to(world, incident, pending, seen)


def _answered_to(world: World, incident: Incident, pending: Pending, seen: Seen) -> None:
    assert isinstance(seen.fact, f.Answered)
    attempt, intent, outcome = incident.attempt, pending.intent, seen.fact.outcome
    match intent, outcome:
        case (Launch(), f.Launched()):
            if intent.generation == attempt.new_generation:
                attempt.launched[intent.node] = outcome.warm
                launcher = world.jobs[incident.job].launchers[intent.node]
                if launcher.session == intent.session:
                    launcher.confirmed = intent.generation
        case (Launch(), f.Failed()):
            if intent.generation == attempt.new_generation:
                incident.evidence[seen.entry] = seen
                attempt.failed_launches[seen.entry] = intent.node
                incident.symptoms.append(seen.entry)
                incident.undiagnosed.append(seen.entry)
        case (CollectStacks(), f.StacksTaken()):
            if intent.generation == world.jobs[incident.job].generation:
                attempt.stacks[intent.node] = outcome.stacks
        case (VerifyCheckpoint(), f.CheckpointVerified()):
            if attempt.restore == intent.restore:
                attempt.verified_by.append(intent.node)
        case (VerifyCheckpoint(), f.CheckpointRejected()):
            attempt.rejected.append(intent.restore.key)
            incident.last_failure = outcome.reason
            world.jobs[incident.job].invalid.append(intent.restore.key)
        case (VerifyCheckpoint(), f.Failed()):
            # The reader failed, not the state: another node, or a later attempt, may still read it.
            attempt.unread.append((intent.restore.key, intent.node))
            incident.last_failure = outcome.reason
        case (_, f.Failed()):
            kind = type(intent).__name__
            incident.failed_orders[kind] = incident.failed_orders.get(kind, 0) + 1
            incident.last_failure = outcome.reason
        case _:
            pass


def _fenced(world: World, intent: Fence | PowerOff, outcome: f.Fenced, at_s: float) -> None:
    job = world.jobs[intent.job]
    launcher = job.launchers.get(intent.node)
    if launcher is None or outcome.generation < intent.generation:
        world.stale += 1
        return
    mark_fenced(world, job, intent.node, outcome.generation, outcome.proof, at_s)
    if launcher.session != intent.session:
        return
    launcher.store = outcome.store or launcher.store
    launcher.inventory = outcome.inventory or launcher.inventory
    leading = world.leading(job)
    if leading is not None and outcome.inventory is not None:
        # Snapshots tell how far the ranks had really come, where none of them lived to say it.
        seen = (offer.step for offer in outcome.inventory.ram if offer.generation == leading.attempts[0].generation)
        leading.step_before = max(leading.step_before, *seen, -1)
