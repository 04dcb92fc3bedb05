"""Requests of people, judged: who may ask what, whether its subject exists, and which fact it becomes. Decides nothing else."""

import re
from collections.abc import Callable
from typing import Any

from keepstep.core import facts as f
from keepstep.core.access import Action, Principal, Role, refusal
from keepstep.core.ids import JobId, ResourceId
from keepstep.core.incident import IncidentState
from keepstep.core.rehearse import hindrance
from keepstep.core.world import live
from keepstep.server.desk import UnknownSubject
from keepstep.server.history import Books
from keepstep.server.policy_file import read_policy
from keepstep.wire import requests as r

_HEX64 = re.compile("[0-9a-f]{64}")
_TENANT = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SESSION = re.compile("session-[0-9a-f]{32}")
_LIFE_MAX_S = 100 * 365 * 86400.0


class Forbidden(PermissionError):
    """The asker may not have it."""


class Conflict(ValueError):
    """Not in the present state of its subject."""


ACTION: dict[type, Action | None] = {
    r.StopJob: Action.STOP_JOB,
    r.BeginDrill: Action.DRILL,
    r.Hold: Action.HOLD,
    r.Unhold: Action.HOLD,
    r.Decide: Action.APPROVE,
    r.SetPolicy: Action.SET_POLICY,
    r.IssueToken: Action.MANAGE_ACCESS,
    r.RevokeToken: Action.MANAGE_ACCESS,
    r.EndSession: None,
    r.RevokeCertificate: Action.MANAGE_ACCESS,
    r.NoteCompacted: Action.KEEP_JOURNAL,
}
"""None: whoever is known may."""


def fact_of(request: r.Request, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    """The fact, and the name of its subject. Raises Forbidden, UnknownSubject, Conflict, ValueError; each says why."""
    tenant = _tenant(request, books)
    if tenant is not None and not by.sees(tenant):
        raise _unknown(request)  # as if it did not exist
    action = ACTION[type(request)]
    why = refusal(by, action, tenant) if action is not None else ""
    if why:
        raise Forbidden(why)
    return _MADE[type(request)](request, by, books, now_s)


def _tenant(request: r.Request, books: Books) -> str | None:
    """Whose job it is about; None where it is about none."""
    world = books.world
    job = world.jobs.get(JobId(request.job)) if isinstance(request, r.StopJob | r.BeginDrill) else None
    if isinstance(request, r.Decide):
        incident = world.incidents.get(request.subject)  # type: ignore[call-overload]
        job = world.jobs.get(incident.job) if incident is not None else None
    return job.spec.tenant if job is not None else None


def _unknown(request: r.Request) -> UnknownSubject:
    """The same words for what does not exist and for what is another tenant's."""
    if isinstance(request, r.StopJob | r.BeginDrill):
        return UnknownSubject(f"there is no job {request.job!r}; see `keepstep jobs`")
    return UnknownSubject(
        f"there is no incident or resource {getattr(request, 'subject', '')!r}; see `keepstep incidents` and "
        "`keepstep resources`"
    )


def _stop(request: r.StopJob, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    job = books.world.jobs.get(JobId(request.job))
    if job is None:
        raise _unknown(request)
    if not live(job):
        raise Conflict(f"job {request.job} has already ended: {job.state.value}")
    return f.JobStopRequested(job=job.id, by=by.name, reason=request.reason), job.id


def _drill(request: r.BeginDrill, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    """What cannot begin now is refused at once: whoever asked is there and can ask again."""
    world = books.world
    job = world.jobs.get(JobId(request.job))
    if job is None:
        raise _unknown(request)
    why = hindrance(job, request.kind, world)
    if why:
        raise Conflict(f"no drill now: {why}")
    if request.rank is not None and (job.placement is None or job.placement.node_of_rank(request.rank) is None):
        raise ValueError(f"job {job.id} has no rank {request.rank}; see `keepstep ranks {job.id}`")
    drill = f"drill-{world.next_drill:04d}"
    return f.DrillRequested(job=job.id, kind=request.kind, by=by.name, rank=request.rank), drill


def _hold(request: r.Hold, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    resource = _resource(request.resource, books)
    why = request.reason or "held by hand"
    return f.HoldRequested(resource=resource, source=f"person:{by.name}", by=by.name, reason=why), resource


def _unhold(request: r.Unhold, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    resource, source = _resource(request.resource, books), f"person:{by.name}"
    if source not in books.world.resources[resource].holds:
        raise Conflict(f"{resource} is not held by {source}; see `keepstep resources`")
    return f.HoldLifted(resource=resource, source=source, by=by.name), resource


def _decide(request: r.Decide, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    world, subject = books.world, request.subject
    incident = world.incidents.get(subject)  # type: ignore[call-overload]
    if incident is None and subject not in world.resources:
        raise _unknown(request)
    if incident is None and by.tenants:
        raise Forbidden(f"{subject} concerns everybody, and {by.name} is bound to some tenants")
    if incident is not None and incident.state is not IncidentState.WAITING:
        raise Conflict(f"incident {subject} waits for nobody: it is {incident.state.value}")
    return f.Approved(subject=subject, by=by.name, granted=request.granted), subject


def _policy(request: r.SetPolicy, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    read_policy(request.overrides)
    return f.PolicySet(overrides=request.overrides, by=by.name), "policy"


def _token(request: r.IssueToken, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    known = [role.value for role in Role]
    if request.role not in known:
        raise ValueError(f"there is no role {request.role!r}; there are {', '.join(known)}")
    if not _HEX64.fullmatch(request.digest) or request.digest in books.registry.by_digest:
        raise ValueError("the digest is not the BLAKE2b-256 of a fresh secret in hex")
    if request.kind == "api" and not request.name:
        raise ValueError("an API token needs the name of whoever it is for")
    if by.tenants and not set(request.tenants) <= set(by.tenants):
        raise Forbidden(f"{by.name} can hand out only what it has: tenants {', '.join(by.tenants)}")
    if any(not _TENANT.fullmatch(tenant) for tenant in request.tenants):
        raise ValueError("a tenant's name has letters, digits, dots, dashes and underscores, at most 100")
    if request.expires_in_s is not None and not 0 < request.expires_in_s < _LIFE_MAX_S:
        raise ValueError("a token holds for more than no time, and for less than a hundred years")
    id = books.registry.new_token_id()
    expires_s = now_s + request.expires_in_s if request.expires_in_s is not None else None
    issued = f.TokenIssued(
        id=id, digest=request.digest, kind=request.kind, role=request.role, tenants=request.tenants, name=request.name,
        expires_s=expires_s, by=by.name,
    )  # fmt: skip
    return issued, id


def _revoke_token(request: r.RevokeToken, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    if request.id not in books.registry.tokens:
        raise UnknownSubject(f"there is no token {request.id!r}; see `keepstep token list`")
    return f.TokenRevoked(id=request.id, by=by.name), request.id


def _end_session(request: r.EndSession, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    """A session is a token of its own kind, which is told to the journal only when it ends before its time."""
    if not _SESSION.fullmatch(request.session):
        raise ValueError("that is no session of the dashboard; log out by its own button")
    return f.TokenRevoked(id=request.session, by=by.name), request.session


def _revoke_certificate(request: r.RevokeCertificate, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    if request.serial not in books.registry.certificates:
        raise UnknownSubject(f"there is no certificate {request.serial!r}; see `keepstep ca list`")
    return f.CertificateRevoked(serial=request.serial, by=by.name, reason=request.reason), request.serial


def _note_compacted(request: r.NoteCompacted, by: Principal, books: Books, now_s: float) -> tuple[f.Fact, str]:
    if not 0 < request.upto <= books.world.seq:
        raise Conflict(f"entry {request.upto} is not in the journal, which ends with entry {books.world.seq}")
    if not all(_HEX64.fullmatch(text) for text in (request.hash, request.digest)):
        raise ValueError("the hash and the digest are 64 hex digits each")
    fact = f.Compacted(
        upto=request.upto, hash=request.hash, archive=request.archive, digest=request.digest, by=by.name
    )  # fmt: skip
    return fact, "journal"


def _resource(name: str, books: Books) -> ResourceId:
    if name not in books.world.resources:
        raise UnknownSubject(f"there is no resource {name!r}; see `keepstep resources`")
    return ResourceId(name)


_MADE: dict[type, Callable[[Any, Principal, Books, float], tuple[f.Fact, str]]] = {
    r.StopJob: _stop,
    r.BeginDrill: _drill,
    r.Hold: _hold,
    r.Unhold: _unhold,
    r.Decide: _decide,
    r.SetPolicy: _policy,
    r.IssueToken: _token,
    r.RevokeToken: _revoke_token,
    r.EndSession: _end_session,
    r.RevokeCertificate: _revoke_certificate,
    r.NoteCompacted: _note_compacted,
}
