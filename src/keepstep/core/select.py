"""Stage 5, select: chooses the newest *valid* state over the union of memory, peers and disk, and has it verified.

Newest by step, whatever the tier (case D22); complete, or it is no candidate (D3, D13); verified, or it is not used (D5, D6).
"""

from msgspec import Struct

from keepstep.core.decision import Change, Choose, Decision, MoveIncident, Wait
from keepstep.core.facts import RamOffer
from keepstep.core.ids import NodeId
from keepstep.core.incident import Attempt, Incident, IncidentState
from keepstep.core.intents import Intent, Notify, Restore, VerifyCheckpoint
from keepstep.core.job import Job, Launcher
from keepstep.core.policy import Policy
from keepstep.core.world import World


class Candidate(Struct, frozen=True, kw_only=True):
    restore: Restore
    readers: dict[NodeId, tuple[str, ...]]
    """Who verifies it: node -> digests (of memory; empty for disk)."""


def select(incident: Incident, world: World, policy: Policy, now_s: float) -> Decision | None:
    """Propose, have verified, or move on. None while a verification runs."""
    job, attempt = world.job_of(incident), incident.attempt
    if incident.undiagnosed:
        return reopen(incident, "select")
    if attempt.restore_chosen and not _refused(attempt) and not _reader_lost(job, attempt):
        if set(attempt.verified_by) >= set(attempt.verify_asked):
            if not outdated(job, attempt):
                return _on(incident)
        elif not _stuck(incident, world):
            return None
        elif readers := _again(job, attempt):
            return _ask_again(incident, job, readers)
    found = candidates(job, attempt)
    if found:
        return _propose(incident, job, found[0])
    approved = incident.granted is IncidentState.SELECTING
    had_any = _had_any(job, attempt)
    if had_any and not (policy.approvals.start_from_nothing or approved):
        return _nothing_valid(incident, job)
    return Decision(
        stage="select",
        subject=incident.id,
        reason=_why_nothing(job, approved=approved)
        if had_any
        else "no state was ever saved: the job starts from nothing",
        changes=(
            Choose(incident=incident.id, restore=None),
            MoveIncident(incident=incident.id, to=IncidentState.PLACING),
        ),
    )


def _reader_lost(job: Job, attempt: Attempt) -> bool:
    """Whether a node that is to verify its part is not heard any more."""
    verified = dict.fromkeys(attempt.verified_by)
    awaited = [job.launchers[node] for node in attempt.verify_asked if node not in verified]
    return any(not launcher.reachable or launcher.left for launcher in awaited)


def _ask_again(incident: Incident, job: Job, readers: dict[NodeId, tuple[str, ...]]) -> Decision:
    restore = incident.attempt.restore
    assert restore is not None
    return Decision(
        stage="select",
        subject=incident.id,
        reason=f"the verification of {restore.key} is overdue; asking again",
        intents=_verify(job, Candidate(restore=restore, readers=readers)),
    )


def outdated(job: Job, attempt: Attempt) -> bool:
    """Whether a newer state has turned up since the choice, or nobody who is heard holds the chosen one any more."""
    chosen, found = attempt.restore, candidates(job, attempt)
    if chosen is None:
        return bool(found)
    return all(c.restore.key != chosen.key for c in found) or found[0].restore.step > chosen.step


def reopen(incident: Incident, stage: str) -> Decision:
    """New evidence arrived during a recovery: it is diagnosed before anything else happens."""
    return Decision(
        stage=stage,
        subject=incident.id,
        reason="new evidence during the recovery",
        changes=(MoveIncident(incident=incident.id, to=IncidentState.OPEN),),
    )


def _refused(attempt: Attempt) -> bool:
    key = attempt.restore.key if attempt.restore is not None else None
    return key in attempt.rejected or any((key, node) in attempt.unread for node in attempt.verify_asked)


def _on(incident: Incident) -> Decision:
    restore = incident.attempt.restore
    what = "nothing to restore" if restore is None else f"step {restore.step} from {restore.tier} is verified"
    return Decision(
        stage="select",
        subject=incident.id,
        reason=what,
        changes=(MoveIncident(incident=incident.id, to=IncidentState.PLACING),),
    )


def _stuck(incident: Incident, world: World) -> bool:
    """Every verification still awaited is overdue."""
    waiting = [p for p in world.pending_for(incident.id) if isinstance(p.intent, VerifyCheckpoint)]
    return all(pending.overdue for pending in waiting)


def _again(job: Job, attempt: Attempt) -> dict[NodeId, tuple[str, ...]]:
    assert attempt.restore is not None
    for candidate in candidates(job, attempt):
        if candidate.restore == attempt.restore:
            return {n: held for n, held in candidate.readers.items() if n not in attempt.verified_by}
    return {}


# ---- candidates


def candidates(job: Job, attempt: Attempt) -> list[Candidate]:
    """Every complete state that was not refused, newest first; memory before disk at the same step."""
    alive = [x for x in job.launchers.values() if x.reachable and not x.left and x.inventory is not None]
    unread = dict.fromkeys(attempt.unread)
    found = _from_ram(alive) + _from_disk(alive, job, unread)
    refused = set(attempt.rejected) | set(job.invalid) | {key for key, _ in unread if key.startswith("ram:")}
    fresh = [c for c in found if c.restore.key not in refused and c.restore.generation not in job.tainted]
    return sorted(fresh, key=lambda c: (-c.restore.step, c.restore.tier != "ram", -c.restore.generation))


def _from_ram(alive: list[Launcher]) -> list[Candidate]:
    offers: dict[tuple[int, int, int], list[tuple[Launcher, RamOffer]]] = {}
    for launcher in alive:
        assert launcher.inventory is not None
        for offer in launcher.inventory.ram:
            offers.setdefault((offer.step, offer.generation, offer.world_size), []).append((launcher, offer))
    found = []
    for (step, generation, size), parts in offers.items():
        readers = _cover(size, parts)
        if readers is None:
            continue
        restore = Restore(
            step=step,
            tier="ram",
            key=f"ram:g{generation}:s{step}",
            generation=generation,
            world_size=size,
            peers=tuple(x.snapshots for x, _ in parts if x.node in readers and x.snapshots),
        )
        found.append(Candidate(restore=restore, readers=readers))
    return found


def _cover(size: int, parts: list[tuple[Launcher, RamOffer]]) -> dict[NodeId, tuple[str, ...]] | None:
    """Node -> digests it stands for, so that all ranks' state is covered once; None if something is missing."""
    needed: dict[str, None] = {}
    known: dict[int, tuple[str, ...]] = {}
    for _, offer in parts:
        known.update(offer.parts)
    for rank in range(size):
        if rank not in known:
            return None
        needed.update(dict.fromkeys(known[rank]))
    readers: dict[NodeId, tuple[str, ...]] = {}
    left = dict(needed)
    for launcher, offer in parts:
        mine = tuple(digest for digest in offer.held if digest in left)
        for digest in mine:
            del left[digest]
        if mine:
            readers[launcher.node] = mine
    return None if left else readers


def _from_disk(alive: list[Launcher], job: Job, unread: dict[tuple[str, NodeId], None]) -> list[Candidate]:
    """What the nodes listed, and what was committed since they did: a spare's inventory is as old as its hello.

    ``unread``: (key, node) that tried and could not; another node may.
    """
    found: dict[str, Candidate] = {}
    for launcher in alive:
        assert launcher.inventory is not None
        for offer in (*launcher.inventory.disk, *job.committed):
            if offer.key in found or (offer.key, launcher.node) in unread:
                continue
            restore = Restore(
                step=offer.step,
                tier="disk",
                key=offer.key,
                generation=offer.generation,
                world_size=offer.world_size,
            )
            found[offer.key] = Candidate(restore=restore, readers={launcher.node: ()})
    return list(found.values())


def _propose(incident: Incident, job: Job, candidate: Candidate) -> Decision:
    restore = candidate.restore
    return Decision(
        stage="select",
        subject=incident.id,
        reason=f"newest complete state is step {restore.step} ({restore.tier}, {restore.key}); verifying it on "
        f"{', '.join(candidate.readers)}",
        changes=(Choose(incident=incident.id, restore=restore, asked=tuple(candidate.readers)),),
        intents=_verify(job, candidate),
    )


def _verify(job: Job, candidate: Candidate) -> tuple[Intent, ...]:
    return tuple(
        VerifyCheckpoint(
            job=job.id, node=node, session=job.launchers[node].session, restore=candidate.restore, held=held
        )
        for node, held in candidate.readers.items()
    )


def _had_any(job: Job, attempt: Attempt) -> bool:
    """A start from nothing would throw work away: something was saved, whether or not it can be read now."""
    return job.committed_step >= 0 or bool(attempt.rejected) or bool(attempt.unread)


def _why_nothing(job: Job, *, approved: bool) -> str:
    who = "a person approved" if approved else "the policy allows"
    return f"none of the saved states is valid (newest committed step {job.committed_step}); {who} a start from nothing"


def _nothing_valid(incident: Incident, job: Job) -> Decision:
    said = f"; the last one tried: {incident.last_failure}" if incident.last_failure else ""
    message = (
        f"job {job.id} has saved state (newest committed step {job.committed_step}) and none of it is valid and complete "
        f"now ({len(job.invalid)} refused{said}). Bring a node or a checkpoint back, or approve a start from nothing."
    )
    changes: tuple[Change, ...] = (
        MoveIncident(incident=incident.id, to=IncidentState.WAITING),
        Wait(incident=incident.id, waits_for=message, resume_at=IncidentState.SELECTING),
    )
    page = Notify(subject=incident.id, level="page", message=message)
    return Decision(stage="select", subject=incident.id, reason=message, changes=changes, intents=(page,))
