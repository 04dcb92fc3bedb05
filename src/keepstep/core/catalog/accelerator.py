"""The shapes that rows of accelerators' codes share: whom a code blames, and how surely. Holds no row itself."""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

VENDOR = "vendor catalogue 2025-10"
FIELD = "field reports"
BOTH = "vendor catalogue 2025-10; field reports"


def program(text: str, failure_class: str = "software.app", **more: object) -> Row:
    """A code that a program causes far more often than a card: the program ends, nothing is isolated."""
    values = {"confidence": 0.7, "source": VENDOR, **more}
    return row(Cause.APPLICATION, failure_class, Scope.JOB, Verdict.SUSPECT, text, **values)


def card(failure_class: str, text: str, **more: object) -> Row:
    """A code that says that the card itself is broken until it is reset."""
    values = {"remedy": Remedy.RESET_DEVICE, "urgency": Urgency.NOW, "confidence": 0.9, "source": VENDOR, **more}
    return row(Cause.DEVICE, failure_class, Scope.CARD, Verdict.FAULTY, text, **values)


def watch(
    failure_class: str, text: str, cause: Cause = Cause.DEVICE, verdict: Verdict = Verdict.WATCH, **more: object
) -> Row:
    """A code that counts and isolates nothing alone."""
    values = {"confidence": 0.6, "source": VENDOR, **more}
    return row(cause, failure_class, Scope.CARD, verdict, text, **values)


def ordinary(text: str, failure_class: str = "informational", **more: object) -> Row:
    values = {"confidence": 0.8, "source": VENDOR, **more}
    return row(Cause.DEVICE, failure_class, Scope.CARD, Verdict.BENIGN, text, **values)
