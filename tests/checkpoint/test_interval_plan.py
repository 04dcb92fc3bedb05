"""The explanation: every number of the choice, what is assumed, what is not survived, what would change it."""

import itertools

import pytest
from msgspec.structs import replace

from keepstep.checkpoint.interval.estimate import SCOPES, Figure, Scope, believe, observed
from keepstep.checkpoint.interval.plan import Inputs, TierInputs, duration, explain, percent, summary, tables, text

DAY_S = 86_400.0


def figure(value_s: float, samples: int = 20) -> Figure:
    return Figure(value_s=value_s, samples=samples, source="last saves" if samples else "80 GB at 1 GB/s")


def tier(name: str, survives: tuple[Scope, ...], stall_s: float, durable_s: float, **more: float) -> TierInputs:
    return TierInputs(
        name=name, survives=survives, stall=figure(stall_s), durable=figure(durable_s), restart=figure(90), **more
    )


MEMORY = tier("memory", ("process",), 0.3, 0.3)
PEER = tier("peer", ("process", "node"), 0.05, 3)
DISK = tier("disk", ("process", "power"), 0.0, 20)
STORE = tier("store", SCOPES, 0.2, 120)
INPUTS = Inputs(
    job="gpt", tiers=(MEMORY, PEER, DISK, STORE), beliefs=tuple(believe(scope, 128) for scope in SCOPES), step_s=2.0,
    accelerators=1024,
)  # fmt: skip


def test_every_tier_gets_an_interval_and_answers_its_failures() -> None:
    plan = explain(INPUTS)
    assert [chosen.name for chosen in plan.choice.tiers] == ["memory", "peer", "disk", "store"]
    assert plan.division.scopes == (("process",), ("node",), ("power",), ("site",))
    assert all(below <= above for below, above in itertools.pairwise(plan.choice.intervals_s))
    assert plan.warnings == ()


def test_tables_are_rectangular_and_complete() -> None:
    plan = explain(INPUTS)
    choice, costs, failures, changes = tables(plan)
    for table in (choice, costs, failures, changes):
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(cell, str) and cell for row in table.rows for cell in row)
    assert [row[0] for row in choice.rows] == ["memory", "peer", "disk", "store"]
    assert choice.rows[0][2] == str(round(plan.choice.intervals_s[0] / 2.0))
    assert len(costs.rows) == 12
    assert "Llama 3" in failures.rows[1][-1]


def test_the_text_has_every_table_and_the_cost() -> None:
    plan = explain(INPUTS)
    written = text(plan)
    for title in ("What was chosen", "What a save costs", "How often failures come", "What would change it"):
        assert title in written
    assert written.startswith(summary(plan))
    assert percent(plan.choice.overhead) in summary(plan)
    assert f"{1024 * 24 * plan.choice.overhead:.1f} accelerator-hours a day" in summary(plan)
    assert all(line == line.rstrip() for line in written.splitlines())


def test_what_is_assumed_is_said() -> None:
    guessed = replace(STORE, stall=figure(0.2, 0), durable=figure(120, 0))
    plan = explain(replace(INPUTS, tiers=(MEMORY, PEER, DISK, guessed)))
    assert "store: stall and write assumed, not measured yet" in plan.warnings
    assert "warning: store: stall" in text(plan)
    assert [row[3] for row in tables(plan)[1].rows if row[0] == "store"] == ["assumed", "assumed", "20 times"]


def test_a_failure_that_no_tier_survives_is_a_warning() -> None:
    plan = explain(replace(INPUTS, tiers=(MEMORY, DISK)))
    assert plan.division.uncovered == ("node", "site")
    assert plan.warnings[0].startswith("no tier survives node failures")
    assert "the run would start from nothing" in plan.warnings[0]


def test_what_would_change_it_has_a_price_for_everything() -> None:
    plan = explain(INPUTS)
    changes = {change.what: change for change in plan.changes}
    assert {f"{name} half as often" for name in ("memory", "peer", "disk", "store")} <= set(changes)
    twice_same = changes["failures twice as frequent, same intervals"].overhead
    twice_anew = changes["failures twice as frequent, chosen anew"].overhead
    assert twice_same is not None
    assert twice_anew is not None
    assert plan.choice.overhead < twice_anew <= twice_same
    without = changes["without peer, chosen anew"].overhead
    assert without is not None
    assert without > plan.choice.overhead
    assert changes["without store: nothing survives site"].overhead is None


def test_without_the_first_tier_the_next_pays_for_the_snapshot() -> None:
    changes = {change.what: change for change in explain(INPUTS).changes}
    dearer = changes["without memory, chosen anew"].overhead
    assert dearer is not None
    assert dearer > explain(INPUTS).choice.overhead


def test_a_measured_failure_rate_moves_the_interval() -> None:
    calm = explain(INPUTS)
    stormy = tuple(
        observed(belief, 200, 10 * DAY_S) if belief.prior.scope == "process" else belief for belief in INPUTS.beliefs
    )
    plan = explain(replace(INPUTS, beliefs=stormy))
    assert plan.choice.intervals_s[0] < calm.choice.intervals_s[0] / 1.5
    assert tables(plan)[2].rows[0][4].startswith("200 in ")


def test_intervals_in_use_are_kept_and_it_is_said() -> None:
    best_s = explain(INPUTS).choice.intervals_s
    plan = explain(replace(INPUTS, current_s=tuple(s * 1.1 for s in best_s)))
    assert plan.choice.kept
    assert "the intervals in use are kept" in summary(plan)


def test_an_interval_is_never_below_a_step() -> None:
    cheap = tier("memory", ("process",), 0.0, 0.01)
    plan = explain(replace(INPUTS, tiers=(cheap, STORE), step_s=7.0))
    assert plan.choice.intervals_s[0] == 7.0
    assert tables(plan)[0].rows[0][2] == "1"


def test_a_declared_maximum_that_the_writes_do_not_allow_is_a_warning() -> None:
    slow = replace(STORE, durable=figure(5000), most_s=600)
    warnings = explain(replace(INPUTS, tiers=(MEMORY, PEER, DISK, slow))).warnings
    assert any(warning.startswith("store: declared to be saved every 10 min at least") for warning in warnings)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.3, "0.3 s"), (42, "42 s"), (750, "12.5 min"), (11_160, "3.1 h"), (5.2 * DAY_S, "5.2 d"), (9.96, "10 s")],
)
def test_durations_are_for_people(seconds: float, said: str) -> None:
    assert duration(seconds) == said
