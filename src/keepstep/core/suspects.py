"""Who did it: the judges that diagnose.py asks, in order of how sure their evidence makes them. Pure; must not decide acts."""

from keepstep.core import budget, company, silence, stalls
from keepstep.core import facts as f
from keepstep.core.catalog.ends import APPLICATION_ERROR, ERRORS, EXIT_SIGNALS, OTHER_SIGNAL
from keepstep.core.catalog.row import Row
from keepstep.core.fault import Fault
from keepstep.core.finding import Finding
from keepstep.core.ids import NodeId, ResourceId, device_resource
from keepstep.core.incident import Cause, Diagnosis, Evidence, Incident, Seen
from keepstep.core.job import Failure, Job, Launcher
from keepstep.core.policy import Policy
from keepstep.core.world import World

_SETTLE_S = 3.0
"""How long a rank that only says 'my peer went away' waits for the peer's own story, which a busy node may tell late."""
_ORPHANS_SETTLE_S = 1.0
"""The same where some have told that the process that had started them is gone: that is a story already."""


def judge(incident: Incident, world: World, seen: list[Seen], policy: Policy, now_s: float) -> Finding | None:
    """The best supported verdict, or None while the evidence does not carry one."""
    job = world.job_of(incident)
    lost = _lost_nodes(incident, world, seen, policy, now_s)
    if lost:
        return _node_lost(incident, job, lost, seen, now_s)
    return (
        _signal(job, seen, now_s)
        or _rank_failed(job, world, seen, policy, now_s)
        or _launch_failed(incident, job, seen, now_s)
        or stalls.judge(incident, job, seen, policy, now_s)
        or _no_progress(incident, job, policy, now_s)
    )


# ---- nodes


def _lost_nodes(incident: Incident, world: World, seen: list[Seen], policy: Policy, now_s: float) -> dict[NodeId, str]:
    """Node -> why it is lost. Silence counts only with a witness, or with peers that stand still because of it."""
    job = world.job_of(incident)
    if job.placement is None:
        return {}
    known = incident.attempt.diagnosis.lost_nodes if condemned(incident) and incident.attempt.diagnosis else ()
    left = [s.fact.node for s in seen if isinstance(s.fact, f.NodeLeft)]
    peers = any(isinstance(s.fact, f.JobStalled) or _is_victim(s.fact) for s in seen)
    lost = {}
    for node in job.placement.nodes:
        launcher = job.launchers[node]
        if node in known or (not launcher.running and node not in left):
            continue
        if launcher.gone:
            lost[node] = launcher.gone
        elif launcher.replaces is not None:
            lost[node] = "its launcher was replaced by a new one"
        elif launcher.emptied:
            lost[node] = "its launcher fenced itself while it was not heard"
        elif not launcher.reachable and _silent_s(launcher, now_s) >= policy.silence.presume_s:
            means = silence.of_launcher(launcher, world, stands_still=peers)
            if means.lost:
                lost[node] = f"silent for {_silent_s(launcher, now_s):.1f} s; {means.text}"
    return lost


def _silent_s(launcher: Launcher, now_s: float) -> float:
    return now_s - launcher.silent_since_s if launcher.silent_since_s is not None else 0.0


def _is_victim(fact: f.Fact) -> bool:
    return isinstance(fact, f.RankExited) and fact.error is not None and fact.error.victim


def condemned(incident: Incident) -> bool:
    """The present generation is to be replaced anyway: that it stands still, or that nodes fall silent, is no news."""
    return incident.attempt.diagnosis is not None and incident.attempt.new_generation == 0


def is_echo(fact: f.Fact) -> bool:
    """It only says that the job stands still, which is known once it has been diagnosed."""
    return isinstance(fact, f.JobStalled) or _is_victim(fact)


def _node_lost(incident: Incident, job: Job, lost: dict[NodeId, str], seen: list[Seen], now_s: float) -> Finding:
    names = ", ".join(lost)
    certain = all("silent for" not in why for why in lost.values())
    left = all(job.launchers[node].left for node in lost)
    rebooted = any("host_off" in why or "rebooted" in why for why in lost.values())
    cause = Cause.OPERATOR if left else Cause.HOST_HARDWARE if rebooted else Cause.HOST_SOFTWARE
    key = f"node_lost:{names}"
    evidence = [Evidence(entry=s.entry, source="control plane", text=text) for s, text in _about_nodes(lost, seen)]
    evidence += [_victim_evidence(s) for s in seen if _is_victim(s.fact)]
    if not evidence:
        evidence = [Evidence(entry=e, source="control plane", text="seen before") for e in incident.symptoms[-1:]]
    diagnosis = Diagnosis(
        cause=cause,
        confidence=0.95 if certain else 0.75,
        summary=f"node {names} lost: {'; '.join(dict.fromkeys(lost.values()))}",
        lost_nodes=tuple(lost),
        key=key,
        evidence=tuple(evidence),
    )
    failure = Failure(signature=key, step=job.step, key=key, resources=(), at_s=now_s)
    return Finding(diagnosis=diagnosis, failure=failure)


def _about_nodes(lost: dict[NodeId, str], seen: list[Seen]) -> list[tuple[Seen, str]]:
    told = []
    for s in seen:
        match s.fact:
            case f.NodeUnreachable(node=node) if node in lost:
                how = "its connection broke" if s.fact.connection_lost else f"silent for {s.fact.silent_s:.1f} s"
                told.append((s, f"{node}: {how}"))
            case f.Witnessed(node=node) if node in lost:
                told.append((s, f"{node}: {s.fact.witness} says {s.fact.verdict} {s.fact.detail}".rstrip()))
            case f.NodeLeft(node=node) | f.NodeJoined(node=node) if node in lost:
                told.append((s, f"{node}: {type(s.fact).__name__}"))
            case _:
                pass
    return told


def _victim_evidence(seen: Seen) -> Evidence:
    assert isinstance(seen.fact, f.RankExited) and seen.fact.error is not None
    return Evidence(
        entry=seen.entry, source=f"rank {seen.fact.rank}", text=f"lost its peer: {seen.fact.error.message[:200]}"
    )


# ---- hardware signals


def _signal(job: Job, seen: list[Seen], now_s: float) -> Finding | None:
    hits = [(s, s.fact, s.judged) for s in seen if isinstance(s.fact, f.SignalSeen) and s.judged is not None]
    if not hits:
        return None
    _, first, judged = max(hits, key=lambda hit: hit[2].confidence)
    resources = tuple(dict.fromkeys(verdict.resource for _, _, verdict in hits if verdict.isolate))
    evidence = [
        Evidence(entry=s.entry, source=x.source or "signal", text=f"{verdict.resource}: {x.signal} {x.detail}".rstrip())
        for s, x, verdict in hits
    ]
    evidence += [
        Evidence(entry=s.entry, source=f"rank {s.fact.rank}", text=_end_text(s.fact))
        for s in seen
        if isinstance(s.fact, f.RankExited)
    ]
    key = f"{judged.cause.value}:{judged.resource}"
    diagnosis = Diagnosis(
        cause=judged.cause,
        confidence=judged.confidence,
        summary=f"{judged.resource}: {judged.text}",
        resources=resources,
        key=key,
        fault=judged.fault,
        evidence=tuple(evidence),
    )
    failure = Failure(signature=first.signal, step=job.step, key=key, resources=resources, at_s=now_s)
    return Finding(diagnosis=diagnosis, failure=failure)


# ---- ranks


def _rank_failed(job: Job, world: World, seen: list[Seen], policy: Policy, now_s: float) -> Finding | None:
    ends = [(s, s.fact) for s in seen if isinstance(s.fact, f.RankExited)]
    if not ends:
        return None
    culprits = [(s, fact) for s, fact in ends if not _is_victim(fact)]
    if not culprits:
        unknown = any(not launcher.reachable for launcher in job.launchers.values() if launcher.running)
        orphans = any(fact.error is not None and fact.error.kind == f.STARTER_LOST for _, fact in ends)
        wait_s = policy.silence.presume_s if unknown else _ORPHANS_SETTLE_S if orphans else _SETTLE_S
        return None if now_s - ends[0][0].at_s < wait_s else _only_victims(job, ends, now_s)
    first, fact = culprits[0]
    outage = company.outage(fact, world, now_s)
    if outage is not None:
        return _outage(ends, fact, outage, now_s)
    row = _row_of(fact)
    device = device_resource(fact.node, fact.slot)
    around = company.signals_around(device, world, policy, first.at_s)
    signature = fact.error.signature if fact.error is not None else f"signal:{fact.signal}:{fact.exit_code}"
    own_fault = row.cause in (Cause.APPLICATION, Cause.UNKNOWN)
    repeated = budget.same_error(job, signature, fact.step) + 1 >= policy.budget.same_error_limit
    suspected = row.cause is Cause.DEVICE or (row.cause is Cause.UNKNOWN and not repeated)
    isolate = suspected and _failures_of(job, device, policy, now_s) + 1 >= policy.device.max_failures
    key = f"{row.cause.value}:{signature}" if own_fault else f"{row.cause.value}:{device}"
    if fact.error is not None and fact.error.kind == "StateInvalid":
        key = f"checkpoint:{job.restored.key if job.restored else 'none'}"
    diagnosis = Diagnosis(
        cause=Cause.APPLICATION if own_fault and repeated else row.cause,
        confidence=0.95 if own_fault and repeated else row.confidence,
        summary=f"rank {fact.rank} on {fact.node}, slot {fact.slot}: {_end_text(fact)} ({row.text})",
        resources=(device,) if isolate else (),
        culprits=tuple(dict.fromkeys(x.rank for _, x in culprits)),
        key=key,
        evidence=(*_end_evidence(ends, fact, job, device, isolate), *around),
        deterministic=own_fault and repeated,
    )
    failure = Failure(
        signature=signature, step=fact.step, key=key, resources=(device,) if suspected else (), at_s=now_s
    )
    code = fact.exit_code or (128 + fact.signal if fact.signal else 1)
    return Finding(diagnosis=diagnosis, failure=failure, suspected=(device,) if suspected else (), exit_code=code)


def _outage(ends: list[tuple[Seen, f.RankExited]], fact: f.RankExited, outage: Fault, now_s: float) -> Finding:
    """It failed because of something outside that does not answer: no node and no program is blamed."""
    key = f"dependency:{outage.part}"
    diagnosis = Diagnosis(
        cause=Cause.DEPENDENCY,
        confidence=0.8,
        summary=f"{outage.resource} does not answer; rank {fact.rank} on {fact.node}: {_end_text(fact)}",
        culprits=(),
        key=key,
        fault=outage.id,
        evidence=tuple(Evidence(entry=s.entry, source=f"rank {x.rank}", text=_end_text(x)) for s, x in ends),
    )
    failure = Failure(signature=key, step=fact.step, key=key, resources=(), at_s=now_s)
    return Finding(diagnosis=diagnosis, failure=failure, exit_code=fact.exit_code or 1)


def _failures_of(job: Job, device: ResourceId, policy: Policy, now_s: float) -> int:
    window_s = policy.device.window_s
    return sum(1 for x in job.failures if device in x.resources and now_s - x.at_s < window_s)


def _row_of(fact: f.RankExited) -> Row:
    if fact.error is not None:
        return ERRORS.get(fact.error.kind, APPLICATION_ERROR)
    if fact.signal is not None:
        return EXIT_SIGNALS.get(fact.signal, OTHER_SIGNAL)
    return APPLICATION_ERROR


def _end_text(fact: f.RankExited) -> str:
    if fact.error is not None:
        return f"{fact.error.kind}: {fact.error.message[:300]}"
    if fact.signal is not None:
        return f"ended by signal {fact.signal} at step {fact.step}"
    return f"exit code {fact.exit_code} at step {fact.step}"


def _end_evidence(
    ends: list[tuple[Seen, f.RankExited]], culprit: f.RankExited, job: Job, device: ResourceId, isolate: bool
) -> list[Evidence]:
    told = []
    for s, fact in ends:
        text = _end_text(fact)
        if _is_victim(fact) and not _is_victim(culprit):
            text = f"only lost its peer: {text}"
        told.append(Evidence(entry=s.entry, source=f"rank {fact.rank}", text=text))
    before = [x for x in job.failures if device in x.resources]
    if isolate:
        told.append(
            Evidence(entry=ends[0][0].entry, source="history", text=f"{device} failed {len(before)} times before")
        )
    elif not before:
        told.append(
            Evidence(
                entry=ends[0][0].entry, source="history", text=f"nothing was held against {device}", supports=False
            )
        )
    return told


def _only_victims(job: Job, ends: list[tuple[Seen, f.RankExited]], now_s: float) -> Finding:
    orphans = [fact for _, fact in ends if fact.error is not None and fact.error.kind == f.STARTER_LOST]
    nodes = ", ".join(dict.fromkeys(fact.node for fact in orphans))
    ranks = ", ".join(str(fact.rank) for fact in orphans or [fact for _, fact in ends])
    if orphans:
        cause, confidence, key = Cause.HOST_SOFTWARE, 0.9, f"starter:{nodes}"
        summary = f"ranks {ranks} ended with the process that had started them on {nodes}"
    else:
        cause, confidence, key = Cause.NETWORK, 0.4, "network:peers"
        summary = f"ranks {ranks} lost their peers; no peer is known to have failed"
    diagnosis = Diagnosis(
        cause=cause,
        confidence=confidence,
        summary=summary,
        key=key,
        evidence=tuple(_victim_evidence(s) for s, _ in ends),
    )
    return Finding(
        diagnosis=diagnosis,
        failure=Failure(signature=key, step=job.step, key=key, resources=(), at_s=now_s),
    )


# ---- launches


def _launch_failed(incident: Incident, job: Job, seen: list[Seen], now_s: float) -> Finding | None:
    failed = [s for s in seen if isinstance(s.fact, f.Answered)]
    if not failed:
        return None
    nodes = [incident.attempt.failed_launches[s.entry] for s in failed if s.entry in incident.attempt.failed_launches]
    reasons = [_reason(s.fact) for s in failed]
    key = f"launch:{','.join(nodes)}"
    diagnosis = Diagnosis(
        cause=Cause.HOST_SOFTWARE,
        confidence=0.6,
        summary=f"launch failed on {', '.join(nodes)}: {reasons[0] if reasons else 'no reason given'}",
        key=key,
        evidence=tuple(
            Evidence(entry=s.entry, source="launcher", text=r) for s, r in zip(failed, reasons, strict=False)
        ),
    )
    failure = Failure(signature=key, step=job.step, key=key, resources=(), at_s=now_s)
    return Finding(diagnosis=diagnosis, failure=failure)


def _reason(fact: f.Fact) -> str:
    return fact.outcome.reason if isinstance(fact, f.Answered) and isinstance(fact.outcome, f.Failed) else ""


def _no_progress(incident: Incident, job: Job, policy: Policy, now_s: float) -> Finding | None:
    """The verification gave up: verify.py moved the incident back here without a symptom of its own."""
    if not incident.setback:
        return None
    key = "no_progress"
    diagnosis = Diagnosis(cause=Cause.UNKNOWN, confidence=0.3, summary=incident.setback, key=key)
    failure = Failure(signature=key, step=job.step, key=key, resources=(), at_s=now_s)
    return Finding(diagnosis=diagnosis, failure=failure)
