"""The statistics beside values that were computed elsewhere, exactly, or by trying."""

import random
from fractions import Fraction
from math import comb, exp, factorial, isclose

import pytest

from keepstep.review import estimates as e


@pytest.mark.parametrize(("hits", "n", "part"), [(3, 10, 4), (56, 173, 8), (1, 5, 2), (400, 900, 3), (5, 5, 3)])
def test_binomial_tail_is_the_exact_sum(hits: int, n: int, part: int) -> None:
    p = Fraction(1, part)
    exact = sum(comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(hits, n + 1))
    assert isclose(e.binomial_tail(hits, n, float(p)), float(exact), rel_tol=1e-9)


@pytest.mark.parametrize(("hits", "mean"), [(1, 0.01), (4, 1.5), (12, 2.7), (30, 40.0)])
def test_poisson_tail_is_one_less_the_rest(hits: int, mean: float) -> None:
    rest = sum(exp(-mean) * mean**k / factorial(k) for k in range(hits))
    assert isclose(e.poisson_tail(hits, mean), 1 - rest, abs_tol=1e-12)


def test_intervals_are_the_published_ones() -> None:
    low, high = e.wilson(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)
    low, high = e.poisson_interval(10)  # Garwood's exact one: 4.795 to 18.39
    assert isclose(low, 4.795, rel_tol=2e-3) and isclose(high, 18.39, rel_tol=2e-3)
    assert e.poisson_interval(0)[0] == 0 and e.wilson(0, 0) == (0.0, 1.0)


def test_few_are_too_few() -> None:
    assert e.share(3, 4).value is None and "too few" in e.share(3, 4).note
    assert e.spread([1.0, 2.0]).p50 is None and e.spread([1.0, 2.0]).max == 2.0
    assert e.spread(list(map(float, range(10)))).p95 is None
    assert e.trend([(0.0, 1.0), (1.0, 2.0)]).verdict == "too few"
    assert e.trend([(1.0, 2.0)] * 20).per_day is None
    assert e.trend([(n / 1440, 1.0 + n) for n in range(40)]).note == "too few: all within a day"


def test_a_planted_slope_is_found_among_wild_values() -> None:
    dice = random.Random(3)
    points = [(day / 10, (10 + 0.2 * day / 10) * dice.uniform(0.95, 1.05)) for day in range(400)]
    wild = [(day, value * (30 if dice.random() < 0.2 else 1)) for day, value in points]
    found = e.trend(wild)
    assert found.verdict == "rising"
    assert found.low is not None and found.high is not None and found.median is not None
    assert found.low * found.median < 0.2 < found.high * found.median
    still = e.trend([(day, dice.uniform(9, 11)) for day, _ in points])
    assert still.verdict == "steady"
    assert e.trend([(day, 30 - value) for day, value in points]).verdict == "falling"


def test_the_trend_of_counts_keeps_its_promise() -> None:
    """Of counts that do not change, one in twenty is called a change."""
    dice, false = random.Random(5), 0
    for _ in range(400):
        counts = [sum(dice.random() < 0.1 for _ in range(80)) for _ in range(10)]
        p = e.score_trend(counts, [1.0] * 10)
        false += p is not None and p < 0.05
    assert 5 <= false <= 40
    growing = e.score_trend([2, 4, 6, 9, 12, 15], [1.0] * 6)
    assert growing is not None and growing < 0.01
    explained = e.score_trend([2, 4, 6, 9, 12, 15], [2.0, 4.0, 6.0, 9.0, 12.0, 15.0])
    assert explained is not None and explained > 0.9
