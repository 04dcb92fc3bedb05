"""Situations that a set of runs must have reached, or the simulator proves nothing. Owns their names and their counting."""

from collections import Counter

STATES = ("open", "isolating", "selecting", "placing", "restarting", "verifying", "waiting")

NAMES = (
    *(f"server crash while {state}" for state in STATES),
    *(f"fault while {state}" for state in STATES),
    "server crash between the journal and the orders",
    "server crash between facts and decisions",
    "repeated answer to an old order",
    "late launch refused by the node",
    "launch on a held device refused by the node",
    "waiting approved",
    "waiting denied",
    "breaker tripped",
    "job shrunk",
    "spare used",
    "memory restore with mirrored parts",
    "memory restore",
    "disk restore",
    "start from nothing",
    "invalid newest skipped",
    "no fault after silence",
    "silent node came back",
    "a launcher fenced itself",
    "self-fence deadline as proof",
    "superseded launcher fenced itself",
    "power-off as proof",
    "rebooted as proof",
    "process gone as proof",
    "new session replaced an old one",
    "gate failed",
    "gate tool failed",
    "probation ended in service",
    "repair ordered",
    "device isolated after repeated failures",
    "deterministic bug ended the job",
    "budget ended the job",
    "job finished",
    "job stopped by a person",
    "stalled rank named",
    "stopped rank named",
    "stale fact ignored",
    "order overdue",
    "launch failed",
    "setback in verification",
    "person's hold kept",
)

DRILLS = (
    "drill kill-rank",
    "drill stop-rank",
    "drill lose-node",
    "drill passed",
    "drill failed",
    "drill called_off",
    "drill refused by the launcher",
    "real fault beside a drill",
)
"""As ``NAMES``, of seeds that have drills."""


class Probes:
    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()

    def hit(self, name: str) -> None:
        if name not in _KNOWN:
            raise KeyError(f"{name!r} is no probe; add it to probes.NAMES")
        self.hits[name] += 1


_KNOWN = frozenset((*NAMES, *DRILLS))


def missed(hits: Counter[str], names: tuple[str, ...] = NAMES) -> list[str]:
    """Probes that were never reached."""
    return [name for name in names if not hits[name]]
