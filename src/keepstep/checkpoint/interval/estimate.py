"""What a save costs and how often failures come. Owns samples, beliefs and their priors; no clock, no I/O.

Costs are quantiles of recent measurements, in which newer ones count more. Failure rates are kept apart by *scope*, the least
that survives the failure; each is a gamma belief: a prior from published rates for a job of this size, made sharper by the
failures and the exposure that were seen. Priors are weak (about half a failure), so a few days of one's own history outweigh
them.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Scope = Literal["process", "node", "power", "site"]
"""What a failure takes with it. process: the workers, and no memory of the host. node: one node, its memory and its disks.
power: the memory of all nodes at once (an outage, the job started anew); disks stay. site: nodes with all their disks."""

SCOPES: tuple[Scope, ...] = ("process", "node", "power", "site")

KEPT_SAMPLES = 64
HALF_LIFE_SAMPLES = 16
EVIDENCE_HALF_LIFE_DAYS = 30.0
"""Own history fades: a fleet of last year, or its first bad month, says little about today."""
DAY_S = 86_400.0


class Figure(Struct, frozen=True, kw_only=True):
    """A quantity in seconds, and where it comes from."""

    value_s: float
    samples: int
    """Measurements behind it; 0: it is assumed."""
    source: str


class Samples(Struct, frozen=True, kw_only=True):
    """Recent measurements of one quantity, oldest first."""

    assumed_s: float
    """Used until there is a measurement."""
    assumption: str
    """Where the assumed value comes from, for a person."""
    values_s: tuple[float, ...] = ()
    seen: int = 0


def measured(samples: Samples, value_s: float) -> Samples:
    """With one more measurement. Raises ValueError for one that is negative or not finite."""
    if not 0 <= value_s < math.inf:
        raise ValueError(f"a duration of {value_s} s was measured: it must be 0 or more")
    return replace(samples, values_s=(*samples.values_s, value_s)[-KEPT_SAMPLES:], seen=samples.seen + 1)


def quantile(samples: Samples, share: float) -> Figure:
    """The value that ``share`` of the measurements do not exceed; the weight of one halves every HALF_LIFE_SAMPLES."""
    if not samples.values_s:
        return Figure(value_s=samples.assumed_s, samples=0, source=samples.assumption)
    newest = len(samples.values_s) - 1
    weighed = sorted((value, 0.5 ** ((newest - at) / HALF_LIFE_SAMPLES)) for at, value in enumerate(samples.values_s))
    wanted, reached = share * sum(weight for _, weight in weighed), 0.0
    chosen = weighed[-1][0]
    for value, weight in weighed:
        reached += weight
        if reached >= wanted:
            chosen = value
            break
    return Figure(value_s=chosen, samples=samples.seen, source=f"{_ordinal(share)} of the last {newest + 1} saves")


class Prior(Struct, frozen=True, kw_only=True):
    """What is believed about a rate before anything was seen."""

    scope: Scope
    per_day: float
    """Mean; per node or per job, see ``per_node``."""
    shape: float
    """How firm it is, as a number of failures."""
    per_node: bool
    source: str


_PROCESS_POINTS = ((1.0, 1.4e-2), (128.0, 1.7e-2), (2048.0, 5.7e-4))
"""Nodes of the job, failures per node-day that no node has to leave for. Small and medium jobs die mostly of these."""


def prior(scope: Scope, nodes: int) -> Prior:
    """From published figures, for a job on ``nodes`` nodes of eight accelerators."""
    if nodes < 1:
        raise ValueError(f"a job on {nodes} nodes: needs at least 1")
    match scope:
        case "process":
            return Prior(
                scope=scope, per_day=_between(_PROCESS_POINTS, nodes), shape=0.5, per_node=True,
                source="Meta RSC-1, jobs of 8 GPUs (a failure in 47.7 days) and of 1,024 (in 7.9 h), less their node failures; "
                "Llama 3 405B, software and dependencies (63 of 419 in 54 days on 2,048 nodes)",
            )  # fmt: skip
        case "node":
            return Prior(
                scope=scope, per_day=3.2e-3, shape=0.5, per_node=True,
                source="Llama 3 405B, hardware and host maintenance (356 of 419 in 54 days on 2,048 nodes); "
                "others: 1.2e-3 (ByteRobust), 2.3e-3 (Meta RSC-2) to 6.5e-3 (Meta RSC-1)",
            )  # fmt: skip
        case "power":
            return Prior(
                scope=scope, per_day=1 / 30, shape=0.5, per_node=False,
                source="assumed, not published: the whole job is started anew once in 30 days",
            )  # fmt: skip
        case "site":
            return Prior(
                scope=scope, per_day=3.2e-5, shape=0.5, per_node=True,
                source="1 % of node failures take a group of machines (the catastrophic share that ByteRobust plans for)",
            )  # fmt: skip


class Belief(Struct, frozen=True, kw_only=True):
    """What is believed about the rate of one scope for one job."""

    prior: Prior
    nodes: int
    failures: float = 0.0
    """Seen, faded."""
    exposure_days: float = 0.0
    """Under which they were seen: node-days or job-days as the prior counts, faded alike."""
    seen: int = 0
    """Failures in all."""

    @property
    def per_day(self) -> float:
        """Expected failures of this job a day: the mean of the gamma posterior."""
        return self._shape / self._exposure_days * self._units

    @property
    def rate_per_s(self) -> float:
        return self.per_day / DAY_S

    @property
    def likely_per_day(self) -> tuple[float, float]:
        """Where the rate is with 90 %."""
        return self._quantile(0.05), self._quantile(0.95)

    @property
    def _units(self) -> float:
        return float(self.nodes) if self.prior.per_node else 1.0

    @property
    def _shape(self) -> float:
        return self.prior.shape + self.failures

    @property
    def _exposure_days(self) -> float:
        return self.prior.shape / self.prior.per_day + self.exposure_days

    def _quantile(self, share: float) -> float:
        return _gamma_quantile(self._shape, share) / self._exposure_days * self._units


def believe(scope: Scope, nodes: int) -> Belief:
    """Before anything was seen."""
    return Belief(prior=prior(scope, nodes), nodes=nodes)


def observed(belief: Belief, failures: int, elapsed_s: float) -> Belief:
    """After ``elapsed_s`` of running, in which ``failures`` of this scope came. Time in which the job stands is no exposure."""
    if failures < 0 or not 0 <= elapsed_s < math.inf:
        raise ValueError(f"{failures} failures in {elapsed_s} s: both must be 0 or more")
    days = elapsed_s / DAY_S
    fade = 0.5 ** (days / EVIDENCE_HALF_LIFE_DAYS)
    units = belief.nodes if belief.prior.per_node else 1
    return replace(
        belief,
        failures=belief.failures * fade + failures,
        exposure_days=belief.exposure_days * fade + days * units,
        seen=belief.seen + failures,
    )


def resized(belief: Belief, nodes: int) -> Belief:
    """For the same job on another number of nodes: the evidence stays, the prior is the one of the new size."""
    return replace(belief, prior=prior(belief.prior.scope, nodes), nodes=nodes)


class Division(Struct, frozen=True, kw_only=True):
    """Failures, divided among the tiers that answer them."""

    rates_per_s: tuple[float, ...]
    """By tier: failures that it survives and no tier before it does."""
    scopes: tuple[tuple[Scope, ...], ...]
    uncovered: tuple[Scope, ...]
    """Failures that no tier survives: they cost everything."""


def divide(survives: Sequence[Sequence[Scope]], rates_per_s: Mapping[Scope, float]) -> Division:
    """Give each scope to the first tier that survives it: the first has the newest state."""
    owned: list[list[Scope]] = [[] for _ in survives]
    uncovered: list[Scope] = []
    for scope in SCOPES:
        if scope not in rates_per_s:
            continue
        first = next((place for place, scopes in enumerate(survives) if scope in scopes), None)
        (uncovered if first is None else owned[first]).append(scope)
    return Division(
        rates_per_s=tuple(sum(rates_per_s[scope] for scope in scopes) for scopes in owned),
        scopes=tuple(tuple(scopes) for scopes in owned),
        uncovered=tuple(uncovered),
    )


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Straight in logarithms between the points, level beyond them."""
    if at <= points[0][0]:
        return points[0][1]
    for (low, at_low), (high, at_high) in pairwise(points):
        if at <= high:
            share = math.log(at / low) / math.log(high / low)
            return float(at_low * (at_high / at_low) ** share)
    return points[-1][1]


def _gamma_quantile(shape: float, share: float) -> float:
    """Where the distribution function of a gamma variable of scale 1 reaches ``share``, by bisection."""
    low, high = 0.0, shape + 10 * math.sqrt(shape) + 10
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _gamma_below(shape, middle) < share else (low, middle)
    return high


def _gamma_below(shape: float, value: float) -> float:
    """The distribution function, by its power series: all terms are positive."""
    if value == 0:
        return 0.0
    term = math.exp(shape * math.log(value) - value - math.lgamma(shape + 1))
    total, count = term, 0
    while term > 1e-15 * total:
        count += 1
        term *= value / (shape + count)
        total += term
    return total


def _ordinal(share: float) -> str:
    return "median" if share == 0.5 else f"{share:.0%} quantile"
