"""Stage 1, detect: turns vitals and the passing of time into facts. Must not decide what they mean.

Silence, stalls, progress and late answers are derived here, journalled like any other fact, and never before their deadline.
"""

from collections.abc import Iterator

from keepstep.core.facts import (
    AgentHeard,
    AgentSilent,
    Fact,
    JobStalled,
    NodeReachable,
    NodeUnreachable,
    Overdue,
    RankExited,
    StepsAdvanced,
    StepsSlower,
    Witnessed,
)
from keepstep.core.ids import JobId
from keepstep.core.incident import IncidentState
from keepstep.core.job import Job, JobState
from keepstep.core.policy import Hang, Policy
from keepstep.core.stragglers import LIMITS, Limits, slowdown, stragglers
from keepstep.core.vitals import AgentVitals, JobVitals, NodeVitals, RankSample, Vitals, common_step, mean_loss
from keepstep.core.world import World, live

COMPARE_S = 30.0
"""Between two comparisons of step times: they are no matter of seconds, and cost something."""
LOOK_S_PER_RANK = 1e-5
"""Between two looks for a stall in a job of more than ``MANY_RANKS``, for each of its ranks: a look costs in proportion to
them, and no deadline is so short."""
MANY_RANKS = 1024
WHOLE_JOB = Limits(ratio=1.2, min_steps=20)
"""A job on its own has no peers that share its load: only a rise that is plain counts."""

_DECLARED_LONG = ("checkpoint", "evaluate", "restore")


def detect(vitals: Vitals, world: World, policy: Policy, now_s: float) -> list[Fact]:
    """Everything that became due. Pure but for marks in ``vitals`` that keep a fact from being said twice."""
    found: list[Fact] = []
    for node in vitals.launchers.due(policy.silence.lease_s, now_s):
        found.extend(_silence(node, policy, now_s))
    for agent in vitals.witnesses.due(policy.silence.agent_lease_s, now_s):
        found.extend(_agent_silence(agent, policy, now_s))
    found.extend(_powered_off(world))
    for job_id in list(world.live_jobs):
        job, job_vitals = world.jobs[job_id], vitals.jobs.get(job_id)
        if job_vitals is None or job_vitals.generation != job.generation or job.placement is None:
            continue
        found.extend(_progress(job, job_vitals, world))
        size = len(job_vitals.ranks)
        if size <= MANY_RANKS or now_s - job_vitals.looked_s >= LOOK_S_PER_RANK * size:
            job_vitals.looked_s = now_s
            found.extend(_stall(job, job_vitals, policy, now_s))
            found.extend(_slower(job, job_vitals, now_s))
    found.extend(overdue(world, policy, now_s))
    return found


def before(fact: Fact, vitals: Vitals, world: World) -> StepsAdvanced | None:
    """The progress to journal ahead of a symptom, so that the incident knows what the job had reached."""
    if not isinstance(fact, RankExited | NodeUnreachable | JobStalled):
        return None
    job, job_vitals = world.jobs.get(fact.job), vitals.jobs.get(fact.job)
    if job is None or not live(job) or job_vitals is None or job_vitals.generation != job.generation:
        return None
    return _advanced(job, job_vitals) if job.state is JobState.RUNNING else None


def _advanced(job: Job, vitals: JobVitals) -> StepsAdvanced | None:
    size = job.placement.world_size if job.placement else 0
    step = common_step(vitals, size)
    if step <= max(vitals.reported_step, -1) or step < 0:
        return None
    vitals.reported_step = step
    times = sorted(vitals.step_times_s)
    median = times[len(times) // 2] if times else None
    return StepsAdvanced(
        job=job.id, generation=job.generation, step=step, ranks=size, loss=mean_loss(vitals), step_time_s=median
    )


def _progress(job: Job, vitals: JobVitals, world: World) -> Iterator[Fact]:
    """Progress is a fact only while somebody waits for it: an incident that verifies, or one that suspects a stall."""
    leading = world.leading(job)
    if leading is not None and leading.state in (IncidentState.OPEN, IncidentState.RESTARTING, IncidentState.VERIFYING):
        advanced = _advanced(job, vitals)
        if advanced is not None:
            yield advanced


def _silence(node: NodeVitals, policy: Policy, now_s: float) -> Iterator[Fact]:
    limit_s = policy.silence.lease_s if node.connected else policy.silence.lost_connection_s
    silent_s = now_s - node.heard_s
    if silent_s >= limit_s and not node.reported_silent:
        node.reported_silent = True
        yield NodeUnreachable(
            job=node.job,
            node=node.node,
            session=node.session,
            silent_s=silent_s,
            connection_lost=not node.connected,
        )
    elif silent_s < limit_s and node.reported_silent:
        node.reported_silent = False
        yield NodeReachable(job=node.job, node=node.node, session=node.session)


def _agent_silence(agent: AgentVitals, policy: Policy, now_s: float) -> Iterator[Fact]:
    silent_s = now_s - agent.heard_s
    if silent_s >= policy.silence.agent_lease_s and not agent.reported_silent:
        agent.reported_silent = True
        yield AgentSilent(node=agent.node, session=agent.session, silent_s=silent_s)
    elif silent_s < policy.silence.agent_lease_s and agent.reported_silent:
        agent.reported_silent = False
        yield AgentHeard(node=agent.node, session=agent.session)


def _slower(job: Job, vitals: JobVitals, now_s: float) -> Iterator[Fact]:
    """Step times against those of the other ranks and against the job's own past; said when the answer changes."""
    if now_s - vitals.compared_s < COMPARE_S or job.state is not JobState.RUNNING or not vitals.rank_steps_s:
        return
    vitals.compared_s = now_s
    times = {rank: list(recent) for rank, recent in vitals.rank_steps_s.items()}
    slow = stragglers(times)
    first = times[min(times)]
    whole = None if slow else slowdown(first[LIMITS.warm_up :], WHOLE_JOB)
    ranks = tuple(one.rank for one in slow) if slow or whole else None
    if ranks is None or ranks == vitals.reported_slower:
        vitals.reported_slower = ranks
        return
    vitals.reported_slower = ranks
    yield StepsSlower(
        job=job.id,
        generation=vitals.generation,
        ranks=ranks,
        ratio=max((one.ratio for one in slow), default=whole.ratio if whole else 1.0),
        against=slow[0].against if slow else "self",
        step=max(sample.step for sample in vitals.ranks.values()),
    )


def _powered_off(world: World) -> Iterator[Fact]:
    """A silent launcher whose node's BMC said Off since it fell silent: the second witness, and a proof."""
    for node in world.powered_off:
        bmc = world.bmcs[node]
        for job in (world.jobs[x] for x in world.live_jobs if node in world.jobs[x].launchers):
            launcher = job.launchers[node]
            if launcher.reachable or launcher.gone or launcher.left or launcher.silent_since_s is None:
                continue
            if bmc.at_s >= launcher.silent_since_s:
                yield Witnessed(
                    job=job.id,
                    node=node,
                    session=launcher.session,
                    witness="bmc",
                    verdict="host_off",
                    detail="power off",
                )


def _stall(job: Job, vitals: JobVitals, policy: Policy, now_s: float) -> Iterator[Fact]:
    running = {r: s for r, s in vitals.ranks.items() if r not in job.ended}
    if not running or any(sample.state == "t" for sample in running.values()):
        return  # nobody runs, or a debugger holds one of them
    stopped = [s for s in running.values() if s.state == "T"]
    if not stopped or len(stopped) == len(running):
        vitals.apart_since_s = None
    elif vitals.apart_since_s is None:
        vitals.apart_since_s = now_s
    if len(stopped) == len(running):
        vitals.whole_stop_s = now_s
        return  # all of it was stopped: a suspended laptop, a scheduler's suspend
    step = min(sample.step for sample in running.values())
    if vitals.reported_stall_step == step:
        return
    # When all of it goes on again, beats of before and after arrive side by side: being apart has to last as well.
    apart = vitals.apart_since_s is not None and now_s - vitals.apart_since_s >= policy.hang.stop_grace_s / 2
    stuck = [s for s in stopped if apart and s.idle_s >= policy.hang.stop_grace_s]
    if stuck:
        idle_s, deadline_s = stuck[0].idle_s, policy.hang.stop_grace_s
        phase = stuck[0].phase
    else:
        idle_s = min(now_s - vitals.whole_stop_s, *(sample.idle_s for sample in running.values()))
        phase = _behind_phase(running)
        deadline_s = deadline(vitals, phase, policy.hang)
        if idle_s < deadline_s:
            return
    vitals.reported_stall_step = step
    yield JobStalled(
        job=job.id,
        generation=job.generation,
        phase=phase,
        step=step,
        stalled_s=idle_s,
        deadline_s=deadline_s,
        stopped=tuple(sorted(s.rank for s in stuck)),
        behind=tuple(_behind(running)),
    )


def _behind(running: dict[int, RankSample]) -> list[int]:
    """Ranks whose step is lower than that of the others; none if all are equal."""
    newest = max(sample.step for sample in running.values())
    return sorted(rank for rank, sample in running.items() if sample.step < newest)


def _behind_phase(running: dict[int, RankSample]) -> str:
    """The phase whose deadline counts: the longest-lived declared one among the ranks, since others may wait for it."""
    for phase in _DECLARED_LONG:
        if any(sample.phase == phase for sample in running.values()):
            return phase
    return min(running.values(), key=lambda sample: sample.step).phase


def deadline(vitals: JobVitals, phase: str, hang: Hang) -> float:
    """How long a phase of this job may stand still, in seconds, from what was learned."""
    if phase == "step":
        times = sorted(vitals.step_times_s)
        if len(times) < hang.learn_steps:
            return hang.first_s * vitals.excuse
        median = times[len(times) // 2]
        learned = max(hang.step_median_factor * median, hang.step_max_factor * times[-1])
        return max(hang.step_floor_s, learned) * vitals.excuse
    longest = vitals.phase_max_s.get(phase)
    if longest is None:
        return hang.first_s * vitals.excuse
    return max(hang.phase_floor_s, hang.phase_factor * longest) * vitals.excuse


def overdue(world: World, policy: Policy, now_s: float) -> Iterator[Overdue]:
    """Orders whose answer is late, each said once."""
    for kind, queue in world.order_queue.items():
        timeout_s = policy.orders.timeout_s[kind]
        while queue and (queue[0][1] not in world.orders or now_s - queue[0][0] >= timeout_s):
            decided_s, number = queue.popleft()
            if number in world.orders:
                yield Overdue(intent=number, waited_s=now_s - decided_s)


def excuse(vitals: Vitals, job: JobId, hang: Hang) -> None:
    """A stall turned out to be no fault: be slower to suspect this job."""
    known = vitals.jobs.get(job)
    if known is not None:
        known.excuse *= hang.excuse_factor
        known.reported_stall_step = None
