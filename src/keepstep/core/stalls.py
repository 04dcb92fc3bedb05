"""The judge of stalls: which rank the others wait for, from what can be seen from outside. Pure.

The ranks that sit in a collective wait for the one that does not: that one is at fault, not they. A rank that is at work
outside a declared step is given time; a rank in job-control stop is a finding by itself.
"""

from msgspec import Struct

from keepstep.core import facts as f
from keepstep.core.finding import Finding
from keepstep.core.ids import ResourceId, device_resource
from keepstep.core.incident import Cause, Diagnosis, Evidence, Incident, Seen
from keepstep.core.job import Failure, Job
from keepstep.core.policy import Policy

_BUSY_CPU_S = 0.05
"""CPU time during the look from outside (about 0.15 s) above which a rank is at work."""
_FRAMES = 6


class _Blame(Struct, frozen=True, kw_only=True):
    culprits: tuple[int, ...]
    cause: Cause
    confidence: float


def judge(incident: Incident, job: Job, seen: list[Seen], policy: Policy, now_s: float) -> Finding | None:
    """The verdict on the newest stall; None while it is not certain, or where patience is due."""
    stalls = [(s, s.fact) for s in seen if isinstance(s.fact, f.JobStalled)]
    if not stalls:
        return None
    newest, stall = stalls[-1]
    if is_over(incident, newest) or is_busy(incident, stall, policy):
        return None
    if not stall.stopped and _silent(job, policy, now_s):
        return None  # the one they wait for may be the one that nobody hears
    # A stopped rank is a finding by itself: its stack is worth a moment, not a delay.
    wait_s = policy.hang.stack_wait_s if stall.stopped else policy.orders.timeout_s["CollectStacks"]
    if _awaited(incident, job) and now_s - newest.at_s < wait_s:
        return None
    stacks = [x for stacks in incident.attempt.stacks.values() for x in stacks]
    return _finding(job, newest, stacks, _blame(stall, stacks), now_s)


def _silent(job: Job, policy: Policy, now_s: float) -> bool:
    """Whether a node of the job is not heard, and not long enough for a verdict on it."""
    placed = [job.launchers[node] for node in job.placement.nodes] if job.placement else []
    return any(
        not x.reachable and x.silent_since_s is not None and now_s - x.silent_since_s < policy.silence.presume_s
        for x in placed
    )


def _awaited(incident: Incident, job: Job) -> list[str]:
    """Nodes whose look at their ranks is still to come."""
    placed = job.placement.nodes if job.placement else {}
    return [n for n in placed if n not in incident.attempt.stacks and job.launchers[n].reachable]


def is_over(incident: Incident, stalled: Seen) -> bool:
    """Whether a newer step was completed since. Steps of an older generation, which may have come further, do not count."""
    assert isinstance(stalled.fact, f.JobStalled)
    return any(step > stalled.fact.step and at_s >= stalled.at_s for step, at_s in incident.progress)


def is_busy(incident: Incident, stall: f.JobStalled, policy: Policy) -> bool:
    """Whether the ranks that are awaited are at work outside a declared step, so that patience is due."""
    awaited = [x for stacks in incident.attempt.stacks.values() for x in stacks if not x.waiting]
    if not awaited or stall.stopped or stall.phase == "step" or stall.stalled_s >= policy.hang.busy_s:
        return False
    return all(x.cpu_s >= _BUSY_CPU_S for x in awaited)


def _blame(stall: f.JobStalled, stacks: list[f.RankStack]) -> _Blame:
    if stall.stopped:
        return _Blame(culprits=stall.stopped, cause=Cause.HOST_SOFTWARE, confidence=0.9)
    awaited = [x for x in stacks if not x.waiting]
    if len(awaited) == len(stacks):
        return _Blame(culprits=stall.behind, cause=Cause.UNKNOWN, confidence=0.4)
    if not awaited:
        return _Blame(culprits=stall.behind, cause=Cause.NETWORK, confidence=0.4)
    asleep = any(x.process_state == "D" for x in awaited)
    cause = Cause.HOST_HARDWARE if asleep else Cause.APPLICATION
    return _Blame(culprits=tuple(sorted(x.rank for x in awaited)), cause=cause, confidence=0.7)


def _finding(job: Job, seen: Seen, stacks: list[f.RankStack], blame: _Blame, now_s: float) -> Finding:
    stall = seen.fact
    assert isinstance(stall, f.JobStalled)
    who = f"rank {', '.join(map(str, blame.culprits))}" if blame.culprits else "no rank stands out,"
    tops = [x.frames[0] for x in stacks if x.rank in blame.culprits and x.frames]
    where = f" in {tops[0]}" if tops else ""
    what = "in job-control stop" if stall.stopped else "hung"
    device = _device_of(job, blame.culprits)
    key = f"hang:{device or 'job'}"
    diagnosis = Diagnosis(
        cause=blame.cause,
        confidence=blame.confidence,
        summary=f"{who} {what}{where} while the job stands at step {stall.step}",
        culprits=blame.culprits,
        key=key,
        evidence=(_stall_evidence(seen.entry, stall), *(_stack_evidence(seen.entry, x) for x in stacks)),
    )
    signature = f"hang:{tops[0] if tops else stall.phase}"
    return Finding(
        diagnosis=diagnosis,
        failure=Failure(signature=signature, step=stall.step, key=key, resources=(), at_s=now_s),
    )


def _stall_evidence(entry: int, stall: f.JobStalled) -> Evidence:
    text = f"step {stall.step} for {stall.stalled_s:.1f} s, deadline {stall.deadline_s:.1f} s, phase {stall.phase}"
    return Evidence(entry=entry, source="progress", text=text)


def _stack_evidence(entry: int, x: f.RankStack) -> Evidence:
    frames = " < ".join(x.frames[:_FRAMES]) or "no Python stack"
    text = f"state {x.process_state}, {x.cpu_s:.2f} s CPU, {'waits' if x.waiting else 'is awaited'}: {frames}"
    return Evidence(entry=entry, source=f"stack of rank {x.rank}", text=text)


def _device_of(job: Job, culprits: tuple[int, ...]) -> ResourceId | None:
    if not culprits or job.placement is None:
        return None
    for node, ranks in job.placement.nodes.items():
        for place in ranks:
            if place.rank == culprits[0]:
                return device_resource(node, place.slot)
    return None
