"""How old the newest VERIFIED checkpoint is, against what was planned. Owns the verdict; no clock, no I/O.

Only a verified checkpoint counts: a save that failed is none, and one that is committed but was not read back may be none.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

LATE_TIMES = 1.5
"""Late from this many target ages on: a save was missed, or took far too long."""
ALARM_TIMES = 3.0

Outcome = Literal["verified", "committed", "running", "failed", "corrupt"]
Level = Literal["ok", "late", "alarm"]


class Attempt(Struct, frozen=True, kw_only=True):
    """A save, as far as it is known."""

    step: int
    taken_s: float
    """When its snapshot was taken: what it holds is of this time."""
    outcome: Outcome
    reason: str = ""
    """Why it failed or is corrupt."""


class Age(Struct, frozen=True, kw_only=True):
    """The verdict."""

    level: Level
    age_s: float
    """Work that a failure now would lose, as wall time."""
    target_s: float
    step: int | None
    """Of the newest verified checkpoint."""
    reasons: tuple[str, ...]


def target_age_s(interval_s: float, verified_after_s: float) -> float:
    """The oldest that the newest verified checkpoint gets while all goes as planned: just before the next one is verified."""
    return interval_s + verified_after_s


def judge(attempts: Sequence[Attempt], target_s: float, now_s: float, *, started_s: float, step: int) -> Age:
    """Judge one tier of one job.

    attempts: of this tier, in any order. started_s: when training began, or resumed from elsewhere; age counts from there
    while nothing is verified. step: where the job is; a job that stands still at its verified step has nothing to lose.
    """
    if target_s <= 0:
        raise ValueError(f"a target age of {target_s} s: it must be above 0")
    best = max((a for a in attempts if a.outcome == "verified"), key=lambda a: (a.step, a.taken_s), default=None)
    if best is not None and step <= best.step:
        reason = f"step {best.step} is verified, and no step was made since"
        return Age(level="ok", age_s=0.0, target_s=target_s, step=best.step, reasons=(reason,))
    age_s = max(0.0, now_s - (started_s if best is None else best.taken_s))
    level: Level = "alarm" if age_s > ALARM_TIMES * target_s else "late" if age_s > LATE_TIMES * target_s else "ok"
    since = [a for a in attempts if best is None or (a.step, a.taken_s) > (best.step, best.taken_s)]
    reasons = [_headline(best, age_s, target_s), *_since(since)]
    if level != "ok" and not since:
        reasons.append("no save was tried since: the loop does not reach its saves, or they are switched off")
    return Age(
        level=level, age_s=age_s, target_s=target_s, step=None if best is None else best.step, reasons=tuple(reasons)
    )


def _headline(best: Attempt | None, age_s: float, target_s: float) -> str:
    if best is None:
        return f"nothing is verified after {age_s:.0f} s; the target is {target_s:.0f} s"
    return f"step {best.step} is the newest verified, {age_s:.0f} s old; the target is {target_s:.0f} s"


def _since(attempts: Sequence[Attempt]) -> list[str]:
    """What became of the saves after the newest verified one."""
    told = []
    ordered = sorted(attempts, key=lambda a: (a.taken_s, a.step))
    for outcome, words in (
        ("failed", "failed"),
        ("corrupt", "did not verify"),
        ("committed", "not verified yet"),
        ("running", "still being written"),
    ):
        of_it = [a for a in ordered if a.outcome == outcome]
        if of_it:
            last = of_it[-1]
            steps = f"step {last.step}" if len(of_it) == 1 else f"{len(of_it)} saves, the last of step {last.step}"
            told.append(f"{steps}: {words}" + (f" ({last.reason})" if last.reason else ""))
    return told
