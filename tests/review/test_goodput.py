"""Where time went: the parts add up to the whole, whatever the records say."""

import math
import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.review.compute import review
from keepstep.review.figures import Material
from keepstep.review.goodput import time_of
from keepstep.review.records import IncidentRecord, JobRecord

from .made import incident, incidents, job, materials


@given(materials())
@settings(max_examples=50, deadline=None)
def test_badput_and_productive_time_add_up(material: Material) -> None:
    time = review(material).time
    lost = math.fsum(x.gpu_h for x in time.badput)
    assert math.isclose(time.productive_gpu_h + lost, time.total_gpu_h, abs_tol=1e-9)
    for one in time.jobs:
        parts = one.queue_s + one.startup_s + one.recovery_s + one.wasted_s + one.productive_s
        assert math.isclose(parts, one.total_s, abs_tol=1e-6)
        assert 0 <= one.productive_s <= one.total_s
        assert one.ettr is not None and -1e-9 <= one.ettr <= 1 + 1e-9
    by_jobs = math.fsum(x.ranks * x.productive_s for x in time.jobs) / 3600
    assert math.isclose(by_jobs, time.productive_gpu_h, abs_tol=1e-9)


@given(materials(), incidents())
@settings(max_examples=50, deadline=None)
def test_one_more_incident_never_makes_time_productive(material: Material, more: tuple[IncidentRecord, ...]) -> None:
    before = review(material)
    added = tuple(msgspec.structs.replace(x, id=f"more-{x.id}", kind="fault") for x in more)
    after = review(msgspec.structs.replace(material, incidents=(*material.incidents, *added)))
    assert after.time.productive_gpu_h <= before.time.productive_gpu_h + 1e-9
    assert after.time.total_gpu_h == before.time.total_gpu_h
    assert after.cost.gpu_h >= before.cost.gpu_h
    assert after.recoveries.n >= before.recoveries.n


@given(materials(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_records_says_nothing(material: Material, dice: random.Random) -> None:
    def mixed(records: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(dice.sample(records, len(records)))

    names = ("incidents", "jobs", "faults", "saves", "precision", "repairs")
    other = msgspec.structs.replace(material, **{name: mixed(getattr(material, name)) for name in names})
    assert msgspec.json.encode(review(other)) == msgspec.json.encode(review(material))


@given(materials())
@settings(max_examples=40, deadline=None)
def test_it_is_what_a_clock_that_looks_each_second_says(material: Material) -> None:
    """Whole seconds, painted one by one, by no arithmetic of ours."""
    told = {x.job: x for x in time_of(material.jobs, material.incidents, material.since_s, material.until_s).jobs}
    for one in material.jobs:
        painted = _painted(one, [x for x in material.incidents if x.job == one.id], material)
        if one.ranks and painted:
            assert painted.count("productive") == told[one.id].productive_s
            assert painted.count("recovery") == told[one.id].recovery_s
            assert painted.count("wasted") == told[one.id].wasted_s


def _painted(one: JobRecord, found: list[IncidentRecord], material: Material) -> list[str]:
    end = int(min(material.until_s, one.finished_s if one.finished_s is not None else material.until_s))
    begin, first = int(one.submitted_s), one.running_since_s
    colours = ["productive" if first is not None and second >= first else "before" for second in range(begin, end)]
    for x in sorted(found, key=lambda x: (x.opened_s, x.id)):
        if x.kind != "fault" or x.opened_s >= end or x.closed_s < begin:
            continue
        opened = max(int(x.opened_s), begin)
        undone = x.redone_s
        frontier = opened
        while frontier < end and colours[frontier - begin] == "recovery":
            frontier += 1
        for second in range(min(frontier, end) - 1, begin - 1, -1):
            if undone > 0 and colours[second - begin] == "productive":
                colours[second - begin] = "wasted"
                undone -= 1
        for second in range(opened, min(end, int(x.opened_s + x.downtime_s))):
            if colours[second - begin] != "recovery":
                colours[second - begin] = "recovery"
    return colours[max(0, int(material.since_s) - begin) :]


def test_queue_then_start_up_then_work() -> None:
    start = incident(
        "s", kind="start", opened_s=0.0, closed_s=50.0, stage_s={"waiting": 30.0, "restarting": 12.0, "verifying": 8.0}
    )
    told = time_of([job(running_since_s=50.0, finished_s=150.0)], [start], 0.0, 1000.0)
    (one,) = told.jobs
    assert (one.queue_s, one.startup_s, one.productive_s) == (30.0, 20.0, 100.0)
    assert told.ettr == 100 / 150 and told.goodput == 1.0


def test_a_span_cuts_what_lies_outside() -> None:
    hit = incident(opened_s=90.0, downtime_s=20.0, redone_s=10.0)
    told = time_of([job(running_since_s=0.0, submitted_s=0.0)], [hit], 100.0, 200.0)
    assert {(x.category, x.cause): x.gpu_h * 3600 for x in told.badput} == {("infrastructure_recovery", "device"): 80.0}
    assert told.total_gpu_h * 3600 == 800.0


def test_no_job_is_no_figure() -> None:
    told = time_of([], [], 0.0, 1.0)
    assert told.ettr is None and told.goodput is None and told.note
