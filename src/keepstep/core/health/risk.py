"""The risk index of a part or node and what it is made of. Pure; owns how a ratio of rates becomes a figure for people.

The index is 0 for what fails no more often than an average part of the fleet, 50 at ten times that, 75 at a hundred times, and
never 100. It says nothing that the forecast does not: it is the same ratio on a scale on which makes and kinds can be compared.
"""

import math

from msgspec import Struct

from keepstep.core.health.features import Strengths
from keepstep.core.health.forecast import STRETCHES_H, Forecast, Model, contributions, forecast

SHOWN_NATS = 0.05
"""A contribution below is not worth a line."""
HALFWAY_NATS: float = math.log(10.0)


class Share(Struct, frozen=True, kw_only=True):
    """What one feature adds to the index."""

    counter: str
    term: str
    strength: float
    nats: float
    """By so much it raises the logarithm of the expected failures above those of a part that shows nothing."""


def index(of: Forecast) -> float:
    """0 … 100, from how many times the usual failures are expected within 24 hours."""
    return -100.0 * math.expm1(-math.log(2.0) * math.log(max(1.0, of.ratio)) / HALFWAY_NATS)


def shares(kind: str, found: Strengths, of: Forecast, model: Model) -> list[Share]:
    """The features that matter, strongest first. A stretch counts by the failures that are expected in it."""
    expected = [rate * hours for rate, hours in zip(of.rates_per_h, STRETCHES_H, strict=True)]
    raw = {
        name: sum(e * nats for e, nats in zip(expected, added, strict=True))
        for name, added in contributions(kind, found, model).items()
    }
    total = sum(raw.values())
    quiet = forecast(kind, {}, model)
    if total <= 0 or quiet.ratio <= 0:
        return []
    nats = math.log(of.ratio / quiet.ratio)
    made = []
    for name, value in raw.items():
        counter, term = name.split(".")
        made.append(Share(counter=counter, term=term, strength=found[name], nats=nats * value / total))
    return sorted((one for one in made if one.nats >= SHOWN_NATS), key=lambda one: (-one.nats, one.counter, one.term))
