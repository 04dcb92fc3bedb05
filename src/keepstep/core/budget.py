"""Budgets: how often a root cause may be answered with a restart. Charged once per cause and attempt, not per rank."""

from keepstep.core.incident import Cause, Diagnosis
from keepstep.core.job import Job
from keepstep.core.policy import Policy


def spent(job: Job, key: str, policy: Policy, now_s: float) -> int:
    """Restarts charged to a root cause within the window."""
    return sum(1 for failure in job.failures if failure.key == key and now_s - failure.at_s < policy.budget.window_s)


def same_error(job: Job, signature: str, step: int) -> int:
    """How often this very error was seen at this very step."""
    return sum(1 for failure in job.failures if failure.signature == signature and failure.step == step)


def refusal(job: Job, diagnosis: Diagnosis, policy: Policy, now_s: float) -> str:
    """Why no further restart is allowed; empty where one is."""
    if diagnosis.deterministic:
        return (
            f"the same error at the same step {policy.budget.same_error_limit} times: a bug in the program, which a "
            f"restart cannot cure. {diagnosis.summary}. Fix it and run again: the job resumes from its newest valid state."
        )
    limit = policy.budget.per_cause[diagnosis.cause.value]
    used = spent(job, diagnosis.key, policy, now_s)
    if used >= limit:
        hours = policy.budget.window_s / 3600
        return (
            f"{used} restarts for the same cause ({diagnosis.cause.value}) within {hours:g} h, the budget: "
            f"{diagnosis.summary}. Look at its evidence, then run again."
        )
    return ""


assert set(Policy().budget.per_cause) == {cause.value for cause in Cause}, "every cause class has a budget"
