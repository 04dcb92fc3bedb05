"""Which facts a connection may report: about its own node, its own job, its own orders. Pure.

A stolen certificate, or a launcher gone wrong, can then say false things of one node only: it cannot prove another one dead,
answer its orders, or speak for a person. What is refused changes nothing and is told to the journal.
"""

import re

from msgspec import structs

from keepstep.core import facts as f
from keepstep.core.access import OWNER, Principal
from keepstep.core.world import World
from keepstep.wire.messages import Hello

_BY_ROLE: dict[str, tuple[type, ...]] = {
    "launcher": (
        f.JobSubmitted, f.JobStopRequested, f.NodeJoined, f.NodeLeft, f.RankExited, f.CheckpointCommitted,
        f.CheckpointFailed, f.SignalSeen, f.GateFinished, f.Answered,
    ),
    "agent": (f.AgentJoined, f.CoverageChanged, f.SignalSeen, f.GateFinished, f.Answered),
    "front": (f.JobSubmitted, f.JobStopRequested, f.Witnessed, f.ProbeFailed),
    "tool": (),
}  # fmt: skip
"""What each kind of client reports. A person's word goes another way: Act."""
SESSION = re.compile(r"[A-Za-z0-9._:/-]{0,200}")
RESERVED = ("server-", "ask-", "enrol-", "renew-")
"""Beginnings of session names that the server itself gives."""


def objection(principal: Principal, hello: Hello, fact: f.Fact, world: World) -> str:
    """Why this connection may not report it; empty where it may."""
    if not isinstance(fact, _BY_ROLE.get(hello.role, ())):
        return f"a {hello.role} does not report {type(fact).__name__}"
    return _elsewhere(hello, fact) or _of_other_order(hello, fact, world) or _of_other_tenant(principal, hello, world)


def unfit_session(hello: Hello) -> str:
    """Why it may not call itself so; empty where it may."""
    name = hello.session or ""
    if not SESSION.fullmatch(name):
        # It is kept as it is with every report: one that a database cannot take would stop the journal.
        return "a session is named by letters, digits, dots, dashes, colons, slashes and underscores, at most 200"
    return f"{name!r} is a session of the server itself" if name.startswith(RESERVED) else ""


def foreign_job(principal: Principal, hello: Hello, world: World) -> str:
    """Why it may not serve the job that its Hello names; empty where it may. Says nothing of whose it is."""
    return _of_other_tenant(principal, hello, world)


def in_its_name(principal: Principal, fact: f.Fact) -> f.Fact:
    """The fact as it is journalled: whose job it is and who spoke comes from the identity, not from what was written."""
    if isinstance(fact, f.JobSubmitted) and principal.tenants and fact.spec.tenant not in principal.tenants:
        return structs.replace(fact, spec=structs.replace(fact.spec, tenant=principal.tenants[0]))
    if isinstance(fact, f.JobStopRequested) and principal.proof != OWNER.proof:
        return structs.replace(fact, by=principal.name)
    return fact


def _elsewhere(hello: Hello, fact: f.Fact) -> str:
    """Another job, node or session than the connection's own."""
    job = getattr(fact, "job", None)
    if job is not None and job != hello.job:
        return f"{type(fact).__name__} is about job {job!r}, and this connection serves {hello.job or 'none'!r}"
    if hello.role == "front":
        return ""  # its witness is about the launchers that it started, on whatever node
    node = getattr(fact, "node", None)
    if node is None and (resource := getattr(fact, "resource", None)) is not None:
        node = _node_of(resource)
    if node is not None and node != hello.node:
        return f"{type(fact).__name__} is about node {node!r}, and this connection is {hello.node!r}"
    session = getattr(fact, "session", None)
    if session and session != hello.session:
        return f"{type(fact).__name__} names session {session!r}, and this connection is {hello.session!r}"
    return ""


def _node_of(resource: str) -> str:
    """Empty where it is no resource of a node."""
    kind, _, rest = resource.partition("/")
    return rest.partition("/")[0] if kind in ("node", "device") else ""


def _of_other_order(hello: Hello, fact: f.Fact, world: World) -> str:
    """An order that was given to somebody else."""
    pending = world.orders.get(fact.intent) if isinstance(fact, f.Answered) else None
    if pending is None:
        return ""  # answered before: a repeated answer changes nothing
    node, job = getattr(pending.intent, "node", None), getattr(pending.intent, "job", None)
    if node != hello.node or (hello.role == "launcher" and job and job != hello.job):
        return f"order {pending.number} was given to {node or 'the server'}, and this connection is {hello.node!r}"
    return ""


def _of_other_tenant(principal: Principal, hello: Hello, world: World) -> str:
    if hello.job is None or not principal.tenants:
        return ""
    job, retired = world.jobs.get(hello.job), world.retired_jobs.get(hello.job)
    tenant = job.spec.tenant if job is not None else retired.tenant if retired is not None else None
    if tenant is None or principal.sees(tenant):
        return ""
    return (
        f"the name {hello.job!r} is taken by a job that {principal.name} has nothing to do with; choose another --job"
    )
