"""The probability that a part fails within 1, 6 and 24 hours. Owns the hazard model and the fleet's base rate; pure.

The time ahead is cut into three stretches: the first hour, the 5 after it, the 18 after those. In each a part fails at a
constant rate, ``base * exp(intercept + sum of weight * strength)``, with weights of that stretch. What follows holds
by construction: probabilities are nested (1 h ≤ 6 h ≤ 24 h), and rates of parts add up to the rate of their node, whose first
failure stops it.
"""

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from keepstep.core.health.features import Strengths

HORIZONS_H = (1.0, 6.0, 24.0)
STRETCHES_H = (1.0, 5.0, 18.0)
HIGHEST_PER_H = 0.06
"""Counters say that a part is failing, hardly in which hour: beyond this rate the fit was surer than what came true."""


class Model(Struct, frozen=True, kw_only=True):
    """Fitted numbers. See ``weights.py`` for those in use."""

    base_per_h: Mapping[str, float]
    """Kind of part → failures an hour that an average one has; what a fleet measures of its own replaces it."""
    intercepts: Mapping[str, tuple[float, float, float]]
    """Kind of part → how far a part with nothing remarkable is below (or above) that average, per stretch, in nats."""
    weights: Mapping[str, tuple[float, float, float]]
    """Feature → nats for a strength of 1, per stretch; never negative."""
    recurrence: Mapping[str, float] = {}
    """Feature of ``past_failures`` → nats by which the failures of a whole *node* are more frequent; from traces of nodes."""
    recurrence_weight: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Factor on it beside the counters, which show a part of the same wear; 1 where parts recur as the traces' nodes do."""
    per_node: Mapping[str, int] = {}
    """How many parts of a kind a node of ``base_per_h`` has."""


class Forecast(Struct, frozen=True, kw_only=True):
    """Failures an hour in each stretch, and what they amount to."""

    rates_per_h: tuple[float, float, float]
    usual_per_h: tuple[float, float, float]
    """The same for an average part of the fleet."""

    @property
    def within(self) -> tuple[float, float, float]:
        """Probability of a failure within 1, 6 and 24 hours."""
        one, six, day = (failing_by(self, hours) for hours in HORIZONS_H)
        return one, six, day

    @property
    def ratio(self) -> float:
        """How many times as many failures as of an average part are expected within 24 hours."""
        usual = expected_failures(self.usual_per_h, HORIZONS_H[-1])
        return expected_failures(self.rates_per_h, HORIZONS_H[-1]) / usual if usual > 0 else 1.0


def forecast(kind: str, found: Strengths, model: Model) -> Forecast:
    """Of one part, from its strengths. A kind that the model does not know has no base rate and adds nothing."""
    base = model.base_per_h.get(kind, 0.0)
    intercepts = model.intercepts.get(kind, (0.0, 0.0, 0.0))
    quiet = [base * math.exp(each) for each in intercepts]
    nats = [sum(each) for each in zip((0.0, 0.0, 0.0), *contributions(kind, found, model).values(), strict=True)]
    rates = [min(max(HIGHEST_PER_H, own), own * math.exp(more)) for own, more in zip(quiet, nats, strict=True)]
    return Forecast(rates_per_h=(rates[0], rates[1], rates[2]), usual_per_h=(base, base, base))


def contributions(kind: str, found: Strengths, model: Model) -> dict[str, tuple[float, float, float]]:
    """Feature → nats that it adds in each stretch, never negative."""
    made = {}
    for name, value in found.items():
        if name in model.weights:
            first, second, third = model.weights[name]
            made[name] = (value * first, value * second, value * third)
    again = {name: value * model.recurrence[name] for name, value in found.items() if name in model.recurrence}
    whole = sum(again.values())
    if whole > 0:
        nats = recurrence_nats(kind, whole, model)
        first, second, third = (nats * weight / whole for weight in model.recurrence_weight)
        made.update({name: (part * first, part * second, part * third) for name, part in again.items()})
    return made


def recurrence_nats(kind: str, node_nats: float, model: Model) -> float:
    """What a node's recurrence means for the part that had failed. The traces say by how much a *node* fails more often after a
    repair; the excess is laid on the part that was repaired, whose own base is a small share of the node's."""
    own = model.base_per_h.get(kind, 0.0)
    node = sum(model.base_per_h.get(each, 0.0) * count for each, count in model.per_node.items())
    return math.log1p(math.expm1(node_nats) * max(1.0, node / own)) if own > 0 else 0.0


def together(forecasts: Iterable[Forecast]) -> Forecast:
    """Of a node: the first failure of any of its parts stops it, so their rates add up."""
    rates, usual = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for one in forecasts:
        for k in range(3):
            rates[k] += one.rates_per_h[k]
            usual[k] += one.usual_per_h[k]
    return Forecast(rates_per_h=(rates[0], rates[1], rates[2]), usual_per_h=(usual[0], usual[1], usual[2]))


def expected_failures(rates_per_h: tuple[float, float, float], hours: float) -> float:
    """Of a constant rate per stretch, up to some time ahead. Beyond 24 hours the last stretch's rate goes on."""
    first, second = min(hours, 1.0), min(max(hours - 1.0, 0.0), 5.0)
    return rates_per_h[0] * first + rates_per_h[1] * second + rates_per_h[2] * max(hours - 6.0, 0.0)


def failing_by(of: Forecast, hours: float) -> float:
    """The probability that it fails within so many hours."""
    return -math.expm1(-expected_failures(of.rates_per_h, max(0.0, hours)))


def useful_hours(of: Forecast, horizon_h: float) -> float:
    """How many of the next hours it is expected to work for before it fails, at most all of them."""
    total, survives, at_h = 0.0, 1.0, 0.0
    edges = [min(edge, horizon_h) for edge in (1.0, 6.0)] + [horizon_h]
    for rate, edge in zip(of.rates_per_h, edges, strict=True):
        length = max(0.0, edge - at_h)
        total += survives * (-math.expm1(-rate * length) / rate if rate * length > 1e-12 else length)
        survives *= math.exp(-rate * length)
        at_h += length
    return total


def learned_base_per_h(prior_per_h: float, failures: int, exposure_h: float, prior_failures: float = 2.0) -> float:
    """A fleet's own base rate: its failures and hours, together with a prior that weighs as much as a few failures."""
    if prior_per_h <= 0 or exposure_h < 0 or failures < 0:
        raise ValueError(
            f"base rate of {failures} failures in {exposure_h} h: need a prior above 0 and no negative counts"
        )
    return (prior_failures + failures) / (prior_failures / prior_per_h + exposure_h)
