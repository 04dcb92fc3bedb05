"""The risk index and the forecast: what holds for all counters, and what single cases must show."""

from itertools import accumulate

import msgspec
import numpy as np
import pytest
from bench.health import page
from bench.health.judging import judged
from bench.health.landmarks import rows
from bench.health.model import fleet_base_per_h, forecasts
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.core.health import History, Sample, assess, clusters, explain, extended, history, learned_base_per_h
from keepstep.core.health.features import FEATURES, TERMS
from keepstep.core.health.forecast import forecast
from keepstep.core.health.level import COUNTERS
from keepstep.core.health.report import TERM_TEXTS
from keepstep.core.health.weights import MODEL
from keepstep.core.health.window import BUCKET_S, DAY_S, KEPT
from keepstep.sim.wear import Setting

NOW_S = 1_000 * DAY_S
FIRST_S = NOW_S - (KEPT - 1) * BUCKET_S
COUNTING = [name for name, counter in COUNTERS.items() if counter.shape == "counter"]
AMOUNTS = st.dictionaries(
    st.sampled_from(COUNTING), st.dictionaries(st.integers(0, KEPT - 1), st.integers(0, 4000), max_size=6), max_size=5
)


def counted(name: str, added: dict[int, int]) -> list[Sample]:
    """A counter that grows by so much in those quarters."""
    totals = accumulate(float(added.get(k, 0)) for k in range(KEPT))
    return [Sample(name, FIRST_S + k * BUCKET_S, total) for k, total in enumerate(totals)]


def of(amounts: dict[str, dict[int, int]]) -> History:
    return history(sample for name, added in amounts.items() for sample in counted(name, added))


def gauge(name: str, values: list[float]) -> list[Sample]:
    return [Sample(name, NOW_S - (len(values) - k) * BUCKET_S, value) for k, value in enumerate(values)]


def probabilities(part: str, past: History) -> tuple[float, float, float]:
    return assess({part: past}, NOW_S).forecast.within


@given(amounts=AMOUNTS, name=st.sampled_from(COUNTING), quarter=st.integers(0, KEPT - 1), more=st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_more_of_any_counter_at_any_time_never_lowers_the_risk(
    amounts: dict[str, dict[int, int]], name: str, quarter: int, more: int
) -> None:
    before = of({**amounts, name: amounts.get(name, {})})
    added = {**amounts.get(name, {}), quarter: amounts.get(name, {}).get(quarter, 0) + more}
    after = of({**amounts, name: added})
    for low, high in zip(probabilities("gpu/0", before), probabilities("gpu/0", after), strict=True):
        assert high >= low - 1e-15


@given(
    amounts=AMOUNTS, heat=st.lists(st.floats(20, 100), min_size=4, max_size=24), gone=st.sampled_from(list(COUNTERS))
)
@settings(max_examples=30, deadline=None)
def test_a_counter_that_is_missing_never_raises_the_risk(
    amounts: dict[str, dict[int, int]], heat: list[float], gone: str
) -> None:
    whole = extended(of(amounts), gauge("temperature_c", heat) + gauge("margin_c", [90 - t for t in heat]))
    less = msgspec.structs.replace(whole, series={n: s for n, s in whole.series.items() if n != gone})
    node = {f"gpu/{k}": of({}) if k == 7 else whole for k in range(8)}
    full, part = assess(node, NOW_S), assess({**node, "gpu/3": less}, NOW_S)
    for low, high in zip(part.forecast.within, full.forecast.within, strict=True):
        assert low <= high + 1e-15
    assert part.index <= full.index + 1e-9


@given(amounts=AMOUNTS, failed_days=st.lists(st.floats(0.01, 400), max_size=5))
@settings(max_examples=60, deadline=None)
def test_probabilities_are_nested_and_within_bounds(
    amounts: dict[str, dict[int, int]], failed_days: list[float]
) -> None:
    past = msgspec.structs.replace(of(amounts), failed_at_s=tuple(sorted(NOW_S - d * DAY_S for d in failed_days)))
    report = assess({"": past, "gpu/0": past, "nic/mlx5_0": past}, NOW_S)
    for each in (report.forecast, *(part.forecast for part in report.parts)):
        one, six, day = each.within
        assert 0 < one <= six <= day < 1
    assert all(0 <= part.index < 100 for part in report.parts)
    assert 0 < report.useful_h <= 720


def test_the_shares_of_an_index_add_up_to_it() -> None:
    (part,) = assess(
        {"gpu/0": of({"ecc_corrected": dict.fromkeys(range(60, 97), 40), "pcie_resets": {90: 3}})}, NOW_S
    ).parts
    assert part.shares[0].counter in ("ecc_corrected", "pcie_resets")
    quiet = forecast("gpu", {}, MODEL)
    assert sum(share.nats for share in part.shares) == pytest.approx(np.log(part.forecast.ratio / quiet.ratio), abs=0.2)


def test_a_part_that_shows_nothing_fails_no_more_often_than_average() -> None:
    report = assess({"gpu/0": of({}), "nic/mlx5_0": of({}), "": of({})}, NOW_S)
    assert report.index == 0
    assert "nothing in what was measured makes a part fail more often than average" in explain(report)
    assert any(line.startswith("not measured: ") for line in explain(report))


def test_nobody_knows_a_kind_without_a_base_rate_and_it_adds_nothing() -> None:
    report = assess({"fan/3": of({"pcie_resets": {90: 100}})}, NOW_S)
    assert (report.index, report.forecast.within) == (0, (0, 0, 0))


def test_one_burst_of_corrected_errors_means_little_beside_steady_wear() -> None:
    burst = of({"ecc_corrected": {80: 3000}})
    steady = of({"ecc_corrected": dict.fromkeys(range(KEPT), 31)})
    assert probabilities("gpu/0", burst)[2] < probabilities("gpu/0", steady)[2] / 3


def test_memory_errors_with_unsteady_heat_and_pcie_resets_are_worse_than_any_of_them_alone() -> None:
    errors = counted("ecc_corrected", {k: 3 * (k - 70) for k in range(71, KEPT)})
    resets = counted("pcie_resets", dict.fromkeys(range(85, KEPT, 3), 1))
    heat = gauge("temperature_c", [60.0 + 15.0 * (k % 2) for k in range(24)])
    alone = [history(each) for each in (errors, resets, heat)]
    every = history([*errors, *resets, *heat])
    best = max(probabilities("gpu/0", past)[2] for past in alone)
    assert probabilities("gpu/0", every)[2] > 3 * best


def test_rising_errors_are_worse_than_the_same_number_falling() -> None:
    rising = of({"nvlink_errors": {k: k for k in range(KEPT)}})
    falling = of({"nvlink_errors": {k: KEPT - 1 - k for k in range(KEPT)}})
    assert probabilities("gpu/0", rising)[2] >= probabilities("gpu/0", falling)[2]


def test_a_part_that_just_came_back_from_repair_is_the_most_dangerous_and_grows_safer() -> None:
    days = [0.5, 3.0, 20.0, 80.0, 300.0, 500.0]
    past = [history([], failed_at_s=[NOW_S - d * DAY_S]) for d in days]
    found = [probabilities("gpu/0", each)[2] for each in past]
    assert found == sorted(found, reverse=True)
    assert found[0] > 5 * found[-1]
    assert (
        probabilities("gpu/0", history([], [NOW_S - DAY_S] * 3))[2]
        > probabilities("gpu/0", history([], [NOW_S - DAY_S]))[2]
    )


def test_a_repair_starts_the_clock_anew() -> None:
    old = history([], failed_at_s=[NOW_S - 40 * DAY_S])
    repaired = history([], failed_at_s=[NOW_S - 40 * DAY_S], repaired_at_s=NOW_S - DAY_S / 2)
    assert probabilities("gpu/0", repaired)[2] > probabilities("gpu/0", old)[2]


def test_what_a_repair_may_have_cured_does_not_count() -> None:
    worn = of({"ecc_corrected": dict.fromkeys(range(KEPT - 8), 60)})
    repaired = msgspec.structs.replace(worn, repaired_at_s=NOW_S - 7 * BUCKET_S)
    again = extended(repaired, counted("ecc_corrected", dict.fromkeys(range(KEPT), 60)))
    counters = [{s.counter for s in assess({"gpu/0": p}, NOW_S).parts[0].shares} for p in (worn, repaired, again)]
    assert ["ecc_corrected" in each for each in counters] == [True, False, True]


def test_a_node_fails_as_often_as_its_parts_together() -> None:
    parts = {f"gpu/{k}": of({"pcie_resets": {90: k}}) for k in range(8)}
    report = assess(parts, NOW_S)
    survives = np.prod([1 - part.forecast.within[2] for part in report.parts])
    assert report.forecast.within[2] == pytest.approx(1 - survives)
    assert report.parts[0].part == "gpu/7"


def test_heat_that_all_siblings_share_is_no_unsteadiness_of_one() -> None:
    wave = [60.0 + 15.0 * (k > 12) for k in range(24)]
    same = {f"gpu/{k}": history(gauge("temperature_c", wave)) for k in range(8)}
    assert assess(same, NOW_S).index == 0
    hot = {**same, "gpu/5": history(gauge("temperature_c", [t + 20 for t in wave]))}
    assert assess(hot, NOW_S).parts[0].part == "gpu/5"


def test_errors_that_cooling_explains_do_not_count_against_the_port() -> None:
    racks = {f"n{k}": f"r{k // 4}" for k in range(8)}
    sick = of({"nic_symbol_errors": dict.fromkeys(range(40, KEPT), 600)})
    warm = history(gauge("inlet_c", [24.0] * 80 + [34.0] * 12))
    fleet = {node: {"": warm, "nic/mlx5_0": sick if rack == "r0" else of({})} for node, rack in racks.items()}
    (found,) = clusters(fleet, racks, NOW_S)
    blamed = assess(fleet["n0"], NOW_S)
    excused = assess(fleet["n0"], NOW_S, explained=found.explained("n0"))
    assert blamed.parts[0].part == "nic/mlx5_0"
    assert blamed.parts[0].index > 20
    assert all(part.index == 0 for part in excused.parts)
    assert any("left out" in line for line in explain(excused))


def test_a_counter_at_its_end_is_named_as_blind_and_raises_nothing() -> None:
    stuck = history(Sample("link_downed", FIRST_S + k * BUCKET_S, 255.0) for k in range(KEPT))
    report = assess({"nic/mlx5_0": stuck}, NOW_S)
    assert report.index == 0
    assert report.parts[0].blind == ("link_downed",)
    assert any("stands at its end" in line for line in explain(report))


def test_the_explanation_names_the_part_and_what_it_is_made_of() -> None:
    lines = explain(
        assess({"gpu/3": of({"ecc_corrected": dict.fromkeys(range(50, KEPT), 60)}), "gpu/4": of({})}, NOW_S)
    )
    assert any(line.startswith("gpu/3: ") for line in lines)
    assert any("corrected memory errors" in line for line in lines)
    assert not any(line.startswith("gpu/4: ") for line in lines)


def test_every_weight_is_of_a_known_feature_and_none_is_negative() -> None:
    assert MODEL.weights.keys() <= set(FEATURES)
    assert all(value >= 0 for three in MODEL.weights.values() for value in three)
    assert all(value >= 0 for value in (*MODEL.recurrence.values(), *MODEL.recurrence_weight))
    assert {term for terms in TERMS.values() for term in terms} == TERM_TEXTS.keys()


def test_the_reference_page_has_the_weights_in_use() -> None:
    assert page.tables(MODEL) in page.PAGE.read_text(), "run python -m bench.health fit, or write the tables anew"


def test_a_fleets_own_failures_outweigh_the_prior_in_time() -> None:
    assert learned_base_per_h(1e-5, 0, 0.0) == pytest.approx(1e-5)
    assert learned_base_per_h(1e-5, 1000, 1e7) == pytest.approx(1e-4, rel=0.02)
    with pytest.raises(ValueError, match="base rate"):
        learned_base_per_h(0.0, 1, 1.0)


def test_forecasts_are_calibrated_on_a_fleet_that_the_fit_has_not_seen() -> None:
    fleet = Setting(racks=3, nodes_per_rack=8, days=200, parts_per_node=(("gpu", 8),))
    found = rows(4243, fleet, 12)
    model = msgspec.structs.replace(MODEL, base_per_h={**MODEL.base_per_h, "gpu": fleet_base_per_h(found)["gpu"]})
    failed = (found.ahead_h <= 24).astype(float)
    verdict = judged(forecasts(found, model)[:, 2], failed, found.weight)
    expected = float(np.average(forecasts(found, model)[:, 2], weights=found.weight))
    assert 0.5 < expected / verdict.rate < 2.0
    assert verdict.ece < verdict.rate
    assert verdict.auc > 0.65
    assert verdict.lift > 8
