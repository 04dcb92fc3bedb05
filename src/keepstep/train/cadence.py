"""When to snapshot and when to checkpoint. Owns the intervals; must not save anything itself.

The interval of checkpoints is chosen from what a save costs the loop, how long it takes to be durable, and how often the
failures come that only the disk survives; and it is chosen anew as the run goes on.

Every rank must save at the same steps, or no step is ever complete. The intervals are therefore counted in steps, and
where ranks could measure differently they are agreed on (see `agreement`).
"""

import math
import time
from collections import deque

from keepstep.checkpoint.interval.estimate import Scope, believe
from keepstep.checkpoint.interval.optimal import Risk, Save, best_interval_s

FIRST_CHECKPOINT_S = 30.0
"""Before anything was measured."""
LEAST_S, MOST_S = 10.0, 3600.0
CHEAP_COST = 0.005
"""A save that costs so little of the run time is taken oftener than failures alone would ask for: people interrupt runs too."""
WRITE_SHARE = 0.1
"""Share of the time that the store may be busy with one job's checkpoints."""
RESTART_S = 60.0
FULL_COST = 0.02
"""Share of the step time that a snapshot of *every* step may cost: losing at most one step is worth that much."""
THINNED_COST = 0.01
"""Share of the step time that snapshots cost where every step would be too dear."""
SLOW_SAVE_COST = 0.05
"""Share of the run time that synchronous saves may take, where they block the loop (outside a launcher)."""
_WINDOW = 32
_AGREE_UNTIL = 1024


class Cadence:
    """Intervals of one rank in one generation."""

    def __init__(
        self,
        *,
        checkpoint_s: float | None,
        checkpoint_steps: int | None,
        snapshot_steps: int | None,
        alone: bool,
        nodes: int = 1,
        in_memory: bool = False,
    ) -> None:
        """
        checkpoint_s, checkpoint_steps: as declared; with neither, the interval is chosen.
        snapshot_steps: fixed interval, or None for the measured one.
        alone: no other rank has to save at the same steps, so that the clock can decide.
        nodes: on how many machines the job runs.
        in_memory: snapshots outlive a rank, so that checkpoints are for the failures of machines alone.
        """
        self._chosen = checkpoint_s is None and checkpoint_steps is None
        self._checkpoint_s = FIRST_CHECKPOINT_S if self._chosen else checkpoint_s
        scopes: tuple[Scope, ...] = ("node", "power", "site") if in_memory else ("process", "node", "power", "site")
        self._failures_per_s = sum(believe(scope, nodes).rate_per_s for scope in scopes)
        self._written_s = 0.0
        self._declared_steps, self._declared_snapshot = checkpoint_steps, snapshot_steps
        self._alone = alone
        self.snapshot_every = snapshot_steps or 1
        self.checkpoint_every: int | None = None
        """Steps between durable checkpoints by time; None until the first agreement."""
        self._costs_s: deque[float] = deque(maxlen=_WINDOW)
        self._save_s = 0.0
        self._last_checkpoint_s = self._since_s = time.monotonic()
        self._steps = self._steps_since = 0

    def snapshot_due(self, step: int) -> bool:
        return step % self.snapshot_every == 0

    def checkpoint_due(self, step: int) -> bool:
        if self._declared_steps and step % self._declared_steps == 0:
            return True
        if self._checkpoint_s is None:
            return False
        if self._alone:
            return time.monotonic() - self._last_checkpoint_s >= self._interval_s()
        return self.checkpoint_every is not None and step % self.checkpoint_every == 0

    def step_done(self) -> None:
        self._steps += 1
        self._steps_since += 1

    def snapshot_cost(self, cost_s: float) -> None:
        self._costs_s.append(cost_s)

    def checkpoint_taken(self, blocked_s: float) -> None:
        """``blocked_s``: how long the loop stood still for it."""
        self._last_checkpoint_s, self._save_s = time.monotonic(), blocked_s

    def checkpoint_written(self, duration_s: float) -> None:
        """``duration_s``: how long a checkpoint took until it was durable; 0: not known."""
        if duration_s > 0:
            self._written_s = duration_s
        if self._chosen and self._written_s:
            self._checkpoint_s = self._choose()

    def _interval_s(self) -> float:
        return max(self._checkpoint_s or FIRST_CHECKPOINT_S, self._save_s / SLOW_SAVE_COST)

    def _choose(self) -> float:
        stall_s = self._save_s or self._snapshot_s()
        save = Save(stall_s=min(stall_s, self._written_s), durable_s=self._written_s)
        risk = Risk(rate_per_s=self._failures_per_s, restart_s=RESTART_S)
        least_s = max(LEAST_S, self._written_s / WRITE_SHARE)
        best_s = best_interval_s(save, risk, least_s=least_s, most_s=max(MOST_S, least_s))
        return max(least_s, min(best_s, save.stall_s / CHEAP_COST))

    def _snapshot_s(self) -> float:
        """The lower quartile: a rank that was descheduled in the middle did not pay for the snapshot."""
        return sorted(self._costs_s)[len(self._costs_s) // 4] if self._costs_s else 0.0

    def review_due(self) -> bool:
        """At the first step and at doubling distances, then regularly: equal on all ranks, whatever they measure."""
        return self._steps % _AGREE_UNTIL == 0 or (self._steps < _AGREE_UNTIL and self._steps.bit_count() == 1)

    def proposal(self) -> tuple[int, int]:
        """(snapshot interval, checkpoint interval) in steps, as this rank would have them by what it measured."""
        now_s = time.monotonic()
        step_s = max((now_s - self._since_s) / max(self._steps_since, 1), 1e-9)
        self._since_s, self._steps_since = now_s, 0
        # A power of two: ranks that cannot talk to each other still land on common steps.
        checkpoint = 1 << max(0, round(math.log2(self._interval_s() / step_s)))
        return self._snapshot_interval(step_s), checkpoint

    def adopt(self, snapshot_every: int, checkpoint_every: int) -> None:
        self.snapshot_every, self.checkpoint_every = snapshot_every, checkpoint_every

    def _snapshot_interval(self, step_s: float) -> int:
        if self._declared_snapshot or not self._costs_s:
            return self.snapshot_every
        share = self._snapshot_s() / step_s
        return 1 if share <= FULL_COST else 1 << math.ceil(math.log2(share / THINNED_COST))
