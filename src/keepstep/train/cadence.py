"""When to snapshot and when to checkpoint. Owns the intervals; must not save anything itself.

Every rank must save at the same steps, or no step is ever complete. The intervals are therefore counted in steps, and
where ranks could measure differently they are agreed on (see `agreement`).
"""

import math
import time
from collections import deque

DEFAULT_CHECKPOINT_S = 30.0
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
    ) -> None:
        """
        checkpoint_s, checkpoint_steps: as declared; with neither, DEFAULT_CHECKPOINT_S.
        snapshot_steps: fixed interval, or None for the measured one.
        alone: no other rank has to save at the same steps, so that the clock can decide.
        """
        self._checkpoint_s = checkpoint_s if checkpoint_s or checkpoint_steps else DEFAULT_CHECKPOINT_S
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
            interval_s = max(self._checkpoint_s, self._save_s / SLOW_SAVE_COST)
            return time.monotonic() - self._last_checkpoint_s >= interval_s
        return self.checkpoint_every is not None and step % self.checkpoint_every == 0

    def step_done(self) -> None:
        self._steps += 1
        self._steps_since += 1

    def snapshot_cost(self, cost_s: float) -> None:
        self._costs_s.append(cost_s)

    def checkpoint_taken(self, blocked_s: float) -> None:
        """``blocked_s``: how long the loop stood still for it."""
        self._last_checkpoint_s, self._save_s = time.monotonic(), blocked_s

    def review_due(self) -> bool:
        """At the first step and at doubling distances, then regularly: equal on all ranks, whatever they measure."""
        return self._steps % _AGREE_UNTIL == 0 or (self._steps < _AGREE_UNTIL and self._steps.bit_count() == 1)

    def proposal(self) -> tuple[int, int]:
        """(snapshot interval, checkpoint interval) in steps, as this rank would have them by what it measured."""
        now_s = time.monotonic()
        step_s = max((now_s - self._since_s) / max(self._steps_since, 1), 1e-9)
        self._since_s, self._steps_since = now_s, 0
        wanted_s = max(self._checkpoint_s or DEFAULT_CHECKPOINT_S, self._save_s / SLOW_SAVE_COST)
        # A power of two: ranks that cannot talk to each other still land on common steps.
        checkpoint = 1 << max(0, round(math.log2(wanted_s / step_s)))
        return self._snapshot_interval(step_s), checkpoint

    def adopt(self, snapshot_every: int, checkpoint_every: int) -> None:
        self.snapshot_every, self.checkpoint_every = snapshot_every, checkpoint_every

    def _snapshot_interval(self, step_s: float) -> int:
        if self._declared_snapshot or not self._costs_s:
            return self.snapshot_every
        # The lower quartile: a rank that was descheduled in the middle did not pay for the snapshot.
        cost_s = sorted(self._costs_s)[len(self._costs_s) // 4]
        share = cost_s / step_s
        return 1 if share <= FULL_COST else 1 << math.ceil(math.log2(share / THINNED_COST))
