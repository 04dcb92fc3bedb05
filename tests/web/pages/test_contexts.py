"""What pages are made from, without a browser: figures, words on buttons, the map, exports."""

import csv
import io
import math
from collections.abc import Callable

import msgspec
import pytest
from tests.core.build import JOB
from tests.web.site import START_S, big_books, story, viewer

from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.adapters.memory.journal import MemoryJournal
from keepstep.core import facts as f
from keepstep.core.access import OWNER, Principal, Role
from keepstep.core.decision import Entry
from keepstep.core.fold import fold
from keepstep.core.ids import JobId, ResourceId
from keepstep.core.incident import IncidentState
from keepstep.core.job import JobState
from keepstep.core.resource import Hold
from keepstep.core.vitals import JobVitals, RankSample, Vitals
from keepstep.review.compute import review as compute
from keepstep.review.drawing import label
from keepstep.review.wording import duration
from keepstep.server import fleet_queries
from keepstep.server.desk import Desk, UnknownSubject
from keepstep.server.queries import answer
from keepstep.server.replay import replay
from keepstep.server.review_queries import material_of, remediations
from keepstep.web.pages import acts, units
from keepstep.web.pages.entries import entry_line
from keepstep.web.pages.exports import review_csv
from keepstep.web.pages.incident import incident_page
from keepstep.web.pages.incidents import listing
from keepstep.web.pages.intervals import optimum
from keepstep.web.pages.job import job_page
from keepstep.web.pages.now import now
from keepstep.web.pages.rendering import environment
from keepstep.web.pages.resource import history
from keepstep.web.pages.review import review_page, span_of

WAITING = "inc-0005"
CARD = "inc-0003"


@pytest.fixture
def desk() -> Callable[..., Desk]:
    journal = MemoryJournal()
    for at_s, record in story():
        journal.append(at_s, [record])
    books = replay(journal, MemoryArchive())

    def seen_by(principal: Principal = OWNER, vitals: Vitals | None = None) -> Desk:
        return Desk(books, vitals, books.history.last_s, journal).seen_by(principal)

    return seen_by


# ---- figures


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "–"), (0.0, "0 s"), (0.354, "0.35 s"), (42.4, "42 s"), (59.7, "1 min"), (750, "12 min 30 s"),
        (11_400, "3 h 10 min"), (439_200, "5 d 2 h"), (-3.0, "-3 s"),
    ],
)  # fmt: skip
def test_a_duration_has_two_units_at_most(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


def test_pages_and_reports_spell_a_duration_alike() -> None:
    assert environment().from_string("{{ 750 | duration }}").render() == label(750, "seconds") == "12 min 30 s"


def test_a_time_is_written_in_utc_for_a_browser_to_turn() -> None:
    html = units.time(1_700_000_000.0)
    assert "datetime='2023-11-14T22:13:20Z'" in html and ">2023-11-14 22:13:20 UTC<" in html
    assert "3 min 20 s ago" in units.ago(1_700_000_000.0, 1_700_000_200.0)


@pytest.mark.parametrize(
    ("value", "said"), [(0.001468, "0.00147"), (999.6, "1e+03"), (162_907.3, "162,907"), (None, "–")]
)
def test_a_number_keeps_its_leading_digits(value: float | None, said: str) -> None:
    assert units.number(value) == said


# ---- now


def test_what_waits_for_a_person_comes_first_with_both_buttons(desk: Callable[..., Desk]) -> None:
    seen = now(desk())
    assert [i.id for i in seen.waiting] == [WAITING] and seen.open == ()
    waiting = seen.waiting[0]
    assert [act.label for act in waiting.acts] == ["Approve", "Deny", "Hold: node/b0"]
    assert waiting.acts[2].post.endswith("/resources/node/b0/hold") and waiting.acts[2].asks_reason
    assert waiting.acts[2].follows[0] == "No new work is placed on node/b0."
    assert [s.name for s in waiting.road if s.is_here] == ["isolating"]
    assert waiting.lost_nodes == ("b0",) and waiting.cause == "host_software"


def test_capacity_counts_what_there_is_and_the_spares(desk: Callable[..., Desk]) -> None:
    seen = now(desk()).capacity
    assert seen.nodes == 5 and seen.devices == 9
    assert sum(c.nodes + c.devices for c in seen.states) == 14
    assert seen.held == 1 and seen.spares == 2


def test_capacity_is_counted_once_for_all_who_look_until_the_journal_grows(desk: Callable[..., Desk]) -> None:
    looked = desk()
    first = now(looked).capacity
    assert now(desk(viewer("default"))).capacity is first, "a count for each viewer looks at the whole fleet each time"
    free = next(item.id for item in looked.world.resources.values() if not item.holds)
    fold(looked.world, f.HoldRequested(resource=free, source="person:b", by="b"), looked.now_s)
    assert now(looked).capacity.held == 2


def test_the_breaker_counts_recent_isolations(desk: Callable[..., Desk]) -> None:
    breaker = now(desk()).breaker
    assert (breaker.used, breaker.limit, breaker.tripped) == (1, 3, False)


def test_another_tenants_jobs_and_incidents_are_not_there(desk: Callable[..., Desk]) -> None:
    seen = now(desk(viewer("default")))
    assert seen.waiting == () and [job.id for job in seen.jobs] == [JOB]
    with pytest.raises(UnknownSubject):
        incident_page(desk(viewer("default")), WAITING)
    with pytest.raises(UnknownSubject):
        job_page(desk(viewer("default")), "blue-1")
    assert not fleet_queries.find(desk(viewer("default")), "blue-1").finds
    assert fleet_queries.find(desk(viewer("blue")), "blue-1").finds
    assert fleet_queries.fleet_node(desk(viewer("default")), "b0").runs[0].job == ""


# ---- words on buttons


def test_a_power_off_says_which_node_dies(desk: Callable[..., Desk]) -> None:
    approve, deny, _ = now(desk()).waiting[0].acts
    assert approve.follows[0] == "Powered off through its BMC: b0." and approve.weight == "danger"
    assert "ended with exit code 75" in deny.follows[0]
    assert approve.post == f"/api/v1/incidents/{WAITING}/approve" and approve.refused == ""


def test_a_start_from_nothing_says_how_much_is_given_up(desk: Callable[..., Desk]) -> None:
    world = desk().world
    incident = world.incidents[WAITING]  # type: ignore[index]
    incident.resume_at, incident.asks = IncidentState.SELECTING, ""
    follows = acts.approval_follows(incident, world.jobs[JobId("blue-1")], world)
    assert "started again at step 0" in follows[0] and "20 steps" in follows[1]


def test_an_open_breaker_says_what_is_quarantined(desk: Callable[..., Desk]) -> None:
    world = desk().world
    incident = world.incidents[CARD]  # type: ignore[index]
    incident.asks = "breaker"
    assert "device/n1/0" in acts.approval_follows(incident, world.jobs[JOB], world)[0]


def test_who_may_not_is_told_what_it_takes(desk: Callable[..., Desk]) -> None:
    approve, *_ = now(desk(viewer())).waiting[0].acts
    assert "viewer" in approve.refused and "approver" in approve.refused
    operator = Principal(name="olga", role=Role.OPERATOR, tenants=("blue",))
    (hold,) = acts.of_resource(desk().world.resources["device/n0/0"], operator)  # type: ignore[index]
    assert "bound to some tenants" in hold.refused


def test_ones_own_hold_can_be_lifted_and_anothers_cannot(desk: Callable[..., Desk]) -> None:
    held = desk().world.resources["device/n3/1"]  # type: ignore[index]
    eve = Principal(name="eve", role=Role.OPERATOR)
    assert [act.label for act in acts.of_resource(held, eve)] == ["Lift my hold"]
    assert [act.label for act in acts.of_resource(held, OWNER)] == ["Hold"]


# ---- incidents


def test_an_incident_page_tells_the_way_the_evidence_and_the_hashes(desk: Callable[..., Desk]) -> None:
    page = incident_page(desk(), CARD)
    moments = {m.what: m.after_s for m in page.after.moments}
    assert moments["detected"] == 0.0 and moments["caught up"] is not None
    assert page.way.svg.startswith("<svg") and page.after.evidence_for
    chain = {entry.seq: entry for entry in page.entries}
    assert all(len(entry.hash) == 64 for entry in page.entries) and len(chain) > 5
    assert page.after.cost.restored_step == 10 and len(page.trace) == 32


def test_journal_entries_are_not_for_viewers(desk: Callable[..., Desk]) -> None:
    page = incident_page(desk(viewer()), CARD)
    assert page.entries == () and "read journal" in page.entries_refused
    past = history(desk(viewer()), ("device/n1/0", "n1-gpu0"))
    assert past.entries == () and past.counts[0].signal == "xid.79"


@pytest.mark.parametrize(
    ("filters", "open_ones", "closed"),
    [
        ({}, [WAITING], [CARD, "inc-0002"]),
        ({"state": "open"}, [WAITING], []),
        ({"state": "recovered"}, [], [CARD, "inc-0002"]),
        ({"cause": "device"}, [], [CARD]),
        ({"q": "b0"}, [WAITING], []),
        ({"node": "n1"}, [], [CARD]),
        ({"node": "b0"}, [WAITING], []),
        ({"job": "blue-1"}, [WAITING], []),
        ({"until": "2023-11-13"}, [], []),
        ({"since": "2023-11-14"}, [WAITING], [CARD, "inc-0002"]),
    ],
)
def test_filters_say_what_is_listed(
    desk: Callable[..., Desk], filters: dict[str, str], open_ones: list[str], closed: list[str]
) -> None:
    found = listing(desk(), filters)
    assert [line.id for line in found.open] == open_ones
    assert [line.id for line in found.closed] == closed


@pytest.mark.parametrize(("filters", "said"), [({"since": "yesterday"}, "no day"), ({}, "no cursor")])
def test_a_wrong_filter_is_said_and_lists_nothing(
    desk: Callable[..., Desk], filters: dict[str, str], said: str
) -> None:
    found = listing(desk(), filters, cursor="" if filters else "x")
    assert said in found.mistake and found.closed == () and found.open == ()


def test_an_entry_is_a_line_with_its_hash(desk: Callable[..., Desk]) -> None:
    journal = desk().journal
    assert journal is not None
    (entry,) = journal.mentioning(["fact:HoldRequested"])
    line = entry_line(entry)
    assert line.name == "HoldRequested" and "reason smells of smoke" in line.text and line.hash == entry.hash


# ---- jobs


def test_the_strip_shows_who_is_slow(desk: Callable[..., Desk]) -> None:
    vitals = Vitals()
    samples = {
        rank: RankSample(rank=rank, phase="step", step=12, idle_s=0.1, phase_s=0.1, step_time_s=1.2 if rank == 3 else 1.0,
                         loss=math.nan, state="R", cpu_s=1.0)
        for rank in range(4)
    }  # fmt: skip
    vitals.jobs[JOB] = JobVitals(generation=3, ranks=samples)
    page = job_page(desk(vitals=vitals), JOB, rank_order="slowest")
    assert [cell.level for cell in page.strip] == [0, 0, 0, 4] and "1.20 x the median" in page.strip[3].label
    assert page.ranks[0].rank == 3 and page.nodes[0].slowest_s == 1.2
    assert [g.number for g in page.generations] == [3, 2, 1]
    assert [(c.tier, c.step) for c in page.checkpoints] == [("disk", 10)]


def test_a_save_that_every_node_told_stands_once_on_the_page(desk: Callable[..., Desk]) -> None:
    shown = desk()
    for seq, duration_s in enumerate((3.0, 7.0, 5.0), shown.world.seq + 1):
        save = f.CheckpointCommitted(job=JOB, generation=3, step=70, key="disk-70", world_size=4, duration_s=duration_s)
        shown.tallies.note(shown.world, Entry(seq=seq, at_s=shown.now_s, record=save))
    page = job_page(shown, JOB)
    assert [(c.step, c.held_by, c.duration_s) for c in page.checkpoints] == [(70, "disk-70", 7.0), (10, "disk-10", 0.5)]
    assert page.interval.cost_s == pytest.approx((0.5 + 7.0) / 2)


def test_memory_that_is_gone_is_not_shown(desk: Callable[..., Desk]) -> None:
    shown = desk()
    job = shown.world.jobs[JOB]
    for launcher in job.launchers.values():
        launcher.inventory = f.Inventory(ram=(f.RamOffer(step=48, generation=1, world_size=4, parts={}, held=()),))
    first, second, third, last = job.launchers.values()

    def in_memory() -> list[str]:
        return [c.held_by for c in job_page(shown, JOB).checkpoints if c.tier == "memory"]

    first.reachable, second.left, third.gone, last.reachable = False, True, "process_gone", True
    assert in_memory() == [f"1 node: {last.node}"]
    job.state = JobState.FINISHED
    assert in_memory() == []


def test_a_job_that_is_over_is_late_with_nothing_and_heard_by_nobody(desk: Callable[..., Desk]) -> None:
    shown = desk()
    shown.now_s += 1e6
    job = shown.world.jobs[JOB]
    job.commit_every_s = 10.0
    assert job_page(shown, JOB).line.late
    job.state = JobState.FINISHED
    page = job_page(shown, JOB)
    assert not page.line.late and {node.state for node in page.nodes if node.reachable} <= {"over"}


def test_one_is_no_plural(desk: Callable[..., Desk]) -> None:
    html = environment().from_string("{{ 1 | counted('node') }}, {{ 2048 | counted('node') }}").render()
    assert html == "1 node, 2,048 nodes"
    assert job_page(desk(viewer("blue")), "blue-1").elasticity == "1 node"


def test_the_optimum_is_youngs_and_says_where_its_inputs_come_from() -> None:
    found = optimum(600.0, [8.0], ["device", "application"], 86_400.0 * 10, 4)
    assert found.young_s == pytest.approx(math.sqrt(2 * 8.0 * found.mtbf_s))
    assert found.daly_s is not None and abs(found.daly_s - found.young_s) < 0.05 * found.young_s
    assert "2 faults in 10 days" in dict(found.inputs)["MTBF"]
    more = optimum(600.0, [8.0], ["device"] * 40, 86_400.0 * 10, 4)
    assert more.mtbf_s < found.mtbf_s / 5


@pytest.mark.parametrize(
    ("interval_s", "said"), [(None, "no interval yet"), (1e6, "less than half"), (1.0, "more than twice")]
)
def test_the_interval_is_judged_beside_its_optimum(interval_s: float | None, said: str) -> None:
    verdict = optimum(interval_s, [8.0, 0.0], [], 1000.0, 1).verdict
    assert said in verdict and verdict[0].isupper()
    assert optimum(interval_s, [0.0], [], 1000.0, 1).young_s is None


def test_a_save_in_the_background_is_not_said_to_cost_more_than_a_failure() -> None:
    found = optimum(1.0, [8.0], [], 1000.0, 1)
    assert "where a save stalls the loop for all of C" in found.verdict and "may well pay" in found.verdict
    assert dict(found.inputs)["C, cost of a save"] == "median of 1 write: at most that much stalls the loop"
    assert dict(found.inputs)["MTBF"].endswith("published for 1 node")


# ---- fleet


def test_the_parts_of_the_map_are_the_whole_fleet_once() -> None:
    desk = Desk(big_books(2500, 0, jobs=0), None, START_S)
    names, after, parts = [], 0, 0
    while True:
        part = fleet_queries.fleet_map(desk, after=after)
        names += part.names
        assert len(part.node) == len(part.devices) == len(part.rack) == len(part.names)
        parts += 1
        if not (after := part.next):
            break
    assert parts == 3 and names == list(desk.world.by_node)


def test_a_letter_of_the_map_is_a_state_and_whether_it_is_held(desk: Callable[..., Desk]) -> None:
    part = fleet_queries.fleet_map(desk(), nodes=("n3", "n1", "nowhere"))
    assert part.names == ("n3", "n1") and part.racks == ("r1",)

    def read(letter: str) -> tuple[str, bool]:
        return part.states[ord(letter.lower()) - ord("a")], letter.isupper()

    assert read(part.devices[0][1]) == ("in_service", True)
    assert read(part.devices[1][0]) == ("remediating", True)
    assert read(part.node[0]) == ("in_service", False)


def test_a_device_is_found_by_its_serial_number(desk: Callable[..., Desk]) -> None:
    assert fleet_queries.find(desk(), "N1-GPU0").finds[0].id == "device/n1/0"
    assert [x.kind for x in fleet_queries.find(desk(), CARD).finds] == ["incident"]
    assert fleet_queries.find(desk(), "  ").finds == ()


def test_the_list_can_show_only_what_wants_attention(desk: Callable[..., Desk]) -> None:
    lines = fleet_queries.fleet_list(desk(), state="attention").resources
    assert {line.id for line in lines} == {"device/n1/0", "device/n3/1"}
    first = fleet_queries.fleet_list(desk(), limit=5)
    rest = fleet_queries.fleet_list(desk(), after=first.next)
    assert len(first.resources) == 5 and len(rest.resources) == 9 and rest.next == 0
    with pytest.raises(ValueError, match="there is no state"):
        fleet_queries.fleet_list(desk(), state="tired")


def test_a_device_page_has_its_fault_its_hold_and_its_counters(desk: Callable[..., Desk]) -> None:
    found = fleet_queries.fleet_device(desk(), "device/n1/0")
    assert found.device.serial == "n1-gpu0" and found.faults[0].failure_class and found.device.holds
    assert history(desk(), ("device/n1/0", "n1-gpu0")).counts[0].count == 1


def test_a_device_of_a_node_that_is_held_takes_no_work(desk: Callable[..., Desk]) -> None:
    looked = desk()
    device, node = ResourceId("device/n3/0"), looked.world.resources[ResourceId("node/n3")]
    assert (
        fleet_queries.fleet_device(looked, device).device.allocatable
        and answer(looked, "resource", {"id": device}).allocatable
    )
    node.holds["person:eve"] = Hold(source="person:eve", reason="smoke", since_s=0.0)
    found = fleet_queries.fleet_device(looked, device)
    assert (found.device.allocatable, found.node_takes_work) == (False, False)
    assert not answer(looked, "resource", {"id": device}).allocatable


# ---- review


def test_a_review_page_answers_in_sentences_and_exports_every_figure(desk: Callable[..., Desk]) -> None:
    shown = desk()
    span = span_of(shown.now_s, "", "", "")
    closed = [*shown.archive.records("incident"), *shown.archive.records("fault")]
    computed = compute(material_of(shown, closed, remediations(shown.journal), span.since_s, span.until_s))
    page = review_page(computed, span)
    assert page.answers and page.pictures["badput"].svg.startswith("<svg")
    rows = list(csv.reader(io.StringIO(review_csv(computed))))
    assert rows[0] == ["section", "figure", "value"]
    figures = {(row[0], row[1]): row[2] for row in rows[1:]}
    assert float(figures["cost", "gpu_h"]) == pytest.approx(computed.cost.gpu_h)


def test_an_export_holds_no_formula(desk: Callable[..., Desk]) -> None:
    shown = desk()
    computed = compute(material_of(shown, [], remediations(shown.journal), shown.now_s - 100, shown.now_s))
    hostile = msgspec.structs.replace(computed, tenant="=HYPERLINK(1)")
    assert "'=HYPERLINK(1)" in review_csv(hostile)


@pytest.mark.parametrize(
    ("days", "since", "until", "length_days"),
    [("", "", "", 7.0), ("28", "", "", 28.0), ("x", "", "", 7.0), ("", "2023-11-01", "2023-11-02", 2.0)],
)
def test_a_period_is_so_many_days(days: str, since: str, until: str, length_days: float) -> None:
    span = span_of(START_S, days, since, until)
    assert (span.until_s - span.since_s) / 86_400 == length_days


def test_a_period_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="no time at all"):
        span_of(START_S, "", "2024-01-01", "2023-01-01")
