"""Reports: structure held by golden texts, pages that need nothing from anywhere, and nothing smuggled in."""

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from keepstep.review import papers
from keepstep.review.compute import of_job, review
from keepstep.review.document import Document, Pairs, Plot, Section, Table, Text, render_html, render_md
from keepstep.review.incident_paper import incident_paper
from keepstep.review.postmortem import Account, Decided, Evidence, Order, Point, postmortem

from .made import fault, incident, month

GOLDEN = Path(__file__).parent / "golden"
EVIL = '<script>alert(1)</script> | `x` ![a](http://evil/) "quoted" \n# no heading'


def account() -> Account:
    """A device that failed, was isolated and replaced; the curve of the job is known."""
    record = incident(
        "inc-0007", summary="device/n1/0: double-bit error", resources=("device/n1/0",), nodes=("n1",), serials=("S1",),
        confidence=0.9, failure_class="gpu_memory", opened_s=1_790_000_000.0, closed_s=1_790_000_031.0, downtime_s=25.0,
        redone_s=8.0, lost_steps=4, step_before=104, restored_step=100, restored_from="ram", attempts=2, approvals=1,
        checkpoint_age_s=40.0, stage_s={"open": 1.0, "isolating": 5.0, "waiting": 4.0, "restarting": 9.0, "verifying": 12.0},
        replaced=("n1",), verdict="recovered",
    )  # fmt: skip
    launch = (Order(number=9, kind="Launch", node="n2", answer="Launched", took_s=3.0),)
    steps = [
        (20, 0.0, "correlate", "an Xid on device/n1/0"), (21, 1.0, "diagnose", "device (90%)"), (22, 3.0, "isolate", "fencing"),
        (25, 6.0, "isolate", "generation 1 is dead everywhere"), (26, 7.0, "select", "step 100 from ram is verified"),
        (27, 10.0, "place", "generation 2 on n2"), (28, 10.0, "restart", "launching"),
        (30, 19.0, "restart", "generation 2 runs"),
        (33, 31.0, "verify", "all ranks progress"), (34, 31.0, "review", "recovered"),
    ]  # fmt: skip
    return Account(
        record=record,
        evidence=(
            Evidence(entry=19, source="kmsg", text="Xid 48", supports=True),
            Evidence(entry=18, source="peers", text="no other node saw it", supports=False),
        ),
        decisions=tuple(
            Decided(entry=n, after_s=at, stage=stage, reason=why, orders=launch if n == 28 else ())
            for n, at, stage, why in steps
        ),
        began_s=1_789_999_998.0,
        before=tuple(Point(-10.0 + i, 94 + i, 2.0, 2.0) for i in range(10)),
        after=tuple(Point(25.0 + 2 * i, 101 + i, 2.1, 2.0) for i in range(12)),
        root=fault("flt-1", rack="r1", serial="S1"),
        repeats=2,
    )


DOCUMENTS = {
    "week": lambda: papers.week_paper(review(month())),
    "job": lambda: papers.job_paper(review(of_job(month(), "job3")), "job3"),
    "incident": lambda: incident_paper(postmortem(account())),
    "empty": lambda: papers.week_paper(
        review(msgspec.structs.replace(month(), incidents=(), jobs=(), faults=(), saves=()))
    ),
}


def golden(name: str, text: str) -> None:
    """Set KEEPSTEP_WRITE_GOLDEN=1 to write the texts anew; then read the difference."""
    path = GOLDEN / name
    if os.environ.get("KEEPSTEP_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


class Outline(HTMLParser):
    """Headings, columns, terms and captions; no number of any table."""

    KEPT = ("title", "h1", "h2", "th", "dt", "figcaption")

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]
        assert tag != "script" and not [name for name, _ in attrs if name.startswith("on")]
        if tag == "svg":
            self.lines.append("svg")

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open and self.open[-1] in self.KEPT and "svg" not in self.open:
            self.lines.append(f"{self.open[-1]}: {data.strip()}")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_outline_of_a_page(name: str) -> None:
    outline = Outline()
    page = render_html(DOCUMENTS[name]())
    outline.feed(page)
    assert outline.addresses == []
    assert not re.search(r"url\((?!#)|@import", page)
    golden(f"{name}.outline.txt", "\n".join(outline.lines) + "\n")


def test_the_markdown_of_an_incident() -> None:
    golden("incident.md", render_md(DOCUMENTS["incident"]()))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tables_of_markdown_are_whole(name: str) -> None:
    width = 0
    for line in render_md(DOCUMENTS[name]()).splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (width and cells) or cells == width
        width = cells


def test_pictures_of_markdown_lie_beside_it() -> None:
    kept: dict[int, Plot] = {}

    def keep(number: int, plot: Plot) -> str:
        kept[number] = plot
        return f"week-{number}.svg"

    text = render_md(DOCUMENTS["week"](), keep)
    assert list(kept) == list(range(1, len(kept) + 1)) and len(kept) >= 6
    assert all(f"(<week-{number}.svg>)" in text for number in kept)


def test_what_comes_from_outside_stays_text() -> None:
    paper = Document(
        title=EVIL, subtitle=EVIL, made_of=EVIL,
        sections=(Section(EVIL, (Text(EVIL), Table((EVIL, "b"), ((EVIL, "1"),)), Pairs(((EVIL, EVIL),)))),),
    )  # fmt: skip
    outline = Outline()
    outline.feed(render_html(paper))
    assert [line.partition(":")[0] for line in outline.lines] == ["title", "h1", "h2", "th", "th", "dt"]
    text = render_md(paper)
    assert not re.search(r"(?<!\\)[<>`]|(?<!\\)!?\[", text)
    assert [line[:5] for line in text.splitlines() if line.startswith("#")] == ["# \\<s", "## \\<"]


def test_the_way_of_an_incident() -> None:
    told = postmortem(account())
    way = {x.what: (x.after_s, x.how) for x in told.moments}
    assert way["fault"] == (-2.0, "estimated") and way["detected"] == (0.0, "measured")
    assert way["isolated"] == (6.0, "measured") and way["restored"] == (19.0, "measured")
    assert way["caught up"] == (31.0, "measured"), "step 104 is seen on the curve 31 s after"
    blind = postmortem(msgspec.structs.replace(account(), after=()))
    assert {x.what: (x.after_s, x.how) for x in blind.moments}["caught up"] == (33.0, "estimated")
    asked = " ".join(x.what for x in told.follow_up)
    assert "Repair or retire S1, n1" in asked and "policy" in asked and "first restart" in asked


def test_an_incident_that_was_given_up_says_so() -> None:
    lost = msgspec.structs.replace(incident(), state="escalated", cause="unknown", verdict="escalated")
    told = postmortem(Account(record=lost, evidence=(), decisions=()))
    assert {x.what for x in told.moments if x.after_s is None} >= {"first step", "caught up", "verified"}
    assert [x.what for x in told.follow_up][:2] == ["Find out why j was not recovered", "Find the cause"]
    assert dict(told.answers)["How long did it take?"] == "20 s until it was given up"


def test_why_it_was_given_up_stands_in_its_end_and_a_person_has_to_act() -> None:
    lost = msgspec.structs.replace(incident(), state="escalated", verdict="escalated", checkpoint_age_s=None)
    steps = [(1, "correlate", "RankExited"), (2, "diagnose", "12 restarts: the budget"), (3, "review", "escalated")]
    told = postmortem(
        Account(
            record=lost, evidence=(),
            decisions=tuple(Decided(entry=n, after_s=float(n), stage=stage, reason=why) for n, stage, why in steps),
        )
    )  # fmt: skip
    answers = dict(told.answers)
    assert answers["How did it end?"] == "escalated: 12 restarts: the budget"
    assert told.follow_up[0].why == "12 restarts: the budget"
    assert answers["Did a person have to act?"] == "no; it was given up, and is a person's since then"
    assert answers["How old was the newest checkpoint?"].startswith("none was known")


def test_the_diagnosis_is_the_one_that_was_acted_on() -> None:
    """What is heard between fence and launch is looked at as well, and is not when the fault was understood."""
    base = account()
    fence = (Order(number=7, kind="Fence", node="n1", answer="Fenced", took_s=1.0),)
    fenced = tuple(msgspec.structs.replace(x, orders=fence) if x.entry == 22 else x for x in base.decisions)
    late = Decided(entry=24, after_s=5.0, stage="diagnose", reason="the recovery goes on")
    told = postmortem(msgspec.structs.replace(base, decisions=tuple(sorted((*fenced, late), key=lambda x: x.entry))))
    assert next(x.after_s for x in told.moments if x.what == "diagnosed") == 1.0
    unfenced = postmortem(
        msgspec.structs.replace(base, decisions=tuple(sorted((*base.decisions, late), key=lambda x: x.entry)))
    )
    assert next(x.after_s for x in unfenced.moments if x.what == "diagnosed") == 5.0, "without a fence: the last"


def test_a_step_time_that_was_not_measured_yet_is_not_drawn_as_nought() -> None:
    """The first point of a new generation has none."""
    fresh = msgspec.structs.replace(account(), after=(Point(25.0, 101, 2.1, 0.0), *account().after[1:]))

    def plot(told: Account) -> str:
        blocks = [b for section in incident_paper(postmortem(told)).sections for b in section.blocks]
        (found,) = [b.svg for b in blocks if isinstance(b, Plot) and b.caption.startswith("Step time")]
        return found

    lacking = msgspec.structs.replace(account(), after=account().after[1:])
    assert plot(fresh) == plot(lacking) != plot(account())
