"""The last stage: what has been over for long leaves the World. Pure, bounded, and takes nothing that a decision still reads.

Closed incidents and faults decide nothing any more: budgets and breakers have their own memory (``Job.failures``,
``Resource.failures``, ``World.isolations``). Of a job that leaves, what must never be forgotten stays as a RetiredJob. Readers
find the rest in the archive.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from keepstep.core.decision import Decision, Retire
from keepstep.core.fault import FaultState
from keepstep.core.ids import FaultId, IncidentId, JobId
from keepstep.core.intents import PowerOff
from keepstep.core.policy import Policy
from keepstep.core.world import World, live

EVERY_S = 10.0
"""Between two such decisions."""
AT_ONCE = 256
"""Of each kind in one decision: a backlog leaves over minutes, not in one pass."""

Name = TypeVar("Name", IncidentId, FaultId, JobId)


def retire(world: World, policy: Policy, now_s: float) -> Decision | None:
    """What may leave now; None where nothing may, or where the last time was a moment ago."""
    if now_s - world.retired_s < EVERY_S:
        return None
    kept = policy.retention
    incidents = _due(world.closed_incidents, now_s - kept.incidents_s, lambda _: True)
    faults = _due(world.closed_faults, now_s - kept.faults_s, lambda fault: _unused(fault, world))
    jobs = _due(world.ended_jobs, now_s - kept.jobs_s, lambda job: may_leave(job, world))
    if not (incidents or faults or jobs):
        return None
    return Decision(
        stage="retire",
        subject="archive",
        reason=f"over for long: {len(incidents)} incident(s), {len(faults)} fault(s), {len(jobs)} job(s)",
        changes=(Retire(incidents=incidents, faults=faults, jobs=jobs),),
    )


def _due(ended: dict[Name, float], before_s: float, may: Callable[[Name], bool]) -> tuple[Name, ...]:
    """The oldest ones that may leave. ``ended`` is in the order of its times."""

    def found() -> Iterator[Name]:
        for name, at_s in ended.items():
            if at_s > before_s:
                return
            if may(name):
                yield name

    return tuple(name for name, _ in zip(found(), range(AT_ONCE), strict=False))


def _unused(fault: FaultId, world: World) -> bool:
    """No open fault looks at it: what it belongs to, and what belongs to it, is over as well."""
    item = world.faults[fault]
    related = [*item.members, *([item.group] if item.group is not None else [])]
    return all(world.faults[x].state is FaultState.CLOSED for x in related if x in world.faults)


def may_leave(job: JobId, world: World) -> bool:
    """Nothing of it runs, as far as was proven; its incidents have left; no node waits to be powered off for it."""
    item = world.jobs[job]
    if live(item) or item.incidents_kept or any(launcher.running for launcher in item.launchers.values()):
        return False
    waits = (world.orders.get(number) for number in world.powering_off.values())
    return not any(p is not None and isinstance(p.intent, PowerOff) and p.intent.job == job for p in waits)
