"""Drills in reviews: no figure of failures counts them, their cost has a name, and a report of one says so first."""

import msgspec
import pytest

from keepstep.core.drill import Mark
from keepstep.review import papers
from keepstep.review.compute import of_job, review
from keepstep.review.document import Plot, Table, Text, render_md
from keepstep.review.figures import Material
from keepstep.review.incident_paper import incident_paper
from keepstep.review.postmortem import Account, postmortem
from keepstep.review.questions import answers
from keepstep.review.records import DrillRecord, IncidentRecord

from .made import incident, job, month

BLAMED = Mark(question="blamed", good=False, text="rank 3 on n1 was not named, but: rank 2 died")
NOTICED = Mark(question="detected", good=True, text="noticed after 0.30 s")


def drill(number: int, **fields: object) -> DrillRecord:
    known = {
        "job": "j",
        "tenant": "default",
        "kind": "kill-rank",
        "by": "ann",
        "state": "passed",
        "target": "rank 3 on n1",
    }
    id = f"drill-{number:04d}"
    return DrillRecord(**{"id": id, "ended_s": 130.0, "incident": f"d{number}", **known, **fields})  # type: ignore[arg-type]


def rehearsed(number: int, **fields: object) -> IncidentRecord:
    return incident(f"d{number}", **{"drill": f"drill-{number:04d}", "attempts": 2, **fields})


def of(**fields: object) -> Material:
    return Material(**{"since_s": 0.0, "until_s": 100_000.0, **fields})  # type: ignore[arg-type]


def test_drills_are_in_no_figure_of_failures_and_cost_under_a_name_of_their_own() -> None:
    """A month with and without a drill on every job differs in time and in the drills only."""
    plain = month()
    extra = [
        rehearsed(n, job=x.job, tenant=x.tenant, nodes=x.nodes, racks=x.racks, opened_s=x.opened_s + 400.0,
                  closed_s=x.opened_s + 430.0, ranks=x.ranks, redone_s=5.0)
        for n, x in enumerate(plain.incidents[:60])
    ]  # fmt: skip
    without = review(plain)
    told = review(msgspec.structs.replace(plain, incidents=(*plain.incidents, *extra)))
    for part in ("cost", "failures", "recoveries", "trust", "lemons", "repairs", "saves"):
        assert getattr(told, part) == getattr(without, part), part
    badput = {(x.category, x.cause): x.gpu_h for x in told.time.badput}
    assert badput["infrastructure_recovery", "drill"] > 0 and badput["wasted_progress", "drill"] > 0
    assert told.time.ettr is not None and without.time.ettr is not None and told.time.ettr < without.time.ettr
    assert [x.faults for x in sorted(told.time.jobs, key=lambda x: x.job)] == [
        x.faults for x in sorted(without.time.jobs, key=lambda x: x.job)
    ]
    assert told.drills.recovery_s.n == 60 and told.drills.gpu_h > 0


def test_the_figures_of_drills() -> None:
    late = [drill(n, detected_after_s=float(n)) for n in range(1, 9)]
    failed = drill(9, state="failed", detected_after_s=90.0, marks=(BLAMED,))
    missed = drill(10, state="failed", incident="")
    off = drill(11, state="called_off", incident="")
    before = drill(12, ended_s=-1.0)
    told = review(
        of(
            jobs=(job(),),
            incidents=tuple(rehearsed(n, downtime_s=10.0 * n) for n in range(1, 10)),
            drills=(*late, failed, missed, off, before),
        )
    ).drills
    assert (told.n, told.passed.hits, told.called_off) == (10, 8, 1)
    assert (told.detection_s.n, told.detection_s.p50, told.detection_s.max) == (9, 5.0, 90.0)
    assert (told.recovery_s.p50, told.recovery_s.max) == (50.0, 90.0)
    assert told.gpu_h == pytest.approx(8 * 450.0 / 3600)
    assert [x.id for x in told.latest][:2] == ["drill-0011", "drill-0010"] and len(told.latest) == 11


def test_drills_of_others_are_not_told() -> None:
    found = of(jobs=(job(), job("k", tenant="red")), drills=(drill(1), drill(2, job="k", tenant="red")))
    assert [x.id for x in review(found, "red").drills.latest] == ["drill-0002"]
    assert [x.id for x in review(of_job(found, "j")).drills.latest] == ["drill-0001"]


def test_the_question_is_answered_and_the_paper_has_a_section() -> None:
    found = review(of(jobs=(job(),), drills=(drill(1), drill(2, state="failed", reason=BLAMED.text))))
    sentence = next(x.sentence for x in answers(found) if x.key == "drills")
    assert sentence == "1 of 2 drills passed. Failed: drill-0002."
    for paper in (papers.week_paper(found), papers.job_paper(found, "j")):
        text = render_md(paper)
        assert (
            "| drill-0002 | j | kill-rank | rank 3 on n1 |" in text and "| failed | d2 | rank 3 on n1 was not" in text
        )
    assert "How drills went" not in render_md(papers.week_paper(review(of())))


def test_a_time_without_a_fault_is_one_sentence_each() -> None:
    """Also where drills were recovered from."""
    found = review(of(jobs=(job(),), incidents=(rehearsed(1),), drills=(drill(1),)))
    for paper in (papers.week_paper(found), papers.job_paper(found, "j")):
        said = {section.title: section.blocks for section in paper.sections}
        assert said["What faults cost"] == (Text("No fault incident ended in this time."),)
        assert said["How recoveries went"] == (Text("No recovery ended in this time."),)
        assert [type(block) for block in said["Where time went"]] == [Table, Plot, Table]
    nothing = papers.week_paper(review(of()))
    assert not [block for section in nothing.sections for block in section.blocks if isinstance(block, Plot)]


def test_the_report_of_a_drill_says_so_first() -> None:
    told = Account(
        record=rehearsed(1, cause="application"),
        evidence=(),
        decisions=(),
        drill=drill(1, state="failed", marks=(NOTICED, BLAMED)),
    )
    text = render_md(incident_paper(postmortem(told)))
    assert text.split("## ")[1].startswith("A drill")
    assert "it was drill-0001 (kill-rank against rank 3 on n1, asked for by ann), failed" in text
    assert "| blamed | bad | rank 3 on n1 was not named, but: rank 2 died |" in text
    assert [x.why for x in postmortem(told).follow_up] == [BLAMED.text]
    forgotten = msgspec.structs.replace(told, drill=None)
    assert "it was drill-0001, whose marks are in the journal" in render_md(incident_paper(postmortem(forgotten)))
