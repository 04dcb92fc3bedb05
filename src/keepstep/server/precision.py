"""The read side of ``core.preemptions``: how right each rule was, from the journal alone. Must not change anything."""

from msgspec import Struct

from keepstep.core.preemptions import Precision
from keepstep.server.desk import Desk


class PrecisionReport(Struct, frozen=True, kw_only=True):
    """How the acts of each rule turned out."""

    rules: tuple[Precision, ...]
    preemptions: int
    """Times that work was taken off a resource while its job ran."""
    unnecessary: int
    """Of those, whose resource passed the full gate and showed no fault of the same class for a week."""
    pending: int
    """Of those, about which that cannot be said yet."""


def precision(desk: Desk) -> PrecisionReport:
    rules = desk.history.ledger.precision(desk.now_s)
    return PrecisionReport(
        rules=rules,
        preemptions=sum(rule.preemptions for rule in rules),
        unnecessary=sum(rule.preemptions_unnecessary for rule in rules),
        pending=sum(rule.preemptions_pending for rule in rules),
    )
