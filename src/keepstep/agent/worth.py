"""What an agent gives up first where the server was away for so long that its spool is full. Pure."""

from keepstep.core.catalog import CATALOG, Verdict
from keepstep.core.facts import Answered, Fact, SignalSeen

_MILD = (Verdict.BENIGN, Verdict.WATCH)


def worth(fact: Fact) -> int:
    """Mild signals go first, then other signals; answers and what the agent sees stay as long as that leaves room."""
    match fact:
        case SignalSeen(signal=signal):
            return 0 if CATALOG.row(signal).verdict in _MILD else 1
        case Answered():
            return 3
        case _:
            return 2
