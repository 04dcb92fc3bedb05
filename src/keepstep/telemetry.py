"""Shapes in which figures, traces and alerts leave the server. Owns the shapes only; who computes and who sends is elsewhere.

Times are seconds since the epoch by the server's clock, durations seconds.
"""

from bisect import bisect_left
from string import Template
from typing import Literal, Protocol

from msgspec import Struct, field

Labels = tuple[str, ...]
"""Values, in the order of the family's label names."""


class Buckets(Struct, kw_only=True):
    """A histogram: how many observations fell up to each bound, not cumulated; one more counts what lies above the last."""

    bounds: tuple[float, ...]
    counts: list[int]
    sum: float = 0.0

    @classmethod
    def of(cls, bounds: tuple[float, ...]) -> "Buckets":
        return cls(bounds=bounds, counts=[0] * (len(bounds) + 1))

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Family(Struct, kw_only=True):
    """All series of one metric. ``name`` is without ``_total``, which the exposition adds to counters."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: Labels = ()
    samples: list[tuple[Labels, float | Buckets]] = field(default_factory=list)

    def add(self, value: float | Buckets, *labels: str) -> None:
        self.samples.append((labels, value))

    @property
    def series(self) -> int:
        """How many time series it is in Prometheus."""
        return sum(len(v.counts) + 2 if isinstance(v, Buckets) else 1 for _, v in self.samples)


class SpanEvent(Struct, frozen=True, kw_only=True):
    at_s: float
    name: str
    attributes: dict[str, str | int | float | bool] = {}


class Span(Struct, frozen=True, kw_only=True):
    """One piece of a recovery, as traces have it. Ids are hex."""

    trace: str
    id: str
    parent: str
    """Empty for the root."""
    name: str
    start_s: float
    end_s: float
    attributes: dict[str, str | int | float | bool] = {}
    events: tuple[SpanEvent, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """(trace, span) of others that it belongs to."""
    error: str = ""
    """What went wrong; empty where nothing did."""


Level = Literal["info", "warning", "page"]
LEVELS: tuple[Level, ...] = ("info", "warning", "page")
"""From the least to the most urgent."""


class Alert(Struct, frozen=True, kw_only=True):
    """Something that people should know. The same ``id`` may come twice: whoever receives it drops the second."""

    id: str
    """Of this notice: its key, when it began to fire, and its status."""
    key: str
    """Of the condition: the same as long as it lasts, and for the notice that it is over."""
    kind: str
    """``waiting``, ``escalated``, ``notice``, ``breaker``, ``journal``, ``leader``, ``certificate``, ``test``."""
    status: Literal["firing", "resolved"]
    level: Level
    title: str
    text: str
    at_s: float
    subject: str = ""
    """Incident, job or resource."""
    job: str = ""
    since_s: float = 0.0
    """When the condition began."""


def notice_template(text: str, more: tuple[str, ...] = ()) -> Template:
    """A text with ``${field}`` for the fields of a notice, and ``more``. Raises ValueError where it asks for any other."""
    made = Template(text)
    fields = (*Alert.__struct_fields__, *more)
    unknown = next((name for name in made.get_identifiers() if name not in fields), None)
    if unknown is not None:
        raise ValueError(f"a notice has no ${{{unknown}}} to put in; there are {', '.join(fields)}")
    if not made.is_valid():
        raise ValueError("the template has a $ that begins no ${field}; a plain one is written $$")
    return made


class DeliveryFailed(Exception):
    """A notice did not arrive. ``again`` is False where trying again cannot help (the receiver refuses it for good)."""

    def __init__(self, why: str, *, again: bool = True) -> None:
        self.again = again
        super().__init__(why)


class Channel(Protocol):
    """A way to people. ``send`` blocks, for no longer than its own limit; it is called in a thread of the channel's own."""

    name: str

    def send(self, alert: Alert) -> None:
        """Returns when the other side took it. Raises DeliveryFailed."""
        ...
