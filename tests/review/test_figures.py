"""Failures, recoveries, saves, offenders: small cases whose answers are plain."""

import math

import msgspec
import pytest

from keepstep.review.compute import of_job, review
from keepstep.review.failures import WEEK_S, compare_racks, size_of, week_of
from keepstep.review.figures import Fleet, Material, Repair
from keepstep.review.questions import QUESTIONS, answers
from keepstep.review.records import SaveRecord

from .made import DAY_S, T0, fault, incident, job, month


def of(**fields: object) -> Material:
    return Material(**{"since_s": 0.0, "until_s": 100_000.0, **fields})  # type: ignore[arg-type]


def test_every_question_has_an_answer_with_figures_and_without() -> None:
    full, empty = review(month()), review(of())
    for found in (full, empty):
        told = answers(found)
        assert [x.key for x in told] == [key for key, *_ in QUESTIONS]
        assert all(x.sentence.endswith(".") and len(x.sentence) > 15 for x in told)
        for x in told:
            where: object = found
            for name in x.figures.split("."):
                where = getattr(where, name)
    by_key = {x.key: x.sentence for x in answers(full)}
    assert "r0" in by_key["rack"] and by_key["writes"].startswith("Yes")
    assert not any("Too few" in sentence for sentence in by_key.values())


def test_mttf_is_exposure_over_failures() -> None:
    jobs = [job("a", device_models=("H100",), submitted_s=0.0, running_since_s=0.0, finished_s=36_000.0, ranks=8)]
    found = [incident(f"i{n}", job="a", opened_s=n * 1000.0, closed_s=n * 1000.0 + 30) for n in range(8)]
    other = incident("x", job="a", cause="application", opened_s=9000.0, closed_s=9010.0)
    told = review(of(jobs=tuple(jobs), incidents=(*found, other))).failures
    (model,) = told.by_device_model
    assert (model.name, model.failures, model.exposure_h, model.mttf_h) == ("H100", 8, 80.0, 10.0)
    assert model.low_h is not None and model.high_h is not None and model.low_h < 10.0 < model.high_h
    (size,) = told.by_size
    assert (size.name, size.failures, size.exposure_h) == ("8–63", 9, 10.0)


def test_too_few_faults_give_no_mttf() -> None:
    told = review(of(jobs=(job(device_models=("H100",)),), incidents=(incident(),))).failures
    (model,) = told.by_device_model
    assert model.mttf_h is None and "too few" in model.note and model.low_h is not None


@pytest.mark.parametrize(
    ("ranks", "name"), [(1, "1–7"), (7, "1–7"), (8, "8–63"), (4096, "4096–32767"), (100_000, "32768+")]
)
def test_sizes(ranks: int, name: str) -> None:
    assert size_of(ranks) == name


def test_weeks_begin_on_monday() -> None:
    monday = 1_764_547_200.0 - DAY_S  # 2025-11-30 is a Sunday, 12-01 a Monday
    assert week_of(monday + DAY_S) == monday + DAY_S
    assert week_of(monday) == monday + DAY_S - WEEK_S


def test_a_bad_rack_is_told_from_chance() -> None:
    nodes = {f"r{i}": 10 for i in range(10)}
    even = compare_racks({f"r{i}": 5 for i in range(10)}, nodes)
    assert {x.verdict for x in even} == {"as chance"}
    bad = compare_racks({"r0": 20, **{f"r{i}": 3 for i in range(1, 10)}}, nodes)
    assert [(x.rack, x.verdict) for x in bad if x.verdict != "as chance"] == [("r0", "more than chance")]
    assert {x.verdict for x in compare_racks({"r0": 3}, nodes)} == {"too few"}
    assert {x.verdict for x in compare_racks({"r0": 30}, {"r0": 10})} == {"the only one"}
    assert [x.verdict for x in compare_racks({"r9": 30}, {"r0": 4, "r1": 4}) if x.rack == "r9"] == ["size unknown"]


def test_a_root_cause_counts_once_however_many_incidents_it_made() -> None:
    hits = [incident(f"i{n}", fault="f", nodes=("n1",), racks=("r0",)) for n in range(5)]
    twice = (fault("f", rack="r0", serial="S1"), fault("g", rack="r0", serial="S1", node="n2"))
    fleet = Fleet(nodes=4, nodes_by_rack={"r0": 2, "r1": 2})
    told = review(of(jobs=(job(),), incidents=tuple(hits), faults=twice, fleet=fleet))
    assert {x.rack: x.failures for x in told.failures.racks} == {"r0": 2, "r1": 0}
    assert [(x.kind, x.name, x.failures) for x in told.lemons] == [("serial", "S1", 2)]


def test_first_restart_and_by_whom() -> None:
    found = [incident(f"i{n}", attempts=1 + (n == 0), approvals=int(n == 1), state="escalated" if n == 2 else "recovered")
             for n in range(6)]  # fmt: skip
    told = review(of(jobs=(job(),), incidents=tuple(found))).recoveries
    assert (told.first_restart.hits, told.first_restart.n) == (4, 6)
    assert (told.alone.hits, told.alone.n) == (4, 5)
    (whole,) = told.stages
    assert (whole.stage, whole.every.n, whole.alone.n, whole.helped.n) == ("all", 5, 4, 1)


def test_no_fault_costs_nothing_and_is_in_no_rate() -> None:
    told = review(of(jobs=(job(),), incidents=(incident(state="no_fault", downtime_s=0.0),)))
    assert told.cost.n == told.failures.n == told.recoveries.n == 0


def test_losses_add_up_over_every_grouping() -> None:
    cost = review(month()).cost
    for rows in (cost.by_cause, cost.by_class, cost.by_model):
        assert math.isclose(math.fsum(x.gpu_h for x in rows), cost.gpu_h)
        assert sum(x.incidents for x in rows) == cost.n
    assert math.isclose(math.fsum(x.lost_gpu_h for x in cost.by_day), cost.gpu_h)


def test_slower_writes_are_seen_beside_each_jobs_own_median() -> None:
    saves = [SaveRecord(job=f"j{j}", at_s=T0 + day * DAY_S, step=day, duration_s=10.0 ** j * (1 + 0.02 * day), size_bytes=1)
             for j in range(3) for day in range(20)]  # fmt: skip
    told = review(of(since_s=T0, until_s=T0 + 30 * DAY_S, saves=tuple(saves))).saves
    assert told.trend.verdict == "rising" and told.trend.per_day is not None
    assert math.isclose(told.trend.per_day, 0.02 / 1.19, rel_tol=0.05)
    assert [x.trend.verdict for x in told.jobs] == ["rising"] * 3


def test_tenants_are_apart() -> None:
    material = month()
    red = review(material, "red")
    assert red.time.jobs and {x.tenant for x in red.time.jobs} == {"red"}
    assert red.cost.n < review(material).cost.n
    assert not red.trust.rules and not red.repairs.orders
    assert {x.verdict for x in red.failures.racks} == {"size unknown"}
    both = review(material, "red,blue")
    assert both.cost.n == review(material).cost.n


def test_one_job_alone() -> None:
    material = month()
    alone = review(of_job(material, "job3"))
    assert [x.job for x in alone.time.jobs] == ["job3"]
    assert alone.cost.n == sum(x.job == "job3" and x.state != "no_fault" for x in material.incidents)
    with pytest.raises(LookupError):
        of_job(material, "none")


def test_repairs_are_followed_to_their_end() -> None:
    orders = (
        Repair(resource="a", opened_s=10.0, closed_s=30.0, became="validating", in_service_s=40.0),
        Repair(resource="b", opened_s=20.0),
        Repair(resource="c", opened_s=200_000.0),
    )
    told = review(of(repairs=orders)).repairs
    assert (told.opened, told.open, told.oldest_s, told.returned.hits) == (2, 1, 99_980.0, 1)


def test_the_review_is_its_json() -> None:
    found = review(month())
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
