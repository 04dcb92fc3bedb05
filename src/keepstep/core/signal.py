"""A signal: an observation with its verdict, as the catalogue gives it and the combination rules have changed it. Pure."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from keepstep.core.catalog import CATALOG, Catalog
from keepstep.core.catalog.row import Mode, Row, Verdict
from keepstep.core.incident import Urgency
from keepstep.core.observation import Observation
from keepstep.core.parts import Parts


class Signal(Struct, frozen=True, kw_only=True):
    seen: Observation
    row: Row
    """The verdict: the catalogue's, with what the rules have changed."""
    because: tuple[str, ...] = ()
    """What the rules say about it, in the order in which they changed it."""
    shadow: tuple[str, ...] = ()
    """What rules in shadow mode would have done."""

    @property
    def key(self) -> str:
        return self.seen.signal

    def graded(self, because: str, **changes: object) -> "Signal":
        """The same signal with fields of its row changed, and why."""
        changed = msgspec.structs.replace(self.row, **changes)
        return msgspec.structs.replace(self, row=changed, because=(*self.because, because))

    def harmless(self, because: str) -> "Signal":
        """It says nothing about a fault of its own: an echo, an own action, something that was cleared."""
        return self.graded(because, verdict=Verdict.BENIGN, isolate=False, urgency=Urgency.NONE, confidence=0.0)


class OwnAction(Struct, frozen=True, kw_only=True):
    """Something that we did ourselves: what it prints is no fault (a kill during a collective prints fatal-looking codes)."""

    node: str
    clock: str
    from_s: float
    until_s: float
    what: str


class Context(Struct, frozen=True, kw_only=True):
    """What rules know beside the signals."""

    catalog: Catalog = CATALOG
    parts: Parts = msgspec.field(default_factory=Parts)
    own_actions: tuple[OwnAction, ...] = ()


class Rule(Struct, frozen=True, kw_only=True):
    """One combination rule. ``apply`` returns the signals anew: graded, dropped, or with derived ones added."""

    name: str
    text: str
    apply: Callable[[Sequence[Signal], Context], list[Signal]]
    mode: Mode = Mode.ACT


def place_of(signal: Signal, context: Context) -> tuple[str, str]:
    """(node, canonical name of its part)."""
    return signal.seen.node, context.parts.canonical(signal.seen.node, signal.seen.part)


def within(one: Signal, other: Signal, window_s: float) -> bool:
    """Close in time, as far as can be told: times on two clocks are never compared, so they do not contradict."""
    a, b = one.seen, other.seen
    if a.at_s is None or b.at_s is None or a.clock != b.clock:
        return True
    return abs(a.at_s - b.at_s) <= window_s


def by_part(signals: Sequence[Signal], context: Context) -> dict[tuple[str, str], list[Signal]]:
    """(node, canonical part) -> its signals, in the order given."""
    found: dict[tuple[str, str], list[Signal]] = {}
    for signal in signals:
        found.setdefault(place_of(signal, context), []).append(signal)
    return found
