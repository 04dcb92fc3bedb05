"""The server's own figures, which stand in no journal: passes, flushes, connections. They begin anew with each life of it.

Written by the loop and the hub on the event loop's thread; read by ``metrics``. Judges nothing.
"""

from dataclasses import dataclass, field

from keepstep.core.preemptions import Ledger, Precision
from keepstep.telemetry import Buckets

QUICK_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


PRECISION_S = 60.0


@dataclass
class Meters:
    append_s: Buckets = field(default_factory=lambda: Buckets.of(QUICK_S))
    """One flush of the journal."""
    pass_s: Buckets = field(default_factory=lambda: Buckets.of(QUICK_S))
    """One pass of the loop: fold, decide, keep, let out."""
    entries: int = 0
    journal_error: str = ""
    """Why the journal cannot be written; empty while it can."""
    journal_failures: int = 0
    last_pass_s: float | None = None
    """When the loop last went round, by the server's clock; None before the first time."""
    connections: dict[str, int] = field(default_factory=dict)
    """Role -> how many are open."""
    alerts: dict[tuple[str, str], int] = field(default_factory=dict)
    """(channel, ``sent`` / ``failed`` / ``dropped``) -> notices."""
    spans_dropped: int = 0
    spools_dropped: dict[str, int] = field(default_factory=dict)
    """Role -> facts that never came, because a client had no room for them while there was no server."""
    precision: tuple[Precision, ...] = ()
    """Of the rules, as it was reckoned last: over all acts ever, 1 µs each, so not at every scrape."""
    precision_s: float | None = None
    """When that was."""

    def journal(self, seconds: float, entries: int) -> None:
        """One append that succeeded."""
        self.append_s.observe(seconds)
        self.entries += entries

    def journal_failed(self, why: str) -> None:
        self.journal_error = why
        self.journal_failures += 1

    def passed(self, seconds: float, now_s: float) -> None:
        """One pass that went through, journal and all."""
        self.pass_s.observe(seconds)
        self.last_pass_s, self.journal_error = now_s, ""

    def precision_of(self, ledger: Ledger, now_s: float) -> tuple[Precision, ...]:
        """At most PRECISION_S old."""
        if self.precision_s is None or now_s - self.precision_s >= PRECISION_S:
            self.precision, self.precision_s = ledger.precision(now_s), now_s
        return self.precision

    def connected(self, role: str, change: int) -> None:
        self.connections[role] = self.connections.get(role, 0) + change

    def spool_dropped(self, role: str, facts: int) -> None:
        self.spools_dropped[role] = self.spools_dropped.get(role, 0) + facts

    def notice(self, channel: str, result: str) -> None:
        self.alerts[channel, result] = self.alerts.get((channel, result), 0) + 1
