"""How one dependency stands, from one look after the other. Pure: owns when a change is worth telling, looks at nothing."""

from typing import Literal

CONFIRM_LOOKS = 2
"""One look that fails is a hiccup of a network; two in a row are told."""
SLOW_LOOKS = 3
TELL_AGAIN_S = 300.0

Change = Literal["down", "slow", "ok"]


class Standing:
    """Feed it every look; it says what is to be told now, mostly nothing."""

    def __init__(self, confirm: int = CONFIRM_LOOKS) -> None:
        self._confirm = confirm
        self._failures = 0
        self._slow = 0
        self._told: Change = "ok"
        self._told_s = 0.0
        self.down_since_s: float | None = None

    @property
    def is_suspicious(self) -> bool:
        """The last look failed and is not confirmed: look again soon."""
        return 0 < self._failures < self._confirm

    def look(self, ok: bool, slow: bool, now_s: float) -> Change | None:
        if not ok:
            self._failures += 1
            if self._failures == 1 and self._told != "down":
                self.down_since_s = now_s
            return self._tell("down", now_s) if self._failures >= self._confirm else None
        self._failures = 0
        self._slow = self._slow + 1 if slow else 0
        if self._told == "down":
            return self._tell("ok", now_s)
        if self._slow >= SLOW_LOOKS:
            return self._tell("slow", now_s)
        if self._told == "slow" and not slow:
            return self._tell("ok", now_s)
        return None

    def _tell(self, change: Change, now_s: float) -> Change | None:
        if change == self._told and (change == "ok" or now_s - self._told_s < TELL_AGAIN_S):
            return None
        self._told, self._told_s = change, now_s
        return change
