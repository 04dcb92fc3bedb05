"""How long to wait before the next attempt to connect. Pure; owns the windows, draws no random number itself.

Full jitter: the whole window is drawn from, so that many clients that lost one server at the same instant come back spread
evenly over the window, and not at its end.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Windows double from ``first_s`` to ``last_s``."""

    first_s: float
    last_s: float
    refused_s: float
    """At least so long after a server said no: asking again soon would only fill its journal."""

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.last_s:
            raise ValueError(f"windows of {self.first_s} s to {self.last_s} s; want 0 < first <= last")

    def window_s(self, attempt: int) -> float:
        """``attempt`` counts the attempts in vain since there was a server, from 0."""
        doublings = min(attempt, 64)
        return min(self.last_s, self.first_s * 2.0**doublings)

    def pause_s(self, attempt: int, drawn: float, *, refused: bool = False) -> float:
        """``drawn`` is a random number in [0, 1)."""
        pause_s = drawn * self.window_s(attempt)
        return self.refused_s * (1.0 + drawn) if refused else pause_s


AGENT = Backoff(first_s=1.0, last_s=5.0, refused_s=10.0)
"""Thousands of them lose one server at once, and none is in a hurry: a wide first window."""
LAUNCHER = Backoff(first_s=0.05, last_s=2.0, refused_s=2.0)
"""A recovery may wait for it."""
FRONT = Backoff(first_s=0.02, last_s=0.5, refused_s=0.5)
"""Few, and beside their server."""
