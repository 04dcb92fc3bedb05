"""What of the read side somebody may see: tenants apart. The one rule, for the wire and for HTTP alike.

A job of another tenant, its incidents and its report are as if they did not exist. The fleet belongs to all: nodes, resources
and faults are shown, without the names of jobs that are another tenant's.
"""

from keepstep.core.access import Action, Principal, refusal
from keepstep.core.ids import IncidentId, JobId
from keepstep.core.world import World

ASKING: dict[str, Action] = {
    "tokens": Action.MANAGE_ACCESS,
    "certificates": Action.MANAGE_ACCESS,
    "journal": Action.READ_JOURNAL,
}
"""Questions that take more than READ."""
FREE = ("leave",)
"""Whoever was let in may ask: whether a server leaves is for its clients to say."""


def refusal_to_ask(principal: Principal | None, what: str) -> str:
    """Why it may not ask that question; empty where it may. None is a reader of the journal file itself."""
    if principal is None or what in FREE:
        return ""
    return refusal(principal, ASKING.get(what, Action.READ))


def sees_job(principal: Principal | None, world: World, job: str) -> bool:
    """False also for a job that the World does not know (any more), unless all tenants are seen."""
    if principal is None or not principal.tenants:
        return True
    known = world.jobs.get(JobId(job))
    return known is not None and principal.sees(known.spec.tenant)


def sees_incident(principal: Principal | None, world: World, incident: str) -> bool:
    known = world.incidents.get(IncidentId(incident))
    return sees_job(principal, world, known.job if known is not None else "")


def tenants(principal: Principal | None) -> tuple[str, ...]:
    """Empty: all."""
    return principal.tenants if principal is not None else ()
