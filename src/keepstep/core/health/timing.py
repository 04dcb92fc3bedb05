"""When to take work off a risky node: the expected cost of each moment, and which node first. Pure; it only recommends.

All costs are GPU-hours of the job. Waiting risks an unplanned failure (detection, lost work since the last save, restart);
moving costs a restart for certain, and now also the work since the last save. Leaving a node costs nothing at the job's end or
in a maintenance window, when the job stands anyway. After the move the job goes on with an ordinary node, which can fail as
well: that is counted, so that waiting for one more checkpoint is not made to look worse than it is.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from keepstep.core.health.forecast import Forecast, expected_failures, failing_by
from keepstep.core.incident import Urgency

HOUR_S = 3600.0
MAINTENANCE = "maintenance"
NOW = Urgency.NOW.value
NEXT_CHECKPOINT = Urgency.NEXT_CHECKPOINT.value
JOB_END = Urgency.JOB_END.value
GENTLEST = (JOB_END, MAINTENANCE, NEXT_CHECKPOINT, NOW)
"""Of two moments that cost about the same, the one named first: a forecast can be wrong, an interruption is certain."""


class Situation(Struct, frozen=True, kw_only=True):
    """The job on the node, and what moving it would take. Durations from now, in seconds."""

    gpus: int
    """Of the whole job: all of them wait."""
    job_remaining_s: float
    checkpoint_age_s: float
    """Work at risk: since the newest state that can be restored."""
    checkpoint_interval_s: float
    next_checkpoint_s: float
    step_s: float = 0.0
    """A planned move waits for the end of the step that runs."""
    save_s: float | None = None
    """What an extra save right now costs the job; None where it cannot be asked for."""
    detect_s: float = 30.0
    """From an unplanned failure to its diagnosis."""
    restart_s: float = 300.0
    spares: int = 1
    spare_wait_s: float = 4 * HOUR_S
    """How long it takes until a node is free, where there is no spare."""
    preemption_gpu_h: float = 0.0
    """What a planned interruption costs beside the time: a budget, goodwill, a queue."""
    maintenance_in_s: float | None = None
    """The next window in which the job stands anyway."""
    replaced: Forecast
    """Of an ordinary node that would take its place."""


class Policy(Struct, frozen=True, kw_only=True):
    worth_share: float = 0.1
    """An earlier interruption must save this share of what the gentler moment costs …"""
    worth_gpu_h: float = 1.0
    """… and at least this much."""


class Recommendation(Struct, frozen=True, kw_only=True):
    when: str
    """``now``, ``next_checkpoint``, ``job_end`` or ``maintenance``."""
    costs_gpu_h: Mapping[str, float]
    """Expected cost of each possible moment until the job ends."""
    saves_gpu_h: float
    """Against leaving the node in the job until its end."""
    move_gpu_h: float
    """Of that moment: what is paid for certain if the node holds until then."""
    p_before: float
    """Probability that the node fails before that moment."""
    reason: str


class Candidate(Struct, frozen=True, kw_only=True):
    node: str
    advice: Recommendation


def recommend(of: Forecast, at: Situation, policy: Policy | None = None) -> Recommendation:
    """The cheapest moment, unless a gentler one costs about the same."""
    limits = policy or Policy()
    moments = _moments(at)
    costs = {name: _cost(of, at, wait_s, move_gpu_h) for name, (wait_s, move_gpu_h) in moments.items()}
    best = GENTLEST[0]
    for name in GENTLEST[1:]:
        if name in costs and _worth(costs[best] - costs[name], costs[best], limits):
            best = name
    wait_s, move_gpu_h = moments[best]
    p_before = failing_by(of, wait_s / HOUR_S)
    return Recommendation(
        when=best,
        costs_gpu_h=costs,
        saves_gpu_h=max(0.0, costs[JOB_END] - costs[best]),
        move_gpu_h=move_gpu_h,
        p_before=p_before,
        reason=_reason(best, costs, p_before, at),
    )


def failing_gpu_h(of: Forecast, at: Situation, wait_s: float) -> float:
    """What a failure within so long costs, times its probability. One before the next checkpoint loses what is at risk already;
    a later one loses half an interval on average."""
    first_s = min(wait_s, at.next_checkpoint_s)
    p_first, p_all = failing_by(of, first_s / HOUR_S), failing_by(of, wait_s / HOUR_S)
    again_s = at.detect_s + _start_s(at)
    early_s = again_s + at.checkpoint_age_s + first_s / 2
    later_s = again_s + at.checkpoint_interval_s / 2
    return at.gpus * (p_first * early_s + (p_all - p_first) * later_s) / HOUR_S


def ordered(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Who should move first: least paid per GPU-hour saved, then most saved. Those that save nothing are left out."""
    worth = [one for one in candidates if one.advice.when != JOB_END and one.advice.saves_gpu_h > 0]
    return sorted(worth, key=lambda one: (marginal_cost(one.advice), -one.advice.saves_gpu_h, one.node))


def marginal_cost(advice: Recommendation) -> float:
    """GPU-hours paid for certain per GPU-hour that is saved on average beyond them; infinite where none is."""
    return advice.move_gpu_h / advice.saves_gpu_h if advice.saves_gpu_h > 0 else float("inf")


def _moments(at: Situation) -> dict[str, tuple[float, float]]:
    """Moment → (how long until then, what leaving costs then). What comes after the job's end is not a moment of this job."""
    end_s = max(0.0, at.job_remaining_s)
    unsaved_s = at.checkpoint_age_s if at.save_s is None else min(at.checkpoint_age_s, at.save_s)
    move_s = _start_s(at) + at.step_s / 2
    moments = {JOB_END: (end_s, 0.0)}
    if at.maintenance_in_s is not None and at.maintenance_in_s < end_s:
        moments[MAINTENANCE] = (max(0.0, at.maintenance_in_s), 0.0)
    if at.next_checkpoint_s < end_s:
        moments[NEXT_CHECKPOINT] = (at.next_checkpoint_s, at.gpus * move_s / HOUR_S + at.preemption_gpu_h)
    if end_s > 0:
        moments[NOW] = (0.0, at.gpus * (move_s + unsaved_s) / HOUR_S + at.preemption_gpu_h)
    return moments


def _start_s(at: Situation) -> float:
    return at.restart_s + (0.0 if at.spares > 0 else at.spare_wait_s)


def _cost(of: Forecast, at: Situation, wait_s: float, move_gpu_h: float) -> float:
    """Fail before the moment and pay the failure, or hold and pay the move; from then on an ordinary node is in the job."""
    end_h, wait_h = max(0.0, at.job_remaining_s) / HOUR_S, wait_s / HOUR_S
    p_fails = failing_by(of, wait_h)
    later_gpu_h = at.gpus * (at.detect_s + _start_s(at) + at.checkpoint_interval_s / 2) / HOUR_S
    usual = at.replaced.rates_per_h
    after = expected_failures(usual, end_h) - expected_failures(usual, wait_h)
    return failing_gpu_h(of, at, wait_s) + (1 - p_fails) * move_gpu_h + after * later_gpu_h


def _worth(saved: float, cost: float, limits: Policy) -> bool:
    return saved >= limits.worth_gpu_h and saved >= limits.worth_share * cost


def _reason(best: str, costs: Mapping[str, float], p_before: float, at: Situation) -> str:
    told = ", ".join(f"{name.replace('_', ' ')} {cost:.1f}" for name, cost in costs.items())
    spare = "" if at.spares > 0 else f"; no spare is free, a node takes {at.spare_wait_s / HOUR_S:.1f} h"
    if best == NOW:
        why = "waiting costs more than the work since the last save"
    else:
        why = f"it fails before then with a probability of {100 * p_before:.2g} %"
    return f"{best.replace('_', ' ')}: {why}; expected GPU-hours: {told}{spare}"
