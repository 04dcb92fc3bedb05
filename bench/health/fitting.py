"""Fits with weights that cannot be negative. Owns the two likelihoods; knows no counters."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.optimize import minimize

Array = NDArray[np.float64]
RIDGE = 1e-3
"""Per squared nat, against the mean log-likelihood of an event: only there to settle what the data leave open."""


def fit_poisson(features: Array, exposure: Array, events: Array, group: NDArray[np.int64], groups: int) -> Array:
    """Weights ≥ 0 of a Poisson regression whose groups each have a free base rate (profiled out)."""

    def loss(weights: Array) -> tuple[float, Array]:
        rate = exposure * np.exp(features @ weights)
        per_group = np.bincount(group, weights=rate, minlength=groups)
        seen = np.bincount(group, weights=events, minlength=groups)
        means = np.column_stack([np.bincount(group, weights=rate * f, minlength=groups) for f in features.T])
        value = events @ (features @ weights) - seen @ np.log(np.maximum(per_group, 1e-300))
        slope = events @ features - (seen / np.maximum(per_group, 1e-300)) @ means
        return -value / events.sum(), -slope / events.sum()

    start = np.full(features.shape[1], 0.1)
    return _solved(loss, start, np.zeros(len(start)))


class Sample(Struct, frozen=True):
    """Rows at risk in one stretch."""

    kinds: Array
    """One column per kind, 1 where it is that."""
    features: Array
    base: Array
    """Logarithm of the base rate."""
    failed: Array
    weight: Array


def fit_hazard(rows: Sample, hours: float) -> Array:
    """(an intercept per kind, weights ≥ 0) of P = 1 - exp(-hours * exp(base + intercept + features @ w))."""
    total = float((rows.weight * rows.failed).sum())
    free, some = rows.kinds.shape[1], rows.failed > 0

    def loss(w: Array) -> tuple[float, Array]:
        nats = rows.features @ w[free:]
        expected = hours * np.exp(np.clip(rows.base + rows.kinds @ w[:free] + nats, -60, 5))
        p = np.maximum(-np.expm1(-expected), 1e-300)
        value = np.where(some, np.log(p), -expected)
        slope = rows.weight * np.where(some, expected * (1 - p) / p, -expected) / total
        ridge = RIDGE * w[free:]
        gradient = np.concatenate([-slope @ rows.kinds, -slope @ rows.features + 2 * ridge])
        return float(-(rows.weight @ value) / total + (ridge * w[free:]).sum()), gradient

    count = rows.features.shape[1]
    lower = np.concatenate([np.full(free, -10.0), np.zeros(count)])
    return _solved(loss, np.concatenate([np.zeros(free), np.full(count, 0.05)]), lower)


def _solved(loss: object, start: Array, lower: Array) -> Array:
    bounds = [(low, 12.0) for low in lower]
    result = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500})
    if not result.success and result.nit < 20:
        raise RuntimeError(f"the fit did not settle: {result.message}")
    return np.asarray(result.x)
